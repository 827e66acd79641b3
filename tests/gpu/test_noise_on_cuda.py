"""Noise scale and sharpness on a GPU: as on the CPU."""

import pytest
import torch
from chapter_code import written
from torch import nn

pytestmark = pytest.mark.gpu
FUNCTIONS = (
    "flat", "gradient", "hessian_times", "lanczos", "batch_gradients", "exact_pair", "signal_and_noise", "measure",
    "noisy_step",
)  # fmt: skip


def problem(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    x, y = torch.randn(256, 8, dtype=torch.float64), torch.randint(3, (256,))
    return model.to(device), x.to(device), y.to(device)


def found(device):
    model, x, y = problem(device)
    chapter = written("13", *FUNCTIONS, images=lambda survey: survey, digits=(x, y))
    yield from chapter["exact_pair"](model, x, y)
    yield from chapter["measure"](model, (x, y), 8, 64, 20, 0).ravel().tolist()
    start_N = torch.ones(sum(p.numel() for p in model.parameters()), dtype=torch.float64, device=device)
    yield from chapter["lanczos"](model, start_N, 40)[0][:2].tolist()
    yield from chapter["noisy_step"](model, torch.optim.SGD(model.parameters(), lr=0.1), x, y).tolist()


def test_noise_and_sharpness_are_those_of_the_cpu():
    assert list(found("cuda")) == pytest.approx(list(found("cpu")), rel=1e-6)
