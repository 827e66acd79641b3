"""A training run that is killed, at any moment, resumes from a whole checkpoint and ends as if it never had been."""

import contextlib
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from same_run import assert_same_run

from dltutorial.training import checkpoint, run

HERE = Path(__file__).parent
KILLS = int(os.environ.get("DLTUTORIAL_KILLS", 8))
STEPS, EVERY = 24, 2
NAMED_AT = 10  # the step of writing before which a checkpoint has not yet its name; see the nursery
SIZES = {"dim": 16, "depth": 1, "heads": 2, "global-batch-size": 6, "steps": STEPS, "log-every": 5, "eval-every": 12}
KNOBS = [str(word) for knob, value in SIZES.items() for word in (f"--{knob}", value)]


class Nursery:
    """Starts command lines quickly, each in a process of its own."""

    def __init__(self, folder):
        self.folder, self.said = folder, folder / "said"
        one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "DLTUTORIAL_RUNS": str(folder / "runs")}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | one,
        )  # fmt: skip

    def ask(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, name, data, *argv, trouble=()):
        """Begin or go on with a run; returns its pid."""
        self.said.unlink(missing_ok=True)
        line = ["train", "--resume", "--name", name, "--data", str(data), "--device", "cpu"]
        line += ["--checkpoint-every", str(EVERY), *KNOBS, *map(str, argv), "--track"]
        return self.ask(argv=line, said=str(self.said), trouble=list(trouble))

    def wait(self, pid):
        """The exit status of a child, or minus the signal that ended it."""
        return self.ask(wait=pid)

    def train(self, name, data, *argv, trouble=()):
        return self.wait(self.start(name, data, *argv, trouble=trouble))

    def run(self, name):
        return self.folder / "runs" / name

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=60)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    with contextlib.closing(Nursery(tmp_path_factory.mktemp("nursery"))) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The unit tests' tiny data set."""
    write = runpy.run_path(str(HERE.parent / "unit" / "conftest.py"))["write_tiny_data"]
    return write(tmp_path_factory.mktemp("data") / "tiny")


@pytest.fixture(scope="module")
def whole(nursery, data):
    """A run that was never stopped, and how long it took with slow writing."""
    start = time.perf_counter()
    assert nursery.train("whole", data, trouble=["slow"]) == 0, nursery.said.read_text()
    return nursery.run("whole"), time.perf_counter() - start


def wait_for(condition, nursery):
    """Until something is seen of a run that is under way."""
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, nursery.said.read_text()
        time.sleep(0.005)


def test_killed_at_random_moments_a_run_ends_with_the_same_weights(nursery, data, whole, record_property):
    """As many lives as it takes for KILLS kills; each finished run is compared, and a new one begun."""
    rng = random.Random()
    whole, life_s = whole
    kills = in_writing = resumed = number = 0
    while kills < KILLS:
        name = f"killed-{number}"
        folder = nursery.run(name)
        pid = nursery.start(name, data, trouble=["slow"])
        time.sleep(rng.uniform(0, 0.5 * life_s))
        os.kill(pid, signal.SIGKILL)  # the nursery has not waited for it, so the pid is still its
        status = nursery.wait(pid)
        if status == -signal.SIGKILL:
            kills, life_s = kills + 1, 1.03 * life_s
            in_writing += any((folder / "checkpoints").glob(".*.partial"))
            resumed += checkpoint.newest(folder / "checkpoints") is not None
            continue
        assert status == 0, nursery.said.read_text()
        assert_same_run(whole, folder)
        life_s, number = 0.7 * life_s, number + 1  # the machine is quicker now
    assert nursery.train(name, data) == 0, nursery.said.read_text()
    assert_same_run(whole, nursery.run(name))
    for what, value in {"kills": kills, "in_writing": in_writing, "left_a_checkpoint": resumed}.items():
        record_property(what, value)
    print(f"{kills} kills, {in_writing} of them in writing, {resumed} left a checkpoint; {number + 1} runs")


@pytest.mark.parametrize("at", [4, 9, 10, 11, 13])
def test_killed_at_each_step_of_writing_it_goes_on_from_a_whole_checkpoint(nursery, data, whole, at):
    """The third checkpoint, so that there is an old one to remove: two are written before, in 13 steps each."""
    name = f"step-{at}"
    folder = nursery.run(name)
    assert nursery.train(name, data, trouble=[["kill", 2 * 13 + at]]) == -signal.SIGKILL, nursery.said.read_text()
    assert checkpoint.newest(folder / "checkpoints").step == (2 if at <= NAMED_AT else 3) * EVERY
    assert nursery.train(name, data) == 0, nursery.said.read_text()
    assert_same_run(whole[0], folder)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_that_asks_to_end_is_obeyed_with_a_checkpoint(nursery, data, whole, name):
    folder = nursery.run(name)
    pid = nursery.start(name, data, trouble=["slow"])
    wait_for((folder / "checkpoints").exists, nursery)
    os.kill(pid, getattr(signal, name))
    assert nursery.wait(pid) == 75
    assert run.run_status(folder) == "interrupted"
    assert "a checkpoint is written, go on with --resume" in nursery.said.read_text()
    assert nursery.train(name, data) == 0
    assert_same_run(whole[0], folder)


def test_after_ctrl_c_it_goes_on_from_the_last_checkpoint(nursery, data, whole):
    folder = nursery.run("ctrl-c")
    pid = nursery.start("ctrl-c", data, trouble=["slow"])
    wait_for(lambda: list((folder / "checkpoints").glob("step-*")), nursery)
    os.kill(pid, signal.SIGINT)
    assert nursery.wait(pid) == 130
    assert run.run_status(folder) == "interrupted"
    assert not list(folder.rglob("*.partial"))
    assert nursery.train("ctrl-c", data) == 0
    assert_same_run(whole[0], folder)
