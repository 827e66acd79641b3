"""``slurm/tune.sbatch`` as it is: workers of one study as a job array on the pocket cluster, one of which is killed."""

import signal
import subprocess

import psutil
import pytest
from slurm_jobs import said, sbatch
from waiting import wait_for

from dltutorial import paths

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(600)]
LINE = (
    *("--name", "study", "--preset", "smoke", "--dim", "16", "--heads", "1", "--depth", "1", "--steps", "27"),
    *("--global-batch-size", "2", "--knob", "learning_rate=1e-3..3e-2:log"),
)


def ended(name):
    import optuna
    from optuna.storages import JournalStorage, journal

    storage = JournalStorage(journal.JournalFileBackend(str(paths.runs_dir() / name / "journal.log")))
    return [trial.state.name for trial in optuna.load_study(study_name=name, storage=storage).trials]


def workers(number):
    """The Python processes of a job."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        with_job = "dltutorial" in words and "tune" in words and "-m" in words and "srun" not in words[0]
        if with_job and process.environ().get("SLURM_JOB_ID") == number:
            found.append(process)
    return found


def test_two_arrays_tune_one_study_and_a_worker_is_killed(cluster, runs, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(runs))
    first = sbatch("tune", *LINE, "--trials", "10", env=cluster.env, options=["--array=0-1"])
    wait_for((runs / "study" / "trial-0001").exists)
    second = sbatch("tune", *LINE, "--trials", "10", env=cluster.env, options=["--array=0-0"])
    jobs = said(["squeue", "--noheader", "--array", f"--jobs={first.number}", "--format=%A"], cluster.env).split()
    (victim,) = wait_for(lambda: [process for job in jobs for process in workers(job)])[:1]
    victim.send_signal(signal.SIGKILL)
    for array in (first, second):
        wait_for(
            lambda array=array: not said(["squeue", "--noheader", f"--jobs={array.number}"], cluster.env).strip(), 300
        )
    states = ended("study")
    assert states.count("COMPLETE") + states.count("PRUNED") == 10
    assert states.count("FAIL") in (0, 1)  # 0: it died between two trials
    outputs = "".join(file.read_text() for file in (runs / "jobs").glob("tune-*.out"))
    assert outputs.count("best: ") == 2
    assert "Traceback" not in outputs


def test_a_script_sent_from_elsewhere_is_one_line(tmp_path):
    from slurm_jobs import ROOT

    done = subprocess.run(
        ["bash", str(ROOT / "slurm" / "tune.sbatch")], env={"SLURM_SUBMIT_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "which is not the course's folder" in line
