"""Real training steps for the scaling chapter on GPUs: timed to their end, one rank for each GPU."""

import dataclasses

import pytest
import torch

from dltutorial.config import PRESETS, Recipe
from dltutorial.train.ddp_comparison import TORCH, compare

pytestmark = pytest.mark.gpu
SMALL = dataclasses.replace(PRESETS["smoke"], n_lat=32, n_lon=64, dim=64, depth=2, heads=2)


def test_one_rank_for_each_gpu_trains_and_is_timed():
    n = min(4, torch.cuda.device_count())
    found = compare(n, Recipe.of(SMALL, global_batch_size=2 * n), [TORCH], 4)[TORCH]
    assert len(found.samples_s) == 4
    assert found.best_s > 0


def test_longer_computing_takes_longer_to_the_end_of_the_kernels():
    """Much: four blocks of 1,024 numbers over 8,192 tokens, ten times what launching them takes."""
    wide = dataclasses.replace(SMALL, dim=1024, depth=4)
    little, much = (
        compare(1, Recipe.of(preset, global_batch_size=batch), [TORCH], 6)[TORCH].median_s
        for preset, batch in ((SMALL, 2), (wide, 256))
    )
    assert much > little
