"""The noise scale against problems whose |G|² and tr(Σ) are known, and against every sample's own gradient."""

import math

import numpy as np
import pytest
import torch
from chapter_code import written
from torch import nn

SIZE, SQUARED, SIGMA = 10, 4.0, 3.0  # weights, |G|², standard deviation of each part of a sample's gradient
TRACE = SIZE * SIGMA**2


@pytest.fixture(scope="module")
def chapter():
    names = "scale", "signal_and_noise", "measure", "flat", "noisy_step", "naive_scale", "batch_gradients", "exact_pair"
    return written("13", *names, images=lambda survey: survey)


def drawn(small, large, steps, seed=0):
    """Gradients of small batches, of known mean and variance: (steps, small batches of a large one, weights)."""
    rng = np.random.default_rng(seed)
    noise_SMN = rng.standard_normal((steps, large // small, SIZE))
    return torch.from_numpy(math.sqrt(SQUARED / SIZE) + SIGMA / math.sqrt(small) * noise_SMN)


def estimates(chapter, gradients_SMN, small):
    """|G|² and tr(Σ) of every step."""
    return torch.stack([chapter["signal_and_noise"](g_MN, small) for g_MN in gradients_SMN]).T.numpy()


def model_and_data(n_samples=64, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    return model, torch.randn(n_samples, 5), torch.randint(3, (n_samples,))


def gradient(model, x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize(("small", "large"), [(4, 8), (2, 64)])
def test_both_parts_of_the_chapter_s_estimate_are_unbiased(chapter, small, large):
    found = estimates(chapter, drawn(small, large, 10_000), small)
    for values, truth in zip(found, (SQUARED, TRACE), strict=True):
        error = values.std() / math.sqrt(len(values))
        assert abs(values.mean() - truth) < 4 * error
        assert error < 0.2 * truth


def test_means_first_gives_the_scale_and_the_mean_of_ratios_does_not(chapter):
    steps = estimates(chapter, drawn(4, 8, 2_000), 4)
    assert chapter["scale"](*steps) == pytest.approx(TRACE / SQUARED, rel=0.15)
    raw = [chapter["scale"](*step) for step in zip(*steps, strict=True)]
    assert abs(np.nanmean(raw) / (TRACE / SQUARED) - 1) > 0.3
    assert np.isnan(raw).any()


def test_what_cannot_be_told_is_nan_and_not_clipped(chapter):
    for squared, trace in ((-1.0, 5.0), (1.0, -5.0), (0.0, 5.0), (np.array([-3.0, 1.0]), np.array([2.0, 2.0]))):
        assert math.isnan(chapter["scale"](squared, trace))


@pytest.mark.parametrize("size", [1, 16])
def test_each_batch_has_its_gradient(chapter, size):
    model, x, y = model_and_data()
    pick = torch.arange(48).flip(0)
    rows = chapter["batch_gradients"](model, x, y, pick, size)
    assert rows.dtype == torch.float32
    for row, batch in zip(rows, pick.split(size), strict=True):
        torch.testing.assert_close(row.float(), gradient(model, x[batch], y[batch]), rtol=1e-4, atol=1e-6)


def test_exact_is_the_variance_over_samples(chapter):
    model, x, y = model_and_data(600)
    gradients_BN = torch.stack([gradient(model, x[n : n + 1], y[n : n + 1]) for n in range(600)]).double()
    trace = gradients_BN.var(0).sum()
    squared, found = chapter["exact_pair"](model, x, y)
    assert found == pytest.approx(float(trace), rel=1e-5)
    assert squared == pytest.approx(float(gradients_BN.mean(0).square().sum() - trace / len(x)), rel=1e-4)


def test_the_chapter_s_measure_on_a_finite_set_agrees_with_exact(chapter):
    model, x, y = model_and_data(256)
    for values, truth in zip(
        chapter["measure"](model, (x, y), 4, 64, 400, 0), chapter["exact_pair"](model, x, y), strict=True
    ):
        assert abs(values.mean() - truth) < 4 * values.std() / math.sqrt(len(values))
