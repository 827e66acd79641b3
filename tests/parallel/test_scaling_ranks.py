"""All-reduces and real steps on real ranks, timed."""

import dataclasses

import pytest

from dltutorial.comm import stopwatch
from dltutorial.config import PRESETS, Recipe
from dltutorial.train.ddp_comparison import TORCH, compare

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")


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
