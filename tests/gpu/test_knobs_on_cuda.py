"""Knobs on a GPU: in a CUDA graph a recipe trains as it does without one, and tensor cores run where they should."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # what chapter 04 writes, is tried here too
from chapters import written

from dltutorial import machine
from dltutorial.engine.forecasting import make_vit, squared_error
from dltutorial.engine.loop import loop
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.step import make_optimizer, make_step
from dltutorial.engine.task import Task
from dltutorial.profile import trace

pytestmark = pytest.mark.gpu

SMALL = {"n_lat": 32, "n_lon": 64, "dim": 64, "depth": 2, "heads": 2, "global_batch_size": 8, "device": "cuda"}
KNOBS = {"steps": 24, "warmup_steps": 2, "log_every": 6, "learning_rate": 1e-2}
TOLERANCE = {"fp32": 1e-4, "tf32": 3e-3, "bf16": 1e-2, "fp16": 3e-3}  # relative, to float32 without a graph
BEFORE_OVERFLOW = 12


def waves(recipe, overflow_at=None):
    generator = torch.Generator().manual_seed(0)
    for step in range(recipe.steps):
        x = torch.randn(recipe.global_batch_size, recipe.n_channels, 1, recipe.n_lon, generator=generator)
        x = x.expand(-1, -1, recipe.n_lat, -1)
        yield x, x.roll(1, -1) * (1e6 if step == overflow_at else 1)


def trained(overflow_at=None, **knobs):
    recipe = Recipe(**SMALL | KNOBS | knobs)
    torch.manual_seed(0)
    model = make_vit(recipe).to("cuda")
    return [
        seen.loss for seen in loop(Task(model, lambda skip: waves(recipe, overflow_at), squared_error), recipe)
    ], model


@pytest.fixture(autouse=True)
def _has_the_units(request):
    precision = request.node.callspec.params.get("precision") if hasattr(request.node, "callspec") else None
    units = machine.accelerators()[0].tensor_core_dtypes or ()
    if precision in ("tf32", "bf16") and precision not in units:
        pytest.skip(f"this GPU has no units for {precision}")


@pytest.fixture(scope="module")
def reference():
    found, _ = trained(optimizer_impl="for-loop", fused_attention=False)
    assert found[-1] < 0.9 * found[0]
    return found


@pytest.mark.parametrize(
    ("precision", "optimizer_impl", "fused_attention", "cuda_graph"),
    [
        ("fp32", "auto", False, False),
        ("fp32", "foreach", True, True),
        ("tf32", "for-loop", True, False),
        ("tf32", "fused", True, True),
        ("bf16", "fused", False, False),
        ("bf16", "foreach", True, True),
        ("fp16", "auto", True, False),
        ("fp16", "fused", True, True),
    ],
)
def test_every_knob_trains_to_the_same_loss(reference, precision, optimizer_impl, fused_attention, cuda_graph):
    found, _ = trained(
        precision=precision, optimizer_impl=optimizer_impl, fused_attention=fused_attention, cuda_graph=cuda_graph
    )
    assert found == pytest.approx(reference, rel=TOLERANCE[precision])


@pytest.mark.parametrize(
    ("precision", "compile", "cuda_graph"),
    [
        ("bf16", "default", False),
        ("bf16", "default", True),
        ("fp16", "default", True),
        ("bf16", "reduce-overhead", False),
    ],
)
def test_compiled_it_trains_to_the_same_loss(reference, precision, compile, cuda_graph):
    found, _ = trained(precision=precision, compile=compile, cuda_graph=cuda_graph, optimizer_impl="fused")
    assert found == pytest.approx(reference, rel=TOLERANCE[precision])


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_an_overflow_of_fp16_skips_one_update_in_a_graph_too(cuda_graph):
    """One batch overflows fp16's gradients, after capture; weights stay finite, and training goes on."""
    losses, model = trained(
        BEFORE_OVERFLOW, precision="fp16", optimizer_impl="fused", cuda_graph=cuda_graph, clip_norm=0.0
    )
    assert all(p.isfinite().all() for p in model.parameters())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_tensor_cores_run_where_the_precision_says(precision):
    recipe = Recipe(**SMALL | KNOBS | {"dim": 256, "precision": precision})
    model = make_vit(recipe).to("cuda")
    step = make_step(model, squared_error, make_optimizer(model, recipe), recipe)
    x, y = (t.cuda() for t in next(waves(recipe)))
    chapter = written("04", "on_tensor_cores", "products", "tensor_core_share")
    share = chapter["tensor_core_share"](chapter["products"](trace.take(lambda: step(x, y), steps=2)))
    if precision == "fp32":  # fused attention may use TF32 units in three passes; the large products do not
        assert share < 0.5
    else:
        assert share > 0.5  # on an H200 0.64 with tf32: attention and the narrow patches run elsewhere
