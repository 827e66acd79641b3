"""Emulated and real steps on real ranks: what they return, and that waiting is where it was planted."""

import dataclasses

import numpy as np
import pytest

from dltutorial.comm import stopwatch
from dltutorial.config import PRESETS, Recipe
from dltutorial.launch import launch
from dltutorial.scaling import steps
from dltutorial.scaling.steps import EmulatedStep
from dltutorial.scaling.workloads import Workload
from dltutorial.train.ddp_comparison import TORCH, compare

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
WORK = Workload("test", (1000.0, 1000.0), (0.5, 0.5), sample_s=0.01, fixed_s=0.002)


@pytest.mark.timed
def test_a_slow_rank_lets_the_others_wait_and_waits_least_itself():
    variants = {
        "slow": EmulatedStep(WORK, 3, pace=(1, 2, 1)),
        "mended": EmulatedStep(WORK, (3, 1.5, 3), pace=(1, 2, 1)),
    }
    found = launch(steps.emulated, 3, variants, 5, backend="gloo")
    slow = np.array([np.median(times["slow"], axis=0) for times in found])
    assert slow.shape == (3, 3)
    assert slow[:, 0].argmax() == 1  # it computes longest
    assert slow[:, 1].argmin() == 1  # and waits least
    assert (slow[:, 2] >= 0.06).all()  # all steps take as long as its own
    mended = np.array([np.median(times["mended"], axis=0) for times in found])
    assert mended[:, 0] == pytest.approx(np.full(3, 0.03), rel=0.3)


def test_all_reduces_are_measured_for_every_number_of_ranks_and_every_size():
    found = stopwatch.measure_network((2, 3), 3, (4, 4096)).by_ranks
    assert {p: set(times) for p, times in found.items()} == {2: {4, 4096}, 3: {4, 4096}}
    assert all(seconds > 0 for times in found.values() for seconds in times.values())


def test_real_updates_are_timed_on_one_rank_and_on_two():
    tiny = dataclasses.replace(PRESETS["smoke"], n_lat=16, n_lon=32, dim=16, depth=1, heads=2)
    recipe = Recipe.of(tiny, global_batch_size=2, device="cpu")
    for p in (1, 2):
        (timing,) = compare(p, recipe, [TORCH], 3).values()
        assert len(timing.samples_s) == 3
        assert timing.best_s > 0
