"""Compilation and fused kernels on a CUDA device: `pytest -m gpu`."""

import pytest
import torch

from dltutorial.config import Recipe
from dltutorial.train import compiling
from dltutorial.train.forecasting import make_vit, squared_error
from dltutorial.train.step import make_optimizer, make_step

pytestmark = pytest.mark.gpu

SMALL = {"n_lat": 16, "n_lon": 32, "dim": 32, "depth": 2, "learning_rate": 1e-3}


def losses(**knobs):
    """Of ten updates of a small model on the same batches."""
    recipe = Recipe(**SMALL, **knobs)
    torch.manual_seed(0)
    model = make_vit(recipe).to("cuda")
    step = make_step(model, squared_error, make_optimizer(model, recipe), recipe)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, recipe.n_channels, recipe.n_lat, recipe.n_lon, generator=generator).to("cuda")
    return [step(x, x.roll(1, -1)).item() for _ in range(10)]


@pytest.fixture(scope="module")
def plain():
    return losses()


def test_everything_to_compile_with_is_here():
    assert compiling.missing("cuda") is None


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_losses_are_the_plain_ones(mode, plain):
    torch.compiler.reset()
    assert losses(compile=mode) == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused"])
def test_every_optimizer_gives_the_same_losses(implementation, plain):
    assert losses(optimizer_impl=implementation) == pytest.approx(plain, rel=1e-3)


def test_naive_attention_gives_the_same_losses(plain):
    assert losses(fused_attention=False) == pytest.approx(plain, rel=1e-3)
