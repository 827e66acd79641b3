"""A training run that is killed a hundred times ends with the same weights as one that was never stopped.

``DLTUTORIAL_KILLS`` sets another number of kills. The moments are random, and a failure says which run it was.
"""

import contextlib
import os
import random
import time

import pytest
from nursing import Nursery, kill_at_random
from same_run import assert_same_run

from dltutorial.config import preset
from dltutorial.data import weather
from dltutorial.engine import checkpoint
from dltutorial.errors import CheckpointError

KILLS = int(os.environ.get("DLTUTORIAL_KILLS", 100))
KNOBS = ["--preset", "smoke", "--dim", 32, "--depth", 1, "--heads", 2, "--global-batch-size", 4]
KNOBS += ["--eval-every", 0, "--steps", 120, "--checkpoint-every", 4]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    with contextlib.closing(Nursery(tmp_path_factory.mktemp("soak"))) as nursery:
        yield nursery


def is_complete(file):
    try:
        checkpoint.load(file)
    except CheckpointError:
        return False
    return True


@pytest.mark.timeout(2400)  # on a busy machine
def test_killed_a_hundred_times_a_run_ends_the_same(nursery):
    data = weather.ensure(preset("smoke"))
    started_s = time.monotonic()
    assert nursery.train("whole", data, *KNOBS) == 0, nursery.said.read_text()
    life_s = time.monotonic() - started_s

    def start(number):
        return nursery.start(f"killed-{number}", data, *KNOBS)

    def finish(number):
        assert_same_run(nursery.run("whole"), nursery.run(f"killed-{number}"))

    for number in kill_at_random(start, nursery.wait, finish, life_s, KILLS, random.Random(0)):
        folder = nursery.run(f"killed-{number}") / "checkpoints"
        assert all(is_complete(file) for file in checkpoint.named(folder))
    assert nursery.wait(start(number)) == 0, nursery.said.read_text()
    finish(number)
