"""The scripts of ``slurm/`` as they are, on the pocket cluster: they train, come back after a signal or a lost node."""

import contextlib
import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import science_data
import torch
from slurm_jobs import ROOT, TINY, Refused, losses, said, sbatch
from waiting import wait_for

from dltutorial import paths
from dltutorial.launch import pocket
from dltutorial.launch import pocket_daemons as daemons

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(600)]
STEPS = ("--steps", "30")
# Losses of four ranks are the same to rounding: a sum of four depends on its order, which torch's DDP may change.


def lose_node(cluster, node):
    """Let a node fail like one without power: all its processes stop in the middle, none says goodbye."""
    for process in daemons.processes(cluster.folder, node):
        with contextlib.suppress(psutil.Error):
            process.suspend()


def mend_node(cluster, node):
    """Let a lost node come back as after a restart: what ran on it is gone, its daemon is new."""
    daemons.kill(cluster.folder, node)
    daemons.spawn(cluster, node)


@pytest.fixture(scope="module")
def whole(cluster, runs):
    """The losses of a run on 2 nodes with 2 ranks each that nobody disturbs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLTUTORIAL_RUNS", str(runs))
        env = cluster.env | {"RUN_NAME": "whole"}
        job = sbatch("train", *TINY, *STEPS, nodes=2, env=env)
        job.wait(250)
        return losses("whole"), job.output.read_text()


def test_two_nodes_with_two_ranks_each_train(whole):
    found, text = whole
    assert list(found) == list(range(1, 31))
    assert found[30] < found[1]
    assert "2 nodes: n[0-1]" in text
    assert "2 ranks a node" in text


def test_a_job_that_takes_little_of_the_environment_and_begins_elsewhere_trains(train, whole):
    """``--export=NONE`` is a rule of some sites: srun would start ranks without a PATH."""
    taken = ("DLTUTORIAL_RUNS", "DLTUTORIAL_PYTHON", "DLTUTORIAL_RANKS_PER_NODE", "DLTUTORIAL_LAUNCHER", "RUN_NAME")
    train("elsewhere", *STEPS, options=(f"--export={','.join(taken)}", "--chdir=/")).wait(250)
    assert losses("elsewhere") == pytest.approx(whole[0], rel=1e-5)


def test_ranks_meet_at_slurms_address_or_at_the_first_node_s_name_with_the_site_s_suffix(cluster, runs):
    for suffix, address in (("", "127.0.0.1"), ("i", "n0i")):
        env = {"DLTUTORIAL_LAUNCHER": "srun", "DLTUTORIAL_RANKS_PER_NODE": "1", "DLTUTORIAL_PYTHON": "bash -c printenv"}
        job = sbatch("train", nodes=2, env=cluster.env | env | {"DLTUTORIAL_MASTER_SUFFIX": suffix})
        assert job.ended()[0] == "COMPLETED", job.output.read_text()
        assert set(re.findall("^MASTER_ADDR=(.*)$", job.output.read_text(), re.MULTILINE)) == {address}


def test_a_warned_job_queues_again_and_ends_with_the_same_losses(train, whole):
    job = train("warned", *STEPS)
    wait_for(lambda: len(losses("warned")) > 0)
    job.warn()
    assert job.wait(250) == 1
    text = job.output.read_text()
    assert "warned: the job queues again" in text
    assert "warned goes on after" in text
    assert losses("warned") == pytest.approx(whole[0], rel=1e-5)


@pytest.mark.parametrize("mesh", ["--tensor 2", "--tensor 2 --context 2", "--tensor 2 --shard full"])
def test_the_same_script_trains_the_same_model_on_a_mesh(train, whole, mesh):
    name = mesh.replace("--", "").replace(" ", "-")
    train(name, *STEPS, *mesh.split()).wait(250)
    assert losses(name) == pytest.approx(whole[0], rel=1e-3)


def test_and_in_stages(train):
    two_blocks = (*STEPS, "--depth", "2")
    train("blocks", *two_blocks).wait(250)
    train("stages", *two_blocks, "--pipeline", "2", "--accumulate", "2", "--shard", "full").wait(250)
    assert list(losses("stages")) == list(range(1, 31))
    assert losses("stages") == pytest.approx(losses("blocks"), rel=1e-3)


def test_a_job_that_is_warned_before_its_ranks_listen_queues_again(train, cluster):
    job = train("early", "--steps", "100000", "--log-every", "1000")
    wait_for(
        lambda: f"{job.number}.0" in said(["squeue", "--noheader", "--steps", f"--jobs={job.number}"], cluster.env)
    )
    job.warn()  # Python has not begun
    try:
        wait_for(lambda: job.state()[1] == 1, 150)
    finally:
        job.cancel()
    assert "warned: the job queues again" in job.output.read_text()


def test_a_warned_job_in_shards_queues_again_and_goes_on_from_them(train, whole):
    job = train("shards", *STEPS, "--shard", "full")
    wait_for(lambda: len(losses("shards")) > 0)
    job.warn()
    assert job.wait(250) == 1
    assert "shards goes on after" in job.output.read_text()
    assert len(list((paths.runs_dir() / "shards" / "checkpoints").glob("*.shard"))) == 4
    assert losses("shards") == pytest.approx(whole[0], rel=1e-3)


def test_a_job_whose_node_fails_goes_on_with_another_and_one_that_may_not_says_so(train, cluster, whole, tmp_path):
    (tmp_path / "wait.sbatch").write_text("#!/bin/bash\nsleep 1000\n")
    job = train("lost", *STEPS, "--checkpoint-every", "5", launcher="srun", options=["--ntasks-per-node=2"])
    doomed = sbatch(str(tmp_path / "wait.sbatch"), env=cluster.env, options=["--no-requeue", "--nodelist=n3"])
    try:
        wait_for(lambda: len(losses("lost")) > 5)
        for node in ("n1", "n3"):
            lose_node(cluster, node)
        wait_for(lambda: job.state()[1] == 1)
        wait_for(lambda: pocket.states(cluster).get("n1") == "down*")
        assert doomed.ended()[0] == "NODE_FAIL"
        job.wait(250)
    finally:
        for node in ("n1", "n3"):
            mend_node(cluster, node)
    assert "lost goes on after" in job.output.read_text()
    assert "DUE TO NODE FAILURE" in job.output.read_text()
    assert losses("lost") == pytest.approx(whole[0], rel=1e-5)
    wait_for(lambda: set(pocket.states(cluster).values()) == {"idle"})


def test_a_node_whose_daemon_was_killed_and_started_again_loses_its_jobs_and_slurm_knows(train, cluster, tmp_path):
    """It would else wait for ranks that are gone, until the job's time is over."""
    job = train("killed", *STEPS, "--checkpoint-every", "5", ranks=1)
    wait_for(lambda: len(losses("killed")) > 5)
    (daemon,) = (p for p in daemons.processes(cluster.folder, "n1") if p.name() == "slurmd")
    daemon.kill()
    wait_for(lambda: not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE)
    assert pocket.up(len(cluster.nodes), cluster.name).faults == ()
    wait_for(lambda: job.state()[1] == 1)
    job.wait(250)
    assert "killed goes on after" in job.output.read_text()
    wait_for(lambda: set(pocket.states(cluster).values()) == {"idle"})


def test_an_array_scales_over_the_nodes(train, cluster):
    job = train("", *STEPS, "--steps", "10", ranks=1, script="scaling", options=("--array=1,2",))
    for ranks in (1, 2):
        wait_for(
            lambda ranks=ranks: (
                said(["squeue", "-h", "--states=all", "-j", f"{job.number}_{ranks}", "-o", "%T"], cluster.env)
                == "COMPLETED\n"
            )
        )
        recipe = json.loads((paths.runs_dir() / f"scaling-{job.number}-{ranks}" / "recipe.json").read_text())
        assert recipe["global_batch_size"] == 16 * ranks


def test_a_measured_job_that_is_started_anew_has_another_run_beside_the_first(train, cluster):
    job = train("", *STEPS, "--steps", "10", ranks=1, nodes=1, script="scaling", options=("--array=1",))
    task = replace(job, number=f"{job.number}_1", output=Path(str(job.output).replace("%a", "1")))
    first = paths.runs_dir() / f"scaling-{job.number}-1"
    assert task.wait() == 0
    kept = {file: file.read_bytes() for file in first.rglob("*") if file.is_file()}
    said(["scontrol", "requeue", task.number], cluster.env)
    wait_for(lambda: task.state()[1] == 1)
    assert task.wait() == 1
    assert {file: file.read_bytes() for file in first.rglob("*") if file.is_file()} == kept
    assert len(losses(f"{first.name}-start-2")) == len(losses(first.name)) > 0
    assert task.output.read_text().count("start 1, 1 nodes") == task.output.read_text().count("start 2, 1 nodes") == 1


def test_a_profile_of_one_rank_is_written_where_there_is_no_nsys(cluster, runs, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(runs))
    monkeypatch.setenv("PATH", os.pathsep.join(f for f in os.get_exec_path() if not (Path(f) / "nsys").exists()))
    job = sbatch("profile", "--preset", "smoke", "--steps", "1", "--warmup", "1", env=cluster.env)
    job.wait(250)
    assert (runs / "profiles" / f"profile-{job.number}.json.gz").stat().st_size > 1000


def test_what_cannot_be_is_refused(cluster, train):
    for options, told in (
        (["--partition=gpu"], "Invalid partition name specified"),
        (["--time=7-0"], "time limit"),
        (["--constraint=gpu"], "Invalid feature specification"),
        (["--gpus-per-node=4"], "generic resource"),
    ):
        with pytest.raises(Refused, match=told):
            train("no", options=options)
    with pytest.raises(Refused, match=r"ode count|not available"):
        train("no", nodes=9)


def test_the_notebook_server_wants_a_token_and_listens_on_the_loopback(cluster, train):
    import urllib.error
    import urllib.request

    job = train("", script="notebook", nodes=1)

    def said():
        return job.output.read_text() if job.output.exists() else ""

    def word(is_it):
        return next((word for word in said().split() if is_it(word)), None)

    url = wait_for(lambda: word(lambda w: w.startswith("http://127")))
    token_file = word(lambda w: w.endswith(".token"))

    def answers(token=""):
        try:
            with urllib.request.urlopen(f"{url.removesuffix('/lab')}/api/contents?token={token}", timeout=60) as page:
                return page.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    try:
        assert wait_for(answers) == 403
        token = Path(token_file).read_text().strip()
        assert answers(token) == 200
        assert token not in job.output.read_text()
        assert Path(token_file).stat().st_mode & 0o077 == 0
    finally:
        job.cancel()
    job.ended()


def test_a_case_of_science_trains_on_two_nodes_as_on_one(cluster, runs, monkeypatch, tmp_path):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(runs))
    data = science_data.write("survey", tmp_path / "survey")
    knobs = ["--task", "survey", "--data", str(data), "--preset", "smoke", "--steps", "6", "--warmup-steps", "1"]
    knobs += ["--global-batch-size", "8", "--log-every", "1", "--eval-every", "6", "--optimizer", "sgd"]
    for name, nodes in (("sky-alone", 1), ("sky", 2)):
        env = cluster.env | {"RUN_NAME": name, "DLTUTORIAL_RANKS_PER_NODE": "1", "DLTUTORIAL_LAUNCHER": "torchrun"}
        job = sbatch("train", *knobs, "--learning-rate", "0.05", nodes=nodes, env=env)
        job.wait(250)
    assert "2 nodes: n[0-1]" in job.output.read_text()
    assert "probe_error" in job.output.read_text()
    assert list(losses("sky")) == list(range(1, 7))
    assert losses("sky") == pytest.approx(losses("sky-alone"), rel=1e-4)  # each rank has the other's negatives


def printed(chapter, begins):
    """A command of a chapter's page, as a learner would copy it."""
    (file,) = (ROOT / "notebooks").glob(f"{chapter}_*.ipynb")
    text = "".join(line for cell in json.loads(file.read_text())["cells"] for line in [*cell["source"], "\n"])
    (command,) = re.findall(rf"^{re.escape(begins)}(?:.*\\\n)*.*$", text, re.MULTILINE)
    return command


def of_site(cluster, folder, *lines):
    """What a shell says to lines that a learner types in this folder, with the site's file sourced."""
    there = "\n".join(["set -e", "source slurm/sites/pocket.sh", *lines])
    env = {**os.environ, **cluster.env, "DLTUTORIAL_RUNS": str(folder / "runs")}
    done = subprocess.run(["bash", "-c", there], cwd=folder, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_suite_of_chapter_25_runs_on_two_nodes_by_the_chapters_own_line(cluster, tmp_path):
    for name in (".venv", "slurm"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "notebooks").mkdir()
    (chapter,) = (ROOT / "notebooks").glob("25_*.ipynb")
    sources = ["".join(cell["source"]) for cell in json.loads(chapter.read_text())["cells"]]
    (suite,) = (source for source in sources if source.startswith("%%writefile suite.py\n"))
    (tmp_path / "notebooks" / "suite.py").write_text(suite.partition("\n")[2])
    draw = torch.Generator().manual_seed(0)
    x_ND = torch.randn(203, 5, generator=draw).double()
    y_N = torch.where(x_ND[:, 0] > 0.1, 1.0, -1.0).double()
    torch.save({"x": x_ND, "y": y_N, "start": x_ND[:3].clone()}, tmp_path / "rows25.pt")
    line = printed("25", "sbatch -N 2 ").replace("sbatch ", "sbatch --wait --output=out.txt ")
    assert line.count("OUT/rows25.pt") == 1
    line = line.replace("OUT/rows25.pt", f"{tmp_path}/rows25.pt {tmp_path}/got25_4.pt")
    of_site(cluster, tmp_path, printed("25", "export DLTUTORIAL_PYTHON="), line)
    rows = [json.loads(row) for row in (tmp_path / "out.txt").read_text().splitlines() if row.startswith("{")]
    assert {row["ranks"] for row in rows} == {4}
    assert {row["workload"] for row in rows} == {"pca", "kmeans", "svm"}
    found = torch.load(tmp_path / "got25_4.pt", weights_only=True)
    assert found["alike"]
    variance_D = torch.linalg.eigvalsh(torch.cov(x_ND.T)).flip(0)
    assert torch.allclose(found["pca"]["variance"], variance_D)


def test_an_ensemble_of_chapter_23_is_an_array_by_the_chapters_own_line(cluster, tmp_path):
    for name in (".venv", "slurm"):
        (tmp_path / name).symlink_to(ROOT / name)
    line = printed("23", "sbatch --array=0-7 -t 01:00:00 --gpus").partition("   #")[0]
    for was, now in (("0-7", "0-1 --wait"), ("--gpus-per-node=1 ", ""), ("--preset gpu", "--preset smoke --steps 20")):
        assert line.count(was) == 1
        line = line.replace(was, now)
    of_site(cluster, tmp_path, line)
    recipes = [json.loads((tmp_path / "runs" / f"member-{n}" / "recipe.json").read_text()) for n in range(2)]
    assert [recipe["seed"] for recipe in recipes] == [0, 1]
    scores = [json.loads((tmp_path / "runs" / f"member-{n}" / "status.json").read_text()) for n in range(2)]
    assert [score["status"] for score in scores] == ["finished"] * 2
    assert scores[0]["scores"] != scores[1]["scores"]
