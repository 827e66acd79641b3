"""Noise scale and sharpness on a GPU: as on the CPU."""

import types

import pytest
import torch
from chapter_code import written
from torch import nn

pytestmark = pytest.mark.gpu
FUNCTIONS = (
    "batch_gradients", "random_batches", "squares", "solve", "exact", "hessian_times", "NoiseMeter", "square",
)  # fmt: skip


class Survey(types.SimpleNamespace):
    def __len__(self):
        return len(self.x_train)


def problem(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    x, y = torch.randn(256, 8, dtype=torch.float64), torch.randint(3, (256,))
    return model.to(device), Survey(x_train=x, y_train=y)


def results(device):
    model, survey = problem(device)
    x, y = survey.x_train.to(device), survey.y_train.to(device)
    generator = torch.Generator().manual_seed(0)
    chapter = written("13", *FUNCTIONS, device=device, rng=generator, digits=survey, x_digits=x, y_digits=y)
    yield from chapter["exact"](model)
    S_D, L_D = chapter["squares"](model, survey, 8, 64, 20)
    yield from S_D.tolist()
    yield from L_D.tolist()
    v_N = torch.ones(sum(p.numel() for p in model.parameters()), dtype=torch.float64, device=device)
    yield from chapter["hessian_times"](model, v_N)[:5].tolist()
    meter = chapter["NoiseMeter"](8, 64)
    meter.update(S_D.sum(), L_D.sum())
    yield meter.noise_scale()


def test_noise_and_sharpness_are_those_of_the_cpu():
    assert list(results("cuda")) == pytest.approx(list(results("cpu")), rel=1e-6)
