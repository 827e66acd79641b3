"""Chapter 13's Hessian-vector products, power iteration and Lanczos against the dense Hessian and torch's eigvalsh."""

import types

import pytest
import torch
from chapter_code import written
from torch import nn

CORE = "hessian_times", "sharpness", "training_loss"
FURTHER = "gradient", "hessian_times", "lanczos", "downhill_eigenvectors"


def data():
    torch.manual_seed(0)
    return {"x_digits": torch.randn(32, 5, dtype=torch.float64), "y_digits": torch.randint(3, (32,))}


@pytest.fixture
def core():
    return types.SimpleNamespace(**written("13", *CORE, seed=0, device="cpu", **data()))


@pytest.fixture
def further():
    return types.SimpleNamespace(**written("further/13", *FURTHER, start_N=start(57), **data()))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def start(n, seed=1):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(hessian_times, net):
    return torch.stack([hessian_times(net, unit) for unit in torch.eye(57, dtype=torch.float64)])


def of_matrix(further, matrix):
    """The notebook's Lanczos on a given matrix."""
    space = further.lanczos.__globals__
    space["hessian_times"] = lambda matrix, v_N: matrix @ v_N
    return lambda start_N, n_products: further.lanczos(matrix, start_N, n_products)


def symmetric(values, seed=0):
    torch.manual_seed(seed)
    rotation, _ = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64))
    return rotation @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ rotation.T


def test_products_are_how_the_gradient_changes(core, further):
    net, v_N, small = network(), start(57), 1e-5
    w_N = nn.utils.parameters_to_vector(net.parameters()).detach()
    ahead, behind = network(), network()
    nn.utils.vector_to_parameters(w_N + small * v_N, ahead.parameters())
    nn.utils.vector_to_parameters(w_N - small * v_N, behind.parameters())
    change = (further.gradient(ahead) - further.gradient(behind)) / (2 * small)
    torch.testing.assert_close(core.hessian_times(net, v_N), change, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(further.hessian_times(net, v_N), change, rtol=1e-5, atol=1e-8)


def test_power_iteration_finds_the_eigenvalue_of_largest_absolute_value(core):
    net = network().float()
    space = core.sharpness.__globals__
    space["x_digits"] = space["x_digits"].float()
    values = torch.linalg.eigvalsh(torch.stack([core.hessian_times(net, unit) for unit in torch.eye(57)]))
    expected = values[values.abs().argmax()].item()
    assert core.sharpness(net, 500) == pytest.approx(expected, rel=1e-3)


def test_lanczos_finds_the_largest_eigenvalues_of_the_dense_hessian(further):
    net = network()
    values, vectors = torch.linalg.eigh(dense(further.hessian_times, net))
    found, directions = further.lanczos(net, start(57), 50)
    torch.testing.assert_close(found[:4], values.flip(0)[:4], rtol=1e-8, atol=1e-10)
    overlap = (directions[:4] @ vectors.flip(1)[:, :4]).abs()
    torch.testing.assert_close(overlap, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-5)


def test_the_loss_falls_along_both_eigenvectors(further):
    net = network()
    assert (further.downhill_eigenvectors(net) @ further.gradient(net) < 0).all()


def test_lanczos_returns_the_largest_eigenvalue_and_not_that_of_largest_absolute_value(further):
    matrix = symmetric([-5.0, *torch.linspace(0, 1, 10).tolist(), 3.0])
    values, _ = of_matrix(further, matrix)(start(12), 12)
    assert values[0].item() == pytest.approx(3, rel=1e-5)
