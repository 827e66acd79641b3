"""Where there is no Slurm, torchrun alone trains, is warned and goes on."""

import os
import subprocess

import pytest
from waiting import wait_for

from dltutorial.errors import CourseError
from dltutorial.launch import executor, pocket

TINY = ["--preset", "smoke", "--dim", "32", "--depth", "1", "--steps", "200", "--log-every", "1", "--eval-every", "0"]


@pytest.fixture
def here():
    here = executor.LocalExecutor()
    yield here
    here.close()


@pytest.mark.timed  # the warning has to come before the end
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_warned_run_goes_on_by_itself(here, ranks):
    run = here.train("run", *TINY, nodes=ranks)
    wait_for(lambda: executor.progress("run") or run.state().is_over, within_s=200)
    run.warn()
    assert run.wait(200).restarts == 1
    assert "run goes on after" in run.output.read_text()
    assert [record["step"] for record in executor.progress("run")] == list(range(1, 201))


def test_a_run_that_fails_says_so(here):
    run = here.train("run", "--preset", "smoke", "--heads", "7", nodes=1)
    with pytest.raises(CourseError, match=r"the run run failed: .*heads"):
        run.wait(200)
    here.close()
    assert not run.output.exists()


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "dltutorial: asked to end after 3 updates\ndltutorial: rank 1 of 2: bad\n====\nsrun: error: n0\n",
            "rank 1 of 2: bad;",
        ),
        (
            "begun\nsrun: error: n0: task 0: Killed\nsrun: error: n1: task 1: Exited\n",
            "srun: error: n0: task 0: Killed;",
        ),
        ("begun\nbash: no such file\n\n", "bash: no such file;"),
        ("", "it says nothing"),
    ],
)
def test_the_cause_of_a_failure_is_the_line_that_tells_most(tmp_path, said, cause):
    (tmp_path / "out").write_text(said)
    assert executor._cause(tmp_path / "out").startswith(cause)
    assert executor._cause(tmp_path / "none") == "it says nothing"


@pytest.mark.slurm
def test_each_process_has_a_cluster_of_its_own_and_those_of_dead_ones_end():
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = f"lab-{gone.pid}"
    pocket.up(1, left)
    mine = executor.start("lab", nodes=1)
    try:
        assert mine.cluster.name == f"lab-{os.getpid()}"
        assert left not in pocket.names()
    finally:
        mine.close()
    assert mine.cluster.name not in pocket.names()
