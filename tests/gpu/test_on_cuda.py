"""What needs a CUDA device: `pytest -m gpu`. Elsewhere these tests are skipped, and say so."""

import pytest
import torch
from torch.nn import functional as F

from dltutorial.data import dynamics
from dltutorial.data.flow import atmosphere
from dltutorial.models.vit import ViT

pytestmark = pytest.mark.gpu


def losses(model, n_steps, batch_size, device):
    """Losses of a model that learns to forecast waves that travel east by one grid point."""
    generator = torch.Generator().manual_seed(0)
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    values = []
    for _ in range(n_steps):
        channels, height, width = model.embed.in_channels, 2 * model.patch, 4 * model.patch
        x_BCHW = torch.randn(batch_size, channels, 1, width, generator=generator).expand(-1, -1, height, -1).to(device)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x_BCHW), x_BCHW.roll(1, -1))
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def test_losses_are_those_of_the_cpu():
    def of_device(device):
        torch.manual_seed(0)
        return losses(ViT(5, 16, 32, dim=32, depth=2, heads=4), 20, 16, device)

    assert of_device("cuda") == pytest.approx(of_device("cpu"), rel=1e-3)


def test_the_published_model_makes_a_step():
    model = ViT(20, 360, 720).to("cuda")
    x_BCHW = torch.randn(2, 20, 360, 720, device="cuda")
    F.mse_loss(model(x_BCHW), x_BCHW.roll(1, -1)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


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
