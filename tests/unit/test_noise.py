"""The noise scale against problems whose |G|² and tr(Σ) are known, and against every sample's own gradient."""

import math
import types

import numpy as np
import pytest
import torch
from chapter_code import written
from torch import nn

SIZE, SQUARED, SIGMA = 10, 4.0, 3.0  # weights, |G|², standard deviation of each component of a sample's gradient
TRACE = SIZE * SIGMA**2


class Survey(types.SimpleNamespace):
    def __len__(self):
        return len(self.x_train)


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(0)
    return Survey(x_train=torch.randn(256, 5), y_train=torch.randint(3, (256,)))


@pytest.fixture(scope="module")
def chapter(data):
    names = "solve", "noise_scale", "batch_gradients", "exact", "NoiseMeter"
    return types.SimpleNamespace(**written("13", *names, device="cpu", digits=data))


def drawn(b, B, steps, seed=0):
    """S and L of gradients with known mean and variance, one of each for every step."""
    rng = np.random.default_rng(seed)
    noise_SMN = rng.standard_normal((steps, B // b, SIZE))
    gradients_SMN = math.sqrt(SQUARED / SIZE) + SIGMA / math.sqrt(b) * noise_SMN
    return np.square(gradients_SMN).sum(2).mean(1), np.square(gradients_SMN.mean(1)).sum(1)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def gradient(model, x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize(("b", "B"), [(4, 8), (2, 64)])
def test_signal_and_trace_are_unbiased(chapter, b, B):
    estimates = chapter.solve(*drawn(b, B, 10_000), b, B)
    for values, truth in zip(estimates, (SQUARED, TRACE), strict=True):
        error = values.std() / math.sqrt(len(values))
        assert abs(values.mean() - truth) < 4 * error
        assert error < 0.2 * truth


def test_the_meter_averages_first_and_divides_last(chapter):
    meter = chapter.NoiseMeter(4, 8)
    for S, L in zip(*drawn(4, 8, 4_000), strict=True):
        meter.update(S, L)
    assert meter.noise_scale() == pytest.approx(TRACE / SQUARED, rel=0.15)


def test_equal_gradients_give_zero_and_a_negative_signal_gives_nan(chapter):
    meter = chapter.NoiseMeter(4, 8)
    meter.update(5.0, 5.0)
    assert meter.noise_scale() == 0
    meter.update(5.0, 1.0)
    assert math.isnan(meter.noise_scale())
    for signal in (-1.0, 0.0):
        assert math.isnan(chapter.noise_scale(signal, 5.0))


@pytest.mark.parametrize("size", [1, 16])
def test_each_batch_has_its_gradient(chapter, data, size):
    net, batches_MB = network(), torch.arange(48).flip(0).view(-1, size)
    rows = chapter.batch_gradients(net, data, batches_MB)
    for row, batch in zip(rows, batches_MB, strict=True):
        torch.testing.assert_close(row, gradient(net, data.x_train[batch], data.y_train[batch]), rtol=1e-4, atol=1e-6)


def test_exact_is_the_variance_over_samples(chapter, data):
    net = network()
    gradients_BN = torch.stack(
        [gradient(net, x[None], y[None]) for x, y in zip(data.x_train, data.y_train, strict=True)]
    )
    signal, trace = chapter.exact(net)
    assert trace == pytest.approx(gradients_BN.var(0, correction=0).sum().item(), rel=1e-4)
    assert signal == pytest.approx(gradients_BN.mean(0).square().sum().item(), rel=1e-3)
