"""A training run that is killed or asked to end goes on from a complete checkpoint, as if it had never been stopped."""

import os
import signal

import pytest
from nursing import EVERY, wait_for
from same_run import assert_same_run

from dltutorial.engine import checkpoint, run_folder

pytestmark = pytest.mark.ci
STEPS_OF_WRITING = 13  # of one checkpoint; see the nursery
NAMED_AT = 10  # up to this step a checkpoint does not have its name yet


@pytest.fixture(scope="module")
def whole(nursery, data):
    """A run that was never stopped."""
    assert nursery.train("whole", data) == 0, nursery.said.read_text()
    return nursery.run("whole")


@pytest.mark.parametrize("at", [4, 10, 11, 13])
def test_killed_at_each_step_of_writing_it_goes_on_from_a_complete_checkpoint(nursery, data, whole, at):
    """It is killed in the third checkpoint, where there is an old checkpoint to remove."""
    folder = nursery.run(f"step-{at}")
    killed = nursery.train(folder.name, data, trouble=[["kill", 2 * STEPS_OF_WRITING + at]])
    assert killed == -signal.SIGKILL, nursery.said.read_text()
    assert checkpoint.newest(folder / "checkpoints").step == (2 if at <= NAMED_AT else 3) * EVERY
    assert nursery.train(folder.name, data) == 0, nursery.said.read_text()
    assert_same_run(whole, folder)


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGINT", 130)])
def test_a_signal_ends_a_run_that_can_be_resumed(nursery, data, whole, name, status):
    """SIGINT is Ctrl-C: no checkpoint is written, and the run goes on from the last one."""
    folder = nursery.run(name)
    pid = nursery.start(name, data, trouble=["slow"])
    wait_for(lambda: list((folder / "checkpoints").glob("step-*")), nursery.said)
    os.kill(pid, getattr(signal, name))
    assert nursery.wait(pid) == status
    assert run_folder.run_status(folder) == "interrupted"
    if status == 75:
        assert "a checkpoint is written, go on with --resume" in nursery.said.read_text()
    assert nursery.train(name, data) == 0
    assert_same_run(whole, folder)
