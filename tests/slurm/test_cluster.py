"""The scripts of ``slurm/`` on the pocket cluster: training on two nodes, the signal before the time limit, arrays."""

import json
import os
import subprocess
import sys

import pytest
from slurm_jobs import losses, sbatch
from waiting import wait_for

from dltutorial import paths
from dltutorial.launch import pocket

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
TINY = ("--preset", "smoke", "--dim", "32", "--depth", "1", "--eval-every", "0", "--log-every", "1")


@pytest.fixture(scope="module")
def whole(cluster, runs):
    """The losses of an undisturbed run on 2 nodes with 2 ranks each, and what its job printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLTUTORIAL_RUNS", str(runs))
        job = sbatch("train", *TINY, "--steps", "20", nodes=2, env=cluster.env | {"RUN_NAME": "whole"})
        job.wait()
        return losses("whole"), job.output.read_text()


def test_the_cluster_is_up_and_its_command_prints_what_a_shell_evaluates(cluster):
    assert set(pocket.states(cluster)) == {"n0", "n1"}
    command = [sys.executable, "-m", "dltutorial", "pocket", "status", "--name", cluster.name]
    status = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=250)
    assert (status.returncode, status.stdout) == (0, f"export SLURM_CONF={cluster.folder}/slurm.conf\n")
    assert "n0 " in status.stderr


def test_two_nodes_with_two_ranks_each_train(whole):
    found, text = whole
    assert list(found) == list(range(1, 21))
    assert found[20] < found[1]
    assert "2 nodes: n[0-1]" in text
    assert "2 ranks a node" in text


def test_a_warned_job_writes_a_checkpoint_queues_again_and_has_the_same_losses(cluster, whole):
    job = sbatch("train", *TINY, "--steps", "20", nodes=2, env=cluster.env | {"RUN_NAME": "warned"})
    wait_for(lambda: len(losses("warned")) > 0)
    job.warn()
    assert job.wait() == 1
    text = job.output.read_text()
    assert "warned: the job queues again" in text
    assert "warned goes on after" in text
    assert losses("warned") == pytest.approx(whole[0], rel=1e-5)


def test_an_array_measures_scaling(cluster):
    env = cluster.env | {"DLTUTORIAL_RANKS_PER_NODE": "1"}
    job = sbatch("scaling", *TINY, "--steps", "10", nodes=2, env=env, options=["--array=1,2"])
    job.wait_until_gone()
    for ranks in (1, 2):
        recipe = json.loads((paths.runs_dir() / f"scaling-{job.number}-{ranks}" / "recipe.json").read_text())
        assert recipe["global_batch_size"] == 16 * ranks
        assert len(losses(f"scaling-{job.number}-{ranks}")) == 10


def test_an_array_of_workers_tunes_one_study(cluster, runs):
    line = ("--name", "study", "--preset", "smoke", "--dim", "16", "--heads", "1", "--depth", "1", "--steps", "9")
    line += ("--global-batch-size", "2", "--knob", "learning_rate=1e-3..3e-2:log", "--trials", "4")
    sbatch("tune", *line, env=cluster.env, options=["--array=0-1"]).wait_until_gone()
    outputs = "".join(file.read_text() for file in (runs / "jobs").glob("tune-*.out"))
    assert "best: " in outputs
    assert "Traceback" not in outputs
