"""A training run that is killed a hundred times, its files damaged now and then, ends as one that was never stopped.

``DLTUTORIAL_KILLS`` for another number of kills. Moments are random: a failure tells which run it was.
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
from dltutorial.errors import CheckpointError
from dltutorial.train import checkpoint

KILLS = int(os.environ.get("DLTUTORIAL_KILLS", 100))
DAMAGED = 0.1  # of the kills: the newest checkpoint is found cut or changed afterwards
SIZES = {"dim": 32, "depth": 1, "heads": 2, "global-batch-size": 4, "eval-every": 0, "steps": 120}
KNOBS = [
    "--preset",
    "smoke",
    *(word for knob, value in SIZES.items() for word in (f"--{knob}", value)),
    "--checkpoint-every",
    4,
]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    with contextlib.closing(Nursery(tmp_path_factory.mktemp("soak"))) as nursery:
        yield nursery


def broken(folder):
    """The checkpoints that cannot be loaded."""
    found = set()
    for file in checkpoint.named(folder):
        try:
            checkpoint.load(file)
        except CheckpointError:
            found.add(file)
    return found


def damage(folder, rng):
    """Cut the newest checkpoint, or change one bit of it; which."""
    files = checkpoint.named(folder)
    if not files or rng.random() > DAMAGED:
        return set()
    content = bytearray(files[0].read_bytes())
    at = rng.randrange(len(content))
    if rng.random() < 0.5:
        content[at] ^= 1 << rng.randrange(8)
    else:
        del content[at:]
    files[0].write_bytes(content)
    return {files[0]}


@pytest.mark.timeout(2400)  # on a busy machine
def test_killed_a_hundred_times_a_run_ends_the_same(nursery, record_property):
    data, began_s, rng = weather.ensure(preset("smoke")), time.monotonic(), random.Random(0)
    assert nursery.train("whole", data, *KNOBS) == 0, nursery.said.read_text()
    whole, life_s = nursery.run("whole"), time.monotonic() - began_s
    seen = {"kills": 0, "starts": 0, "passed over": 0, "resumed": 0}
    damaged, weights = set(), set()

    def start(number):
        seen["starts"] += 1
        return [nursery.start(f"killed-{number}", data, *KNOBS)]

    def count():
        said = nursery.said.read_text() if nursery.said.exists() else ""
        seen["passed over"] += said.count("passed over: ")
        seen["resumed"] += "goes on after" in said

    def finish(number):
        count()
        assert_same_run(whole, nursery.run(f"killed-{number}"))
        weights.add((nursery.run(f"killed-{number}") / "weights.pt").read_bytes())

    for number in kill_at_random(start, nursery.wait, finish, life_s, KILLS, rng):
        count()
        seen["kills"] += 1
        folder = nursery.run(f"killed-{number}") / "checkpoints"
        assert broken(folder) <= damaged  # a kill alone leaves none
        damaged |= damage(folder, rng)
    assert nursery.wait(start(number)[0]) == 0, nursery.said.read_text()
    finish(number)
    assert seen["kills"] == KILLS
    assert weights == {(whole / "weights.pt").read_bytes()}
    told = ", ".join(f"{value} {name}" for name, value in (seen | {"damaged": len(damaged)}).items())
    record_property("told", f"soak: {told}, {number + 1} runs ended alike, {time.monotonic() - began_s:.0f} s")
