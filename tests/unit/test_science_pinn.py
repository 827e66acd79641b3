"""The pinn's case: the equation's solution, derivatives carried forward, data that are the same again, refusals."""

import itertools
import shutil

import h5py
import pytest
import torch

from dltutorial.config import PRESETS
from dltutorial.errors import DataError
from dltutorial.science import cases, pinn


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pinn")
    pinn._make(cases.Simulated(60, 20, kind="watched"), folder)
    return folder


@pytest.fixture
def folder(simulated, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(simulated, tmp_path / "data")


def recipe(**knobs):
    small = {"task": "pinn", "samples": 60, "global_batch_size": 12, "device": "cpu", "dim": 8, "depth": 2}
    return pinn.make_recipe(PRESETS["smoke"], small | knobs, None)


def test_it_settles_to_the_known_profile():
    x = torch.linspace(0, 1, 201, dtype=torch.float64)
    known = torch.expm1(5 * x) / torch.expm1(torch.tensor(5.0, dtype=torch.float64))
    assert torch.allclose(pinn.solve(1.0, 0.2, torch.tensor([20.0]))[0], known, atol=1e-4)


def test_settled_observations_know_the_ratio_alone():
    times = torch.tensor([20.0])
    assert torch.allclose(pinn.solve(1.0, 0.2, times), pinn.solve(3.0, 0.6, times), atol=1e-6)
    assert not torch.allclose(pinn.solve(1.0, 0.2, times / 200), pinn.solve(3.0, 0.6, times / 200), atol=1e-2)


def test_derivatives_carried_forward_are_those_of_autograd():
    torch.manual_seed(0)
    model, points = pinn.Pinn(0.5, 0.25, 8, 3).double(), torch.rand(7, 2).double().requires_grad_()
    c, residual, (a, b) = model(points)
    (slope,) = torch.autograd.grad(c.sum(), points, create_graph=True)
    (second,) = torch.autograd.grad(slope[:, 0].sum(), points)
    assert torch.allclose(residual, slope[:, 1] + a * slope[:, 0] - b * second[:, 0], rtol=1e-5, atol=1e-5)


def test_the_points_inside_are_those_of_the_seed_and_lie_inside(folder):
    task = pinn.make_task(recipe(), folder)
    (points, c, inside), (_, _, again) = (next(iter(task.data(0))) for _ in range(2))
    assert points.shape == inside.shape == (12, 2) and c.shape == (12,)
    assert torch.equal(inside, again)
    assert (inside >= 0).all() and (inside <= torch.tensor([1.0, pinn.LASTS])).all()


def test_the_scores_name_the_constants_and_their_errors_where_they_are_known(folder):
    task = pinn.make_task(recipe(), folder)
    assert task.metrics(task.model)["valid/a"] == pytest.approx(0.5)
    assert task.metrics(task.model)["valid/b_error"] == pytest.approx(1.5)
    with h5py.File(folder / "train.h5", "r+") as data:
        del data.attrs["a"], data.attrs["b"]
    assert "valid/a_error" not in pinn.make_task(recipe(), folder).metrics(task.model)


def test_a_resumed_run_gets_the_batches_that_it_would_have_got(folder):
    task = pinn.make_task(recipe(), folder)
    third = list(itertools.islice(task.data(0), 3))[-1]
    assert all(torch.equal(one, other) for one, other in zip(next(iter(task.data(2))), third, strict=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data["c"].__setitem__(3, float("nan")), "row 3 of c holds NaN"),
        (lambda data: data["points"].__setitem__((slice(None), 1), 2.0), "at one x or one t"),
        (lambda data: data.__delitem__("points"), "train.h5 has no dataset .points."),
    ],
    ids=["nan", "one time", "missing"],
)
def test_observations_that_cannot_be_are_refused(folder, change, said):
    with h5py.File(folder / "train.h5", "r+") as data:
        change(data)
    with pytest.raises(DataError, match=said) as refusal:
        pinn.make_task(recipe(), folder)
    assert "\n" not in str(refusal.value)
