"""The simulations of chapter 23: bacteria in a dish, and a solute in a channel."""

import math

import pytest
import torch

from dltutorial.science import advection_diffusion, surrogate

MIDDLE = torch.full((1, 4), 0.5)


def test_the_cosines_are_orthogonal():
    table = surrogate.cosines(32)
    assert torch.allclose(table @ table.T, torch.eye(32), atol=1e-5)


def test_without_growth_the_drop_decays_with_the_death_rate():
    """Growth cannot be 0 on a logarithmic scale. Far below its range the mass decreases as exp(-m t)."""
    setting = torch.tensor([[0.5, 0.5, -20.0, 0.0]])
    before = torch.exp(-((surrogate.points(64) / 0.1) ** 2)).mean()
    assert surrogate.simulate(setting).mean() / before == pytest.approx(math.exp(-1), rel=1e-3)


def test_half_the_step_has_a_quarter_of_the_error():
    right = surrogate.simulate(MIDDLE, n_steps=1600)
    errors = [(surrogate.simulate(MIDDLE, n_steps=n) - right).norm() for n in (100, 200)]
    assert 3 < errors[0] / errors[1] < 6


def test_the_solute_settles_to_the_known_profile():
    x = torch.linspace(0, 1, 201, dtype=torch.float64)
    known = torch.expm1(5 * x) / math.expm1(5.0)
    assert torch.allclose(advection_diffusion.solve(1.0, 0.2, torch.tensor([20.0]))[0], known, atol=1e-4)


def test_settled_observations_depend_on_the_ratio_only():
    solve, times = advection_diffusion.solve, torch.tensor([20.0])
    assert torch.allclose(solve(1.0, 0.2, times), solve(3.0, 0.6, times), atol=1e-6)
    assert not torch.allclose(solve(1.0, 0.2, times / 200), solve(3.0, 0.6, times / 200), atol=1e-2)
