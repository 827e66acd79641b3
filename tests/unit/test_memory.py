"""Memory on paper against memory as torch keeps it, and against the figures of the paper on sharding."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dltutorial.config import PRESETS
from dltutorial.engine.forecasting import make_vit
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.step import make_optimizer
from dltutorial.models.vit import count_parameters
from dltutorial.profile.memory import FORMATS, OPTIMIZERS, Shape, largest_batch, of_step
from dltutorial.step.precision import Precision

RECIPES = {
    "small": Recipe(n_lat=32, n_lon=64, dim=32, depth=2, heads=2, global_batch_size=4),
    "wide": Recipe(n_lat=32, n_lon=32, dim=256, depth=3, heads=8, global_batch_size=2, n_channels=3),
    "smoke": Recipe.of(PRESETS["smoke"], global_batch_size=4),
}
CASES = [("small", formats) for formats in FORMATS]


class AgainInBackward(nn.Module):
    """A block that keeps its input only."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x_BTD):
        return checkpoint(self.block, x_BTD, use_reentrant=True)


def made(recipe, formats):
    dtype = torch.bfloat16 if formats == "16-bit weights" else torch.float32
    shape = (recipe.global_batch_size, recipe.n_channels, recipe.n_lat, recipe.n_lon)
    autocast = Precision("bf16" if formats == "16-bit autocast" else "fp32").autocast
    return make_vit(recipe).to(dtype), torch.randn(shape, dtype=dtype), autocast


def kept_bytes(model, autocast, run):
    """Of the arrays that autograd keeps for the backward pass, each once, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}  # alive until the end, so that no address is given away twice

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), autocast():
        run()
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("preset", PRESETS)
def test_the_model_has_as_many_weights_as_on_paper(preset):
    for fused, change in ((True, True), (False, False)):
        recipe = Recipe.of(PRESETS[preset], n_channels=7, fused_attention=fused, predict_change=change)
        with torch.device("meta"):
            model = make_vit(recipe)
        shape = Shape.of(recipe)
        assert shape.parameters == count_parameters(model)
        matrices = (p.numel() for name, p in model.named_parameters() if p.ndim in (2, 4))
        assert shape.matrix_parameters == sum(matrices)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("size", "formats"), CASES)
def test_activations_are_those_that_autograd_keeps(size, formats, fused):
    recipe = dataclasses.replace(RECIPES[size], fused_attention=fused)
    model, x, autocast = made(recipe, formats)
    found = kept_bytes(model, autocast, lambda: F.mse_loss(model(x), torch.randn_like(x)))
    paper = of_step(Shape.of(recipe), recipe.global_batch_size, formats, fused=fused)
    # Small vectors, such as the norms' means, are not on paper: the paper is low, by less than a twentieth.
    assert 0.95 * found < paper.activations + paper.low_copies <= found


@pytest.mark.parametrize(("size", "formats"), CASES)
def test_checkpointed_blocks_keep_their_input_and_one_block_more(size, formats):
    recipe = RECIPES[size]
    model, x, autocast = made(recipe, formats)
    shape, block = Shape.of(recipe), model.blocks[0]
    input_BTD = torch.randn(len(x), shape.tokens, shape.dim, dtype=x.dtype, requires_grad=True)
    recomputed = kept_bytes(model, autocast, lambda: block(input_BTD))
    model.blocks = nn.ModuleList(map(AgainInBackward, model.blocks))
    found = recomputed + kept_bytes(model, autocast, lambda: F.mse_loss(model(x), torch.randn_like(x)))
    paper = of_step(shape, len(x), formats, checkpointing=True)
    one_block = dataclasses.replace(shape, depth=1).matrix_parameters * FORMATS[formats].low_copy
    assert 0.95 * found < paper.activations + one_block <= found
    assert paper.activations < of_step(shape, len(x), formats).activations


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_gradients_and_states_are_those_of_a_real_step(optimizer):
    recipe = dataclasses.replace(RECIPES["small"], optimizer=optimizer)
    model, x, _ = made(recipe, "fp32")
    stepper = make_optimizer(model, recipe)
    F.mse_loss(model(x), torch.randn_like(x)).backward()
    stepper.step()
    paper = of_step(Shape.of(recipe), len(x), optimizer=optimizer)
    states = [t for state in stepper.state.values() for t in state.values() if torch.is_tensor(t) and t.ndim]
    assert paper.weights == sum(p.nbytes for p in model.parameters())
    assert paper.gradients == sum(p.grad.nbytes for p in model.parameters())
    assert paper.optimizer == sum(t.nbytes for t in states)
    assert paper.master_weights == paper.low_copies == 0


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_sharding_gives_the_figures_of_its_paper(stage, gigabytes):
    """Rajbhandari et al. 2020, figure 1: 7.5 billion weights on 64 ranks, in 16 bits with Adam."""
    shape = Shape(dim=4096, depth=37, heads=32, tokens=1024, patch_values=1000)
    whole = of_step(shape, 1, "16-bit weights", ranks=64, stage=stage)
    state_bytes = (whole.total - whole.activations) * 7.5e9 / shape.parameters
    assert state_bytes / 1e9 == pytest.approx(gigabytes, abs=0.06)


def test_the_largest_batch_fits_and_one_more_does_not():
    shape = Shape.of(Recipe.of(PRESETS["gpu"]))
    for how in ({}, {"formats": "16-bit autocast", "checkpointing": True}, {"ranks": 8, "stage": 3}):
        most = largest_batch(16 * 2**30, shape, **how)
        assert of_step(shape, most, **how).total <= 16 * 2**30 < of_step(shape, most + 1, **how).total
    assert largest_batch(1e6, shape) == 0
