"""``slurm/tune_ray.sbatch`` as it is: a Ray cluster inside a job of the pocket cluster, and a worker that is killed."""

import contextlib
import csv
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from slurm_jobs import GOING, ROOT, said, sbatch
from waiting import wait_for

pytestmark = [
    pytest.mark.slurm, pytest.mark.ray, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(1500)
]  # fmt: skip
LINE = (
    *("--name", "population", "--preset", "smoke", "--dim", "16", "--heads", "1", "--depth", "1", "--steps", "27"),
    *("--global-batch-size", "2", "--knob", "learning_rate=1e-3..3e-2:log", "--trials", "4"),
)


SLOW = "not start"  # so says Ray, whose raylet gives up where an agent takes 15 s to start, on a busy machine


def processes(word, job):
    """Those of a job whose command line, which Ray changes, holds a word."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            named = word in (words := " ".join(process.info["cmdline"] or [])) and "IDLE" not in words
            if named and process.environ().get("SLURM_JOB_ID") == job.number and process.status() != "zombie":
                found.append(process)
    return found


def test_a_population_on_two_nodes_loses_a_worker_and_ends_clean(cluster, runs, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(runs))
    study = runs / "population"
    for _ in range(4):
        job = sbatch("tune_ray", *LINE, "--scheduler", "pbt", nodes=2, env=cluster.env)
        wait_for(lambda job=job: job.state()[0] not in GOING or list(study.glob("trial-*/checkpoints/step-*.pt")), 600)
        if job.state()[0] in GOING or SLOW not in job.output.read_text():
            break
    assert job.state()[0] in GOING, job.output.read_text()
    assert len(wait_for(lambda: processes("raylet/raylet", job))) >= 1
    wait_for(lambda: processes("ray::", job))[0].kill()
    wait_for(lambda: not said(["squeue", "--noheader", f"--jobs={job.number}"], cluster.env).strip(), 400)
    output = job.output.read_text()
    assert job.wait() == 0, output
    with (study / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["rung"] for row in rows] == ["9"] * 4
    assert "4 trials, 4 to the end, 0 failed" in output
    assert "best: " in output
    assert "Traceback" not in output
    wait_for(lambda: not processes("raylet", job) and not processes("gcs_server", job))
    wait_for(lambda: not Path("/tmp", f"dltutorial-ray-{job.number}").exists())


def test_a_job_that_is_cancelled_leaves_nothing(cluster, runs, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(runs))
    job = sbatch("tune_ray", *LINE, "--name", "cancelled", nodes=1, env=cluster.env)
    wait_for(lambda: processes("raylet/raylet", job), 400)
    job.cancel()
    wait_for(lambda: not processes("raylet", job) and not processes("gcs_server", job), 120)
    job.ended()
    # Slurm ends its tidying after KillWait, done or not. What is left has no owner, and the node's next job removes it.
    left = Path("/tmp", f"dltutorial-ray-{job.number}")

    def is_swept():
        subprocess.run(["bash", ROOT / "slurm" / "ray_node.sh", f"{left}0", "true"], check=True, timeout=120)
        return not left.exists()

    wait_for(is_swept)  # a process of Ray's may still write as it ends


DIES = """
import os, sys
from dltutorial import cli
from dltutorial.train import tune_ray
tune_ray._TRIES, whole = 0, tune_ray._trial
def dies_once(chosen, search):
    try:
        (search.folder / "died").mkdir(parents=True)
    except FileExistsError:
        return whole(chosen, search)
    os.kill(os.getpid(), 9)
tune_ray._trial = dies_once
sys.exit(cli.main(sys.argv[1:]))
"""


def test_on_this_machine_alone_asha_stops_trials_at_rungs_and_one_that_ray_gives_up_is_tried_once_more(runs):
    """Ray gives up one whose worker dies while it starts, however many tries it has; here it has none."""
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", DIES, "tune", "--engine", "ray", *LINE, "--name", "dies", "--scheduler", "asha"],
            env={**os.environ, "DLTUTORIAL_RUNS": str(runs)}, capture_output=True, text=True, timeout=1200,
        )  # fmt: skip
        if SLOW not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert (runs / "dies" / "died").exists()
    with (runs / "dies" / "trials.csv").open() as file:
        rows = [(int(row["rung"]), float(row["score"])) for row in csv.DictReader(file)]
    assert len(rows) == 4
    assert {rung for rung, _ in rows} <= {1, 3, 9}
    to_the_end = [score for rung, score in rows if rung == 9]
    assert f"4 trials, {len(to_the_end)} to the end, 0 failed" in done.stdout
    assert f"best: {min(to_the_end):.4f}" in done.stdout


def test_a_script_sent_from_elsewhere_is_one_line(tmp_path):
    done = subprocess.run(
        ["bash", str(ROOT / "slurm" / "tune_ray.sbatch")],
        env={"SLURM_SUBMIT_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "which is not the course's folder" in line
