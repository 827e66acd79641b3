"""The surrogate's case: the simulation is right, its data are the same again, and bad data are refused in one line."""

import itertools
import shutil

import h5py
import pytest
import torch

from dltutorial.config import PRESETS
from dltutorial.errors import DataError
from dltutorial.science import cases, surrogate

MIDDLE = torch.full((1, 4), 0.5)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("surrogate")
    surrogate._make(cases.Simulated(60, n_valid=20), folder)
    return folder


@pytest.fixture
def folder(simulated, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(simulated, tmp_path / "data")


def recipe(**knobs):
    small = {"task": "surrogate", "samples": 60, "global_batch_size": 12, "device": "cpu", "dim": 8, "depth": 1}
    return surrogate.make_recipe(PRESETS["smoke"], small | knobs, None)


def test_the_cosines_are_orthogonal():
    table = surrogate.cosines(32)
    assert torch.allclose(table @ table.T, torch.eye(32), atol=1e-5)


def test_without_growth_the_drop_decays_as_the_death_rate_says():
    """Growth cannot be 0 on a logarithmic scale, but far enough below: mass then falls as exp(-m t)."""
    setting = torch.tensor([[0.5, 0.5, -20.0, 0.0]])
    x = surrogate.points(64)
    before, after = torch.exp(-((x / 0.1) ** 2)).mean(), surrogate.simulate(setting).mean()
    assert after / before == pytest.approx(2.718281828**-1, rel=1e-3)


def test_half_the_step_errs_a_quarter():
    right = surrogate.simulate(MIDDLE, n_steps=1600)
    errors = [(surrogate.simulate(MIDDLE, n_steps=n) - right).norm() for n in (100, 200)]
    assert 3 < errors[0] / errors[1] < 6


def test_a_run_does_not_depend_on_its_neighbours():
    settings = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(surrogate.simulate(settings)[3:4], surrogate.simulate(settings[3:4]), atol=1e-5)


def test_the_same_plan_gives_the_same_runs(folder, tmp_path):
    (again := tmp_path / "again").mkdir()
    surrogate._make(cases.Simulated(60, n_valid=20), again)
    shapes = {"settings": "NP", "tensor": "NX"}
    both = (cases.arrays(place / "train.h5", **shapes) for place in (folder, again))
    for one, other in zip(*both, strict=True):
        assert (one == other).all()


def test_the_model_of_preset_gpu_has_so_many_parameters():
    with torch.device("meta"):
        model = surrogate.Surrogate(dim=1024, depth=6)
    counted = sum(p.numel() for p in model.parameters())
    assert counted == 5 * 1024 + 6 * (2 * 1024 + 2 * (1024**2 + 1024)) + 1025 * 64


def test_the_loss_is_the_mean_over_runs_and_points_and_the_scores_know_the_mean(folder):
    task = surrogate.make_task(recipe(), folder)
    settings, profiles = next(iter(task.data(0)))
    assert settings.shape == (12, 4) and profiles.shape == (12, 64)
    by_hand = ((task.model(settings) - profiles) ** 2).mean()
    assert torch.allclose(task.loss(task.model, settings, profiles), by_hand)
    scores = task.metrics(task.model)
    assert scores[surrogate.SCORE] > 0 and scores["valid/rmse_ratio_to_mean"] > 0


def test_a_resumed_run_gets_the_batches_that_it_would_have_got(folder):
    task = surrogate.make_task(recipe(), folder)
    third = list(itertools.islice(task.data(0), 3))[-1]
    assert all(torch.equal(one, other) for one, other in zip(next(iter(task.data(2))), third, strict=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda data: data["tensor"].__setitem__((3, 5), float("nan")),
            "row 3 of tensor holds NaN or infinity",
        ),
        (lambda data: data["settings"].__setitem__((0, 0), 1.5), "scale them to 0"),
        (lambda data: data.__delitem__("settings"), "train.h5 has no dataset .settings."),
    ],
    ids=["nan", "unscaled", "missing"],
)
def test_runs_that_cannot_be_are_refused(folder, change, said):
    with h5py.File(folder / "train.h5", "r+") as data:
        change(data)
    with pytest.raises(DataError, match=said) as refusal:
        surrogate.make_task(recipe(), folder)
    assert "\n" not in str(refusal.value)
