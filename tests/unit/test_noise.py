"""The noise scale against problems whose |G|² and tr(Σ) are known, and against every sample's own gradient."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dltutorial.convergence import noise
from dltutorial.convergence.noise import half_batches
from dltutorial.convergence.objective import Objective
from dltutorial.errors import CourseError

SIZE, SQUARED, SIGMA = 10, 4.0, 3.0  # weights, |G|², standard deviation of each part of a sample's gradient
TRACE = SIZE * SIGMA**2


def drawn(small, large, steps, seed=0):
    """Squared lengths of gradients of known mean and variance: (mean over the small batches, large)."""
    rng = np.random.default_rng(seed)
    exact = np.full(SIZE, math.sqrt(SQUARED / SIZE))
    batches = exact + SIGMA / math.sqrt(small) * rng.standard_normal((steps, large // small, SIZE))
    return (batches**2).sum(2).mean(1), (batches.mean(1) ** 2).sum(1)


def model_and_data(n_samples=64, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    return model, torch.randn(n_samples, 5), torch.randint(3, (n_samples,))


@pytest.mark.parametrize(("small", "large"), [(1, 2), (4, 8), (2, 64)])
def test_both_parts_are_unbiased(small, large):
    found = noise.two_batches(*drawn(small, large, 50_000), small, large)
    for values, truth in zip(found, (SQUARED, TRACE), strict=True):
        error = values.std() / math.sqrt(len(values))
        assert abs(values.mean() - truth) < 4 * error
        assert error < 0.1 * truth


def test_the_large_batchs_own_length_is_too_large():
    _, large = drawn(4, 8, 20_000)
    assert large.mean() == pytest.approx(SQUARED + TRACE / 8, rel=0.03)


def test_means_first_gives_the_scale_and_the_mean_of_ratios_does_not():
    found = noise.Estimates(*noise.two_batches(*drawn(4, 8, 2_000), 4, 8))
    assert found.scale == pytest.approx(TRACE / SQUARED, rel=0.15)
    assert abs(np.nanmean(found.raw) / (TRACE / SQUARED) - 1) > 0.3
    assert np.isnan(found.raw).any()
    low, high = found.spread()
    assert low < TRACE / SQUARED < high < 2 * low


def test_numbers_arrays_and_tensors_give_the_same():
    numbers = noise.two_batches(5.0, 3.0, 2, 8)
    assert numbers == pytest.approx(((24 - 10) / 6, 2 / (1 / 2 - 1 / 8)))
    for kind in (np.array, torch.tensor):
        both = noise.two_batches(kind([5.0, 5.0]), kind([3.0, 3.0]), 2, 8)
        assert [float(part[1]) for part in both] == pytest.approx(numbers)


def test_what_cannot_be_told_is_nan_and_not_clipped():
    assert math.isnan(noise.scale(-1.0, 5.0))
    assert math.isnan(noise.scale(1.0, -5.0))
    assert math.isnan(noise.scale(0.0, 5.0))
    found = noise.Estimates(np.array([-3.0, 1.0]), np.array([2.0, 2.0]))
    assert math.isnan(found.scale)
    assert found.spread() == (pytest.approx(2.0), math.inf)


def test_the_running_mean_is_right_from_the_first_step_and_keeps_tensors():
    running = noise.Running(0.9)
    assert math.isnan(running.scale)
    for _ in range(3):
        running.update(torch.tensor(2.0), 6.0)
        assert running.scale == pytest.approx(3)
    running.update(4.0, 6.0)
    weights = np.array([0.1 * 0.9**age for age in range(4)])
    assert running.scale == pytest.approx(6 / ((weights * [4, 2, 2, 2]).sum() / weights.sum()))


def test_exact_is_the_variance_over_samples():
    model, x, y = model_and_data()
    objective = Objective(model, x, y, chunk=48)
    gradients = []
    for one_x, one_y in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(one_x[None]), one_y[None])
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    gradients_BN = torch.stack(gradients).double()
    trace = gradients_BN.var(0).sum()
    squared, found = noise.exact(objective)
    assert found == pytest.approx(float(trace), rel=1e-5)
    assert squared == pytest.approx(float(gradients_BN.mean(0).square().sum() - trace / len(x)), rel=1e-4)


def test_measured_from_batches_of_a_finite_set_agrees_with_exact():
    model, x, y = model_and_data(256)
    objective = Objective(model, x, y)
    squared, trace = noise.exact(objective)
    found = noise.measure(objective, small=4, large=64, draws=400)
    for values, truth in ((found.squared, squared), (found.trace, trace)):
        assert abs(values.mean() - truth) < 4 * values.std() / math.sqrt(len(values))


def test_batches_of_bfloat16_gradients_keep_their_length():
    parts = [torch.full((1000,), 3.0, dtype=torch.bfloat16), torch.ones(7, dtype=torch.float64)]
    assert float(noise.squared_length(parts)) == pytest.approx(9007, rel=1e-5)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: noise.two_batches(1.0, 1.0, 8, 8), "batches of 8 and 8 samples"),
        (lambda: noise.two_batches(1.0, 1.0, 64, 8), "the first must be smaller"),
        (lambda: noise.measure(Objective(*model_and_data()), 3, 8, 1), "does not work out"),
        (lambda: noise.measure(Objective(*model_and_data()), 4, 128, 1), "from 64 samples"),
        (lambda: noise.exact(Objective(*model_and_data(1))), "batches of 1 and 1"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(call, why):
    with pytest.raises(CourseError, match=why):
        call()


def test_two_halves_leave_the_gradient_of_the_whole():
    model, x, y = model_and_data()
    small, large = half_batches(model, x, y)
    found = [p.grad.clone() for p in model.parameters()]
    halves = []
    for part in (slice(0, 32), slice(32, 64), slice(0, 64)):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        halves.append(float(noise.squared_length(p.grad for p in model.parameters())))
    for one, other in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)
    assert float(small) == pytest.approx(sum(halves[:2]) / 2, rel=1e-5)
    assert float(large) == pytest.approx(halves[2], rel=1e-5)
