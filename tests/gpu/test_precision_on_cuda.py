"""Precision on a GPU: bytes counted on paper, and the course's loss scaler beside torch's."""

import pytest
import torch
from torch.nn import functional as F

from dltutorial.config import Recipe
from dltutorial.profile import memory
from dltutorial.train.forecasting import make_vit
from dltutorial.train.loss_scaling import LossScaler
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


def test_our_scaler_decides_as_torchs_in_a_real_run():
    """From a scale far too large: both shrink it in the same updates, and end with the same weights."""
    recipe = Recipe(**SIZES)
    x, y = fields(recipe)

    def run(ours):
        torch.manual_seed(0)
        model = make_vit(recipe).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=False)
        scaler = LossScaler(2.0**40, interval=5) if ours else torch.amp.GradScaler("cuda", 2.0**40, growth_interval=5)
        scales = []
        for _ in range(30):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(model(x), y)
            if ours:
                scaler.backward(loss)
                scaler.step(optimizer)
                scales.append(scaler.scale)
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
        return scales, torch.cat([p.detach().flatten() for p in model.parameters()])

    (our_scales, our_weights), (scales, weights) = run(True), run(False)
    assert our_scales == scales
    assert min(scales) < 2.0**40
    assert torch.allclose(our_weights, weights, atol=1e-4)
