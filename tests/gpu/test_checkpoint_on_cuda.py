"""A resumed run goes on on a GPU: its state is on the device, and a graph reads the tensors it was captured with."""

import dataclasses
import itertools

import pytest
import torch

from dltutorial.config import PRESETS, Recipe
from dltutorial.train import checkpoint
from dltutorial.train.loop import loop
from dltutorial.train.run import build_model

pytestmark = pytest.mark.gpu
SMALL = dataclasses.replace(
    Recipe.of(PRESETS["smoke"], steps=20),
    n_lat=16, n_lon=32, dim=32, depth=1, heads=2, log_every=1, checkpoint_every=8, device="cuda",
)  # fmt: skip


class Remember:
    """Keeps one checkpoint in a file, and never ends the run."""

    def __init__(self, folder, at):
        self.folder, self.at, self.file = folder, at, None

    def due(self, step):
        return step == self.at

    def can_end_here(self):
        return False

    def write(self, state):
        self.file = checkpoint.save(state, self.folder)


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
    recipe = dataclasses.replace(SMALL, **knobs)
    keeper = Remember(tmp_path, at=8)
    whole = [seen.loss for seen in loop(build_model(recipe), waves(recipe), recipe, keeper=keeper)]
    begun = checkpoint.load(keeper.file)
    rest = itertools.islice(waves(recipe), begun.global_batches, None)
    resumed = [seen.loss for seen in loop(build_model(recipe), rest, recipe, begun=begun)]
    assert resumed == pytest.approx(whole[8:], rel=1e-3)


def test_random_states_of_the_gpu_come_back():
    states = checkpoint.random_states()
    drawn = torch.rand(3, device="cuda").tolist()
    checkpoint.set_random_states(states)
    assert torch.rand(3, device="cuda").tolist() == drawn
