"""All-reduces and real steps on real ranks, timed."""

import dataclasses

import pytest

from dltutorial.config import PRESETS, Recipe
from dltutorial.train.ddp_comparison import TORCH, compare

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")


def test_real_updates_are_timed_on_one_rank_and_on_two():
    tiny = dataclasses.replace(PRESETS["smoke"], n_lat=16, n_lon=32, dim=16, depth=1, heads=2)
    recipe = Recipe.of(tiny, global_batch_size=2, device="cpu")
    for p in (1, 2):
        (timing,) = compare(p, recipe, [TORCH], 3).values()
        assert len(timing.samples_s) == 3
        assert timing.best_s > 0
