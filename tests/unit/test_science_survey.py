"""The case survey: views, the loss, the probe, and data that cannot be."""

import h5py
import pytest
import torch
from torch.nn import functional as F

from dltutorial.config import preset
from dltutorial.errors import DataError
from dltutorial.science import survey


@pytest.fixture
def folder(tmp_path):
    draw = torch.Generator().manual_seed(0)
    for name, n in (("train", 40), ("valid", 20)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["images"] = torch.randn(n, 1, 16, 16, generator=draw).numpy()
            file["labels"] = (torch.arange(n) % 2).numpy()
    return tmp_path


def recipe(**knobs):
    return survey.make_recipe(preset("smoke"), {"global_batch_size": 8, "device": "cpu", **knobs}, None)


def change(folder, name, **values):
    with h5py.File(folder / f"{name}.h5", "a") as file:
        for key, value in values.items():
            del file[key]
            if value is not None:
                file[key] = value


def test_a_view_depends_on_its_image_and_its_seed_alone():
    x_BCHW, seeds_B = torch.randn(6, 1, 16, 16), torch.arange(6)
    whole = survey.views(x_BCHW, seeds_B)
    assert torch.equal(survey.views(x_BCHW[4:5], seeds_B[4:5]), whole[4:5])
    assert not torch.allclose(survey.views(x_BCHW, seeds_B + 1), whole)


def test_the_loss_is_the_cross_entropy_of_naming_ones_partner():
    a_BP, b_BP = torch.randn(3, 4), torch.randn(3, 4)
    z = F.normalize(torch.cat((a_BP, b_BP)), dim=1)
    by_hand = 0.0
    for i in range(6):
        others = [j for j in range(6) if j != i]
        logits = torch.stack([z[i] @ z[j] / survey.TEMPERATURE for j in others])
        by_hand += torch.logsumexp(logits, 0) - z[i] @ z[(i + 3) % 6] / survey.TEMPERATURE
    torch.testing.assert_close(survey.info_nce(a_BP, b_BP), by_hand / 6)


def test_two_batches_of_half_the_size_are_another_loss():
    a_BP, b_BP = torch.randn(8, 4), torch.randn(8, 4)
    halves = (survey.info_nce(a_BP[:4], b_BP[:4]) + survey.info_nce(a_BP[4:], b_BP[4:])) / 2
    assert halves < survey.info_nce(a_BP, b_BP) - 0.1  # fewer others: easier
    assert survey.notes(recipe(accumulate=2), None)


def test_a_probe_finds_what_a_feature_holds():
    torch.manual_seed(0)
    model = survey.make_network("small", 1)
    y_N = torch.arange(600) % 2
    x_NCHW = torch.randn(600, 1, 16, 16)
    x_NCHW[y_N == 1] = x_NCHW[y_N == 1].cumsum(3)  # smooth along rows
    assert survey.probe_error(model, x_NCHW, y_N) < 0.1
    assert survey.probe_error(model, torch.randn(600, 1, 16, 16), y_N) > 0.3


@pytest.mark.parametrize("network", survey.NETWORKS)
def test_a_task_learns_from_views(folder, network):
    task = survey.make_task(recipe(network=network, samples=40), folder)
    batch, again = next(iter(task.data(1))), list(zip(range(2), task.data(0), strict=False))[1][1]
    assert all(torch.equal(one, other) for one, other in zip(batch, again, strict=True))
    assert not torch.allclose(*batch, atol=0.1)  # two views, not one twice
    task.loss(task.model, *batch).backward()
    assert all(p.grad is not None for p in task.model.parameters())
    assert 0 <= task.metrics(task.model)[survey.SCORE] <= 1


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("valid", {"labels": torch.full((20,), 3).numpy()}, "has a label 3, but"),
        ("train", {"images": torch.full((40, 1, 16, 16), torch.nan).numpy()}, "row 0 of images holds NaN"),
        ("valid", {"labels": None}, "has no dataset 'labels'"),
        ("train", {"images": torch.zeros(40, 16, 16).numpy()}, "images is .* not numbers"),
    ],
)
def test_data_that_cannot_be_are_refused_in_one_line(folder, name, values, says):
    change(folder, name, **values)
    with pytest.raises(DataError, match=says) as refused:
        survey.make_task(recipe(samples=40), folder)
    assert "\n" not in str(refused.value)
