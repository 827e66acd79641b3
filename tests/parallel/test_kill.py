"""A training run that is killed, at any moment, resumes from a whole checkpoint and ends as if it never had been."""

import os
import signal
import time

import pytest
from nursing import EVERY, kill_at_random, wait_for
from same_run import assert_same_run

from dltutorial.train import checkpoint, run_folder

pytestmark = pytest.mark.ci

KILLS = int(os.environ.get("DLTUTORIAL_KILLS", 8))
NAMED_AT = 10  # the step of writing before which a checkpoint has not yet its name; see the nursery


@pytest.fixture(scope="module")
def whole(nursery, data):
    """A run that was never stopped, and how long it took with slow writing."""
    start = time.perf_counter()
    assert nursery.train("whole", data, trouble=["slow"]) == 0, nursery.said.read_text()
    return nursery.run("whole"), time.perf_counter() - start


def test_killed_at_random_moments_a_run_ends_with_the_same_weights(nursery, data, whole, record_property):
    """As many lives as it takes for KILLS kills; each finished run is compared, and a new one begun."""
    whole, life_s = whole
    seen = {"kills": 0, "in_writing": 0, "left_a_checkpoint": 0}

    def start(number):
        return [nursery.start(f"killed-{number}", data, trouble=["slow"])]

    def finish(number):
        assert_same_run(whole, nursery.run(f"killed-{number}"))

    for number in kill_at_random(start, nursery.wait, finish, life_s, KILLS):
        folder = nursery.run(f"killed-{number}") / "checkpoints"
        seen["kills"] += 1
        seen["in_writing"] += any(folder.glob(".*.partial"))
        seen["left_a_checkpoint"] += checkpoint.newest(folder) is not None
    assert nursery.train(f"killed-{number}", data) == 0, nursery.said.read_text()
    finish(number)
    for what, value in seen.items():
        record_property(what, value)
    print(seen, f"{number + 1} runs")


@pytest.mark.parametrize("at", [4, 9, 10, 11, 13])
def test_killed_at_each_step_of_writing_it_goes_on_from_a_whole_checkpoint(nursery, data, whole, at):
    """The third checkpoint, so that there is an old one to remove: two are written before, in 13 steps each."""
    name = f"step-{at}"
    folder = nursery.run(name)
    assert nursery.train(name, data, trouble=[["kill", 2 * 13 + at]]) == -signal.SIGKILL, nursery.said.read_text()
    assert checkpoint.newest(folder / "checkpoints").step == (2 if at <= NAMED_AT else 3) * EVERY
    assert nursery.train(name, data) == 0, nursery.said.read_text()
    assert_same_run(whole[0], folder)


@pytest.mark.parametrize("how", ["--overwrite", "--resume"])
@pytest.mark.parametrize(
    ("what", "at"), [("overwriting", 1), ("overwriting", 2), ("overwriting", 3), ("removing", 1), ("removing", 6)]
)
def test_killed_while_it_overwrites_a_run_it_leaves_the_old_one_or_a_new_one(nursery, data, whole, what, at, how):
    name = f"{what}-{at}{how}"
    folder = nursery.run(name)
    assert nursery.train(name, data, "--seed", 1) == 0, nursery.said.read_text()
    killed = nursery.train(name, data, how=["--overwrite"], trouble=[[f"kill in {what}", at]])
    assert killed == -signal.SIGKILL, nursery.said.read_text()
    if (what, at) == ("overwriting", 1):
        assert run_folder.run_status(folder) == "finished"
        return
    if not folder.exists() and how == "--resume":  # there is nothing to resume, and the old one is not to be lost
        assert nursery.train(name, data, how=[how]) == 2
        assert f"{name}.overwritten is in the way; look what it holds" in nursery.said.read_text()
        how = "--overwrite"
    assert nursery.train(name, data, how=[how]) == 0, nursery.said.read_text()
    assert_same_run(whole[0], folder)
    assert nursery.train(name, data, how=["--overwrite"]) == 0, nursery.said.read_text()
    assert not [entry for entry in folder.parent.iterdir() if entry.name.startswith(f".{name}")]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP", "SIGUSR2", "SIGXCPU"])
def test_a_signal_that_asks_to_end_is_obeyed_with_a_checkpoint(nursery, data, whole, name):
    folder = nursery.run(name)
    pid = nursery.start(name, data, trouble=["slow"])
    wait_for((folder / "checkpoints").exists, nursery.said)
    os.kill(pid, getattr(signal, name))
    assert nursery.wait(pid) == 75
    assert run_folder.run_status(folder) == "interrupted"
    assert "a checkpoint is written, go on with --resume" in nursery.said.read_text()
    assert nursery.train(name, data) == 0
    assert_same_run(whole[0], folder)


def test_after_ctrl_c_it_goes_on_from_the_last_checkpoint(nursery, data, whole):
    folder = nursery.run("ctrl-c")
    pid = nursery.start("ctrl-c", data, trouble=["slow"])
    wait_for(lambda: list((folder / "checkpoints").glob("step-*")), nursery.said)
    os.kill(pid, signal.SIGINT)
    assert nursery.wait(pid) == 130
    assert run_folder.run_status(folder) == "interrupted"
    assert not list(folder.rglob("*.partial"))
    assert nursery.train("ctrl-c", data) == 0
    assert_same_run(whole[0], folder)
