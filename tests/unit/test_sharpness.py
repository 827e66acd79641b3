"""Chapter 13's Hessian-vector products and Lanczos against the dense Hessian and torch's eigvalsh."""

import types

import pytest
import torch
from chapter_code import written
from torch import nn

FUNCTIONS = "flat", "gradient", "hessian_times", "lanczos", "loss_of", "loss_at"


@pytest.fixture
def chapter():
    torch.manual_seed(0)
    data = torch.randn(32, 5, dtype=torch.float64), torch.randint(3, (32,))
    return types.SimpleNamespace(**written("13", *FUNCTIONS, images=lambda survey: survey, digits=data))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def start(n, seed=1):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(chapter, net):
    return torch.stack([chapter.hessian_times(net, unit) for unit in torch.eye(57, dtype=torch.float64)])


def of_matrix(chapter, matrix):
    """The chapter's Lanczos on a matrix that is written out."""
    space = chapter.lanczos.__globals__
    space["hessian_times"] = lambda matrix, v_N, first=None: matrix @ v_N
    return lambda start_N, products: chapter.lanczos(matrix, start_N, products)


def symmetric(values, seed=0):
    torch.manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64))
    return turn @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ turn.T


def test_products_are_how_the_gradient_changes(chapter):
    net, v_N, small = network(), start(57), 1e-5
    w_N = chapter.flat(net.parameters()).detach()
    ahead, behind = network(), network()
    nn.utils.vector_to_parameters(w_N + small * v_N, ahead.parameters())
    nn.utils.vector_to_parameters(w_N - small * v_N, behind.parameters())
    slope = (chapter.gradient(ahead) - chapter.gradient(behind)) / (2 * small)
    torch.testing.assert_close(chapter.hessian_times(net, v_N), slope, rtol=1e-5, atol=1e-8)


def test_the_top_of_the_spectrum_is_that_of_the_dense_hessian(chapter):
    net = network()
    values, vectors = torch.linalg.eigh(dense(chapter, net))
    found, directions = chapter.lanczos(net, start(57), 50)
    torch.testing.assert_close(found[:4], values.flip(0)[:4], rtol=1e-8, atol=1e-10)
    overlap = (directions[:4] @ vectors.flip(1)[:, :4]).abs()
    torch.testing.assert_close(overlap, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-5)


def test_lanczos_needs_fewer_products_than_power_iteration(chapter):
    matrix = symmetric([*torch.linspace(0, 0.9, 98).tolist(), 0.97, 1.0])
    power_N = start(100)
    for _ in range(25):
        power_N = matrix @ power_N / power_N.norm()
    power = power_N @ matrix @ power_N / (power_N @ power_N)
    values, _ = of_matrix(chapter, matrix)(start(100), 25)
    assert abs(values[0] - 1) < 1e-4 < abs(power - 1)


def test_the_largest_is_not_that_of_largest_absolute_value(chapter):
    matrix = symmetric([-5.0, *torch.linspace(0, 1, 10).tolist(), 3.0])
    values, _ = of_matrix(chapter, matrix)(start(12), 12)
    assert values[0].item() == pytest.approx(3, rel=1e-5)
