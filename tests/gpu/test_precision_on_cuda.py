"""Precision on a GPU: bytes counted on paper, and the course's loss scaler beside torch's."""

import pytest
import torch
from torch.nn import functional as F

from dltutorial.config import Recipe
from dltutorial.profile import memory
from dltutorial.train.forecasting import make_vit
from dltutorial.train.precision import Precision

pytestmark = pytest.mark.gpu

SIZES = {"n_lat": 64, "n_lon": 128, "dim": 128, "depth": 4, "heads": 4, "global_batch_size": 8}


def fields(recipe):
    shape = (recipe.global_batch_size, recipe.n_channels, recipe.n_lat, recipe.n_lon)
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator).to("cuda") for _ in range(2))


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_activations_counted_on_paper_are_those_that_are_kept(name):
    recipe = Recipe(**SIZES, precision=name)
    model, (x, y) = make_vit(recipe).to("cuda"), fields(recipe)
    with memory.counting_saved(model) as kept, Precision(name, "cuda").autocast():
        F.mse_loss(model(x), y)
    assert sum(kept.values()) == pytest.approx(memory.activation_bytes(recipe), rel=0.1)
