"""A resumed run goes on on a GPU: its state is on the device, and a graph reads the tensors it was captured with."""

import dataclasses
import itertools

import pytest
import torch

from dltutorial.config import PRESETS
from dltutorial.engine import checkpoint
from dltutorial.engine.forecasting import build_model, squared_error
from dltutorial.engine.loop import TrainState, loop
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.task import Task

pytestmark = pytest.mark.gpu
SMALL = dataclasses.replace(
    Recipe.of(PRESETS["smoke"], steps=20),
    n_lat=16, n_lon=32, dim=32, depth=1, heads=2, log_every=1, checkpoint_every=8, device="cuda",
)  # fmt: skip


def waves(recipe):
    torch.manual_seed(1)
    batches = [torch.randn(2, 4, recipe.n_channels, recipe.n_lat, recipe.n_lon) for _ in range(4)]
    return ((x, 0.9 * x + 0.1 * y) for x, y in itertools.cycle(batches))


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"cuda_graph": True},
        {"cuda_graph": True, "precision": "fp16", "optimizer_impl": "fused"},
    ],
    ids=lambda knobs: "-".join(map(str, knobs.values())) or "plain",
)
def test_a_resumed_run_has_the_losses_of_one_never_stopped(tmp_path, knobs):
    recipe = dataclasses.replace(SMALL, **knobs, checkpoint_every=8)

    def task():
        return Task(build_model(recipe), lambda skip: itertools.islice(waves(recipe), skip, None), squared_error)

    def save(state):
        if state.step == 8:
            checkpoint.save(checkpoint.take(state, recipe), tmp_path)

    whole = [seen.loss for seen in loop(task(), recipe, save=save)]
    again = task()
    state = TrainState(again, recipe)
    checkpoint.restore(checkpoint.newest(tmp_path), state)
    resumed = [seen.loss for seen in loop(again, recipe, state)]
    assert resumed == pytest.approx(whole[8:], rel=1e-3)


def test_random_states_of_the_gpu_come_back():
    states = checkpoint.random_states()
    drawn = torch.rand(3, device="cuda").tolist()
    checkpoint.set_random_states(states)
    assert torch.rand(3, device="cuda").tolist() == drawn
