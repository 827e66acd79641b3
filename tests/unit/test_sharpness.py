"""Lanczos against the dense Hessian and torch's eigvalsh; slices against the loss itself."""

import numpy as np
import pytest
import torch
from torch import nn

from dltutorial.convergence.objective import Objective
from dltutorial.convergence.sharpness import across, along, lanczos, sharpness
from dltutorial.errors import CourseError


def objective(dtype=torch.float64, chunk=10, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)).to(dtype)
    model[0].bias.requires_grad_(False)
    return Objective(model, torch.randn(32, 5, dtype=dtype), torch.randint(3, (32,)), chunk=chunk)


def dense(of):
    whole = lambda w_N: of._mean_loss(w_N, of.x, of.y)  # noqa: E731
    return torch.autograd.functional.hessian(whole, of.weights_N)


def symmetric(values, seed=0):
    torch.manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64))
    return turn @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ turn.T


def start(n, seed=1):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_value_gradient_and_hessian_are_those_of_the_whole_in_any_pieces():
    whole, pieces = objective(chunk=1000), objective(chunk=7)
    loss = nn.functional.cross_entropy(whole._model(whole.x), whole.y)
    trained = [p for p in whole._model.parameters() if p.requires_grad]
    gradient_N = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])
    vector_N = start(whole.n_weights)
    for of in (whole, pieces):
        assert of.value() == pytest.approx(loss.item(), rel=1e-12)
        torch.testing.assert_close(of.gradient(), gradient_N)
        torch.testing.assert_close(of.hessian_times(vector_N), dense(whole) @ vector_N)


def test_the_objective_does_not_follow_the_model_that_trains_on():
    model = nn.Linear(2, 2)
    of = Objective(model, torch.ones(4, 2), torch.zeros(4, dtype=torch.long))
    before = of.value()
    with torch.no_grad():
        model.weight.add_(1.0)
        model.bias.sub_(torch.tensor([1.0, 0.0]))
    assert of.value() == before
    assert model.training


def test_the_top_of_the_spectrum_is_that_of_the_dense_hessian():
    of = objective()
    values, vectors = torch.linalg.eigh(dense(of))
    found = sharpness(of, k=4, iterations=60, tolerance=1e-9)
    torch.testing.assert_close(found.values_K, values.flip(0)[:4], rtol=1e-8, atol=1e-10)
    overlap = (found.vectors_KN @ vectors.flip(1)[:, :4]).abs()
    torch.testing.assert_close(overlap, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-5)
    assert found.residuals_K.max() < 1e-7


def test_float32_is_good_to_a_thousandth():
    exact = torch.linalg.eigvalsh(dense(objective()))[-1]
    single = objective(torch.float32)
    single.weights_N.copy_(objective().weights_N)
    single.x, single.y = objective().x.float(), objective().y
    assert float(sharpness(single).values_K[0]) == pytest.approx(float(exact), rel=1e-3)


def test_an_eigenvalue_lies_within_the_residual():
    matrix = symmetric(np.linspace(-1, 3, 40))
    found = lanczos(lambda v_N: matrix @ v_N, start(40), iterations=6, k=2)
    for value, residual in zip(found.values_K, found.residuals_K, strict=True):
        assert (torch.linalg.eigvalsh(matrix) - value).abs().min() <= residual


def test_lanczos_needs_fewer_products_than_power_iteration():
    matrix = symmetric([*np.linspace(0, 0.9, 98), 0.97, 1.0])
    power_N = start(100)
    for _ in range(25):
        power_N = matrix @ power_N / power_N.norm()
    power = power_N @ matrix @ power_N / (power_N @ power_N)
    found = lanczos(lambda v_N: matrix @ v_N, start(100), 25, tolerance=1e-9)
    assert abs(found.values_K[0] - 1) < 1e-4 < abs(power - 1)


def test_the_largest_is_not_that_of_largest_absolute_value():
    matrix = symmetric([-5.0, *np.linspace(0, 1, 10), 3.0])
    assert float(lanczos(lambda v: matrix @ v, start(12), 12).values_K[0]) == pytest.approx(3, rel=1e-5)


@pytest.mark.parametrize(
    ("values", "k", "expected"),
    [([2.0] * 6, 3, [2, 2, 2]), ([5.0, 5, 1, 1, 0, 0], 3, [5, 5, 1]), ([0.0] * 4, 2, [0, 0]), ([7.0], 1, [7])],
)
def test_repeated_and_zero_eigenvalues_are_found_as_often_as_they_are_there(values, k, expected):
    matrix = symmetric(values)
    found = lanczos(lambda v_N: matrix @ v_N, start(len(values)), 50, k, tolerance=0)
    torch.testing.assert_close(found.values_K, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)
    assert found.residuals_K.max() < 1e-9


def test_a_slice_along_an_eigenvector_bends_as_the_eigenvalue_says():
    of = objective()
    top = sharpness(of, iterations=60, tolerance=1e-9)
    cut = along(of, 10 * top.vectors_KN[0], reach=0.01, points=5)
    np.testing.assert_allclose(cut.distance_A, [-0.01, -0.005, 0, 0.005, 0.01])
    np.testing.assert_allclose(cut.loss_A, cut.predicted_A, rtol=1e-5)
    bend = (cut.loss_A[0] - 2 * cut.loss_A[2] + cut.loss_A[-1]) / 0.01**2
    assert bend == pytest.approx(float(top.values_K[0]), rel=1e-3)


def test_a_grid_holds_the_slices_in_its_middle():
    of = objective()
    top = sharpness(of, k=2, iterations=60)
    distance_A, loss_AA = across(of, top.vectors_KN, 0.5, points=5)
    for direction_N, middle in zip(top.vectors_KN, (loss_AA[:, 2], loss_AA[2]), strict=True):
        cut = along(of, direction_N, 0.5, points=5)
        np.testing.assert_allclose(middle, cut.loss_A)
        np.testing.assert_allclose(distance_A, cut.distance_A)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: Objective(nn.Linear(2, 2), torch.ones(3, 2), torch.ones(2)), "3 samples and 2 targets"),
        (lambda: Objective(nn.Linear(2, 2), torch.ones(0, 2), torch.ones(0)), "0 samples"),
        (lambda: Objective(nn.Flatten(), torch.ones(1, 2), torch.ones(1)), "to be trained"),
        (lambda: lanczos(torch.clone, start(3), 10, k=4), "k=4 eigenvalues of a matrix of 3"),
        (lambda: lanczos(torch.clone, start(3), 1, k=2), "iterations=1"),
        (lambda: along(objective(), torch.ones(objective().n_weights), 1.0, 4), "take an odd number"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(call, why):
    with pytest.raises(CourseError, match=why):
        call()
