"""On a login node training refuses, and sent to Slurm it runs: the setting travels along, the job knows better."""

import os
import subprocess
import sys

import pytest

from dltutorial import node
from dltutorial.errors import CourseError
from dltutorial.launch import launch

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


@pytest.fixture
def login(cluster, monkeypatch):
    """This machine, as a site's file would call it."""
    monkeypatch.setenv("DLTUTORIAL_NODE", "login")


def test_a_laptop_with_slurm_is_no_login_node(cluster):
    assert node.told(os.environ | cluster.env) == "this machine"


def test_a_refused_training_runs_as_a_job(login, train, runs):
    words = [sys.executable, "-m", "dltutorial", "train", "--preset", "smoke", "--steps", "2"]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1 and "sbatch -N 1 slurm/train.sbatch" in refused.stderr
    job = train("sent", "--steps", "2", nodes=1, ranks=1)
    job.wait(200)
    assert "DLTUTORIAL_NODE=login" in job.output.read_text()  # the script prints what is in force
    assert len((runs / "sent" / "progress.jsonl").read_text().splitlines()) == 2


def test_a_launch_is_refused(login):
    with pytest.raises(CourseError, match=r"starting ranks does not run on a login node .*slurm/notebook\.sbatch"):
        launch(print, 2)


@pytest.mark.parametrize("word, told", [("salloc", "a login node (DLTUTORIAL_NODE=login)"), ("srun", "a Slurm job")])
def test_the_shell_that_salloc_opens_is_still_on_the_login_node(login, cluster, word, told):
    code = "import os; from dltutorial import node; print(bool(os.environ['SLURM_JOB_ID']), node.told())"
    done = subprocess.run(
        [word, "--nodes=1", "--ntasks=1", sys.executable, "-c", code],
        env=os.environ | cluster.env, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.stdout.startswith(f"True {told}"), done.stderr
