"""A recipe's precision, compilation, optimizer and attention train to the same loss."""

import pytest
import torch

from dltutorial.engine.forecasting import make_vit, squared_error
from dltutorial.engine.loop import loop
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.task import Task
from dltutorial.errors import RecipeError

SMALL = {"n_lat": 16, "n_lon": 32, "dim": 32, "depth": 1, "heads": 2, "global_batch_size": 4}
RECIPE = Recipe(**SMALL, steps=24, warmup_steps=2, log_every=6, learning_rate=1e-2)
# How far a loss may be from that of float32, relative: rounding to 2⁻⁸ in bf16, 2⁻¹¹ in fp16, of order alone in fp32.
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-3, "fp16": 2e-4}
OPTIMIZERS = ("auto", "for-loop", "foreach", "fused")
CHECKPOINTED = {"checkpoint_activations": True}

pytestmark = pytest.mark.usefixtures("one_thread")


def waves(recipe):
    """Rows that travel east by one grid point."""
    generator = torch.Generator().manual_seed(0)
    while True:
        x = torch.randn(recipe.global_batch_size, recipe.n_channels, 1, recipe.n_lon, generator=generator)
        x = x.expand(-1, -1, recipe.n_lat, -1)
        yield x, x.roll(1, -1)


def losses(**knobs):
    recipe = Recipe(**{**vars(RECIPE), **knobs})
    torch.manual_seed(0)
    return [seen.loss for seen in loop(Task(make_vit(recipe), lambda skip: waves(recipe), squared_error), recipe)]


def kept_bytes(**knobs):
    """The most that one backward pass finds of what the forward pass before it kept, weights apart."""
    recipe = Recipe(**{**vars(RECIPE), "steps": 2, "warmup_steps": 0, "depth": 6, **knobs})
    now, most = 0, 0

    def pack(tensor):
        nonlocal now, most
        now += 0 if tensor.untyped_storage().data_ptr() in weights else tensor.nbytes
        most = max(most, now)
        return tensor

    def forget(gradient):
        nonlocal now
        now = 0
        return gradient

    task = Task(make_vit(recipe), lambda skip: waves(recipe), squared_error)
    weights = {weight.untyped_storage().data_ptr() for weight in task.model.parameters()}
    task.model.embed.weight.register_hook(forget)  # the last to get its gradient
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        list(loop(task, recipe))
    return most


@pytest.fixture(scope="module")
def reference():
    found = losses(optimizer_impl="for-loop", fused_attention=False)
    assert found[-1] < 0.9 * found[0]  # a loss that stands still would agree with anything
    return found


@pytest.mark.parametrize(
    ("precision", "optimizer_impl", "fused_attention"),
    [("fp32", "auto", True), ("fp32", "foreach", False), ("bf16", "fused", True), ("fp16", "for-loop", True)],
)
def test_every_knob_trains_to_the_same_loss(reference, precision, optimizer_impl, fused_attention):
    found = losses(precision=precision, optimizer_impl=optimizer_impl, fused_attention=fused_attention)
    assert found == pytest.approx(reference, rel=TOLERANCE[precision])


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 1.0), ("lars", 0.2), ("lamb", 0.1)])
def test_every_optimizer_trains_alike_in_all_its_implementations(reference, optimizer, rate):
    kinds = OPTIMIZERS if optimizer == "sgd" else OPTIMIZERS[:3]
    found = [losses(optimizer=optimizer, learning_rate=rate, optimizer_impl=kind) for kind in kinds]
    assert found[0][-1] < 0.95 * found[0][0]
    assert found[0] != pytest.approx(reference, rel=1e-2)
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=TOLERANCE["fp32"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_saves_memory_trains_to_the_same_loss(reference, precision):
    found = losses(precision=precision, accumulate=2, **CHECKPOINTED)
    assert found == pytest.approx(reference, rel=TOLERANCE[precision])


def test_what_saves_memory_keeps_less(reference):
    """Of what the forward pass hands to the backward pass, in bytes at a time."""
    whole, again, parts = (kept_bytes(**knobs) for knobs in ({}, CHECKPOINTED, {"accumulate": 4}))
    assert again < 0.6 * whole and parts < 0.3 * whole


def test_low_precision_is_really_used(reference):
    """Rounding must show, or the combinations above compare float32 with itself."""
    for precision in ("bf16", "fp16"):
        assert losses(precision=precision) != pytest.approx(reference, rel=1e-7)


@pytest.mark.parametrize(
    "knobs",
    [
        {"cuda_graph": True, "compile": "reduce-overhead"},
        {"cuda_graph": True, "precision": "fp16"},
        {"precision": "fp8"},
        {"optimizer": "adagrad"},
        {"optimizer": "lamb", "optimizer_impl": "fused"},
        {"optimizer": "sgd", "cuda_graph": True},
    ],
    ids=str,
)
def test_what_cannot_be_combined_is_refused_in_one_line(knobs):
    with pytest.raises(RecipeError, match=r"^recipe: .*; change it$"):
        Recipe(**knobs)
