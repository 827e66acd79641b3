"""What needs a CUDA device: `pytest -m gpu`. Elsewhere these tests are skipped, and say so."""

import pytest
import torch

from dltutorial.config import PRESETS
from dltutorial.data import dynamics
from dltutorial.data.flow import atmosphere
from dltutorial.engine.forecasting import make_vit, squared_error
from dltutorial.engine.loop import loop
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.task import Task

pytestmark = pytest.mark.gpu


def moving_waves(recipe, n=40):
    generator = torch.Generator().manual_seed(0)
    for _ in range(n):
        x = torch.randn(recipe.global_batch_size, recipe.n_channels, 1, recipe.n_lon, generator=generator)
        x = x.expand(-1, -1, recipe.n_lat, -1)
        yield x, x.roll(1, -1)


def test_losses_are_those_of_the_cpu():
    recipe = Recipe(n_lat=16, n_lon=32, dim=32, depth=2, steps=20, warmup_steps=2, log_every=5)

    def losses(device):
        torch.manual_seed(0)
        return [
            seen.loss
            for seen in loop(
                Task(make_vit(recipe).to(device), lambda skip: moving_waves(recipe), squared_error), recipe
            )
        ]

    assert losses("cuda") == pytest.approx(losses("cpu"), rel=1e-3)


def test_the_published_model_makes_an_update():
    recipe = Recipe.of(PRESETS["gpu"], global_batch_size=2, steps=2, log_every=1)
    records = list(loop(Task(make_vit(recipe).to("cuda"), lambda skip: moving_waves(recipe), squared_error), recipe))
    assert all(seen.loss > 0 for seen in records)


def test_a_step_of_the_atmosphere_is_that_of_the_cpu():
    flow = atmosphere(64, 128, 2)

    def fields(device):
        ops = dynamics.operators(flow, device=device)
        state = dynamics.initial_state(ops, seeds=[3])
        for _ in range(10):
            state = dynamics.rk4_step(state, ops)
        return dynamics.fields(state, ops).cpu()

    cpu, gpu = fields("cpu"), fields("cuda")
    error_C = (gpu - cpu).square().mean((0, 2, 3)).sqrt() / cpu.square().mean((0, 2, 3)).sqrt()
    assert error_C.max() < 1e-3
