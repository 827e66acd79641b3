"""Labelled weather: what the rules find, the networks, the weighted loss, IoU, refusals."""

import h5py
import numpy as np
import pytest
import torch

from dltutorial import config
from dltutorial.errors import DataError
from dltutorial.science import climate


def write(folder, n=8, size=16, label=lambda draw: draw.integers(0, 3, (16, 16)), value=lambda x: x):
    """A folder in DeepCAM's layout, of random numbers."""
    draw = np.random.default_rng(0)
    for split in climate.SPLITS.values():
        (folder / split).mkdir(parents=True, exist_ok=True)
        for index in range(n):
            with h5py.File(folder / split / f"data-{index:03d}.h5", "w") as h5:
                h5["climate/data"] = value(draw.standard_normal((size, size, 5)).astype(np.float32))
                h5["climate/labels_0"] = label(draw).astype(np.uint8)
    with h5py.File(folder / "stats.h5", "w") as h5:
        h5["climate/minval"], h5["climate/maxval"] = np.full(5, -4.0), np.full(5, 4.0)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "cam")


def recipe(**knobs):
    return climate.make_recipe(config.preset("smoke"), {"global_batch_size": 4, **knobs}, None)


def vortex(sign, size=32):
    """A sheet in which one vortex turns; no tracer."""
    y, x = np.mgrid[:size, :size] - size / 2
    around = np.exp(-(x**2 + y**2) / 18)
    return np.stack([-sign * y * around, sign * x * around, 0 * x, 0 * x, 0 * x])[None].astype(np.float32)


def test_a_cyclone_spins_in_its_middle_and_an_anticyclone_is_none():
    spin_THW, slope_THW = climate.event_fields(vortex(1.0))
    assert spin_THW[0].argmin() == 16 * 32 + 16
    assert spin_THW.min() < 0
    assert climate.event_fields(vortex(-1.0))[0][0, 16, 16] == 0
    assert not slope_THW.any()


def test_a_front_is_where_the_tracer_jumps():
    x_TCHW = np.zeros((1, 5, 16, 16), np.float32)
    x_TCHW[0, 4, :, 8:] = 1.0
    slope_HW = climate.event_fields(x_TCHW)[1][0]
    assert slope_HW[:, 7:9].min() > 0
    assert slope_HW[:, 3:5].max() == 0


@pytest.mark.parametrize("name", climate.NETWORKS)
def test_a_network_draws_a_map_and_published_ones_take_the_published_size(name):
    assert climate.make_network(name, 5, published=False)(torch.zeros(2, 5, 32, 48)).shape == (2, 3, 32, 48)
    with torch.device("meta"):
        logits = climate.make_network(name, 16, published=True)(torch.zeros(1, 16, 768, 1152))
    assert logits.shape == (1, 3, 768, 1152)


def test_the_loss_of_a_batch_is_the_mean_of_its_parts():
    torch.manual_seed(0)
    loss = climate.weighted_error(climate.class_weights((0.9, 0.04, 0.06), -1))
    x, label = torch.randn(4, 3, 8, 8), torch.zeros(4, 8, 8, dtype=torch.long)
    label[0, :4] = 1
    parts = [loss(torch.nn.Identity(), x[n : n + 1], label[n : n + 1]) for n in range(4)]
    torch.testing.assert_close(torch.stack(parts).mean(), loss(torch.nn.Identity(), x, label))
    assert loss(torch.nn.Identity(), x.half(), label).dtype == torch.float32


def test_iou_is_hits_over_what_either_side_has():
    label, said = torch.tensor([0, 0, 1, 1, 0]), torch.tensor([0, 1, 1, 0, 0])
    counts_3K = climate.count(said, label)
    assert counts_3K.tolist() == [[2, 1, 0], [1, 1, 0], [1, 1, 0]]
    assert climate.iou(counts_3K).tolist() == pytest.approx([0.5, 1 / 3, 1.0])


def test_a_task_learns_and_scores_each_class(folder):
    task = climate.make_task(recipe(), folder)
    batch = next(task.data(0))
    before = task.loss(task.model, *batch)
    before.backward()
    with torch.no_grad():
        for p in task.model.parameters():
            p -= 0.05 * p.grad
    assert task.loss(task.model, *batch) < before
    assert {"valid/loss", "valid/accuracy", "valid/iou cyclone"} <= set(task.metrics(task.model))


def nan(x):
    x[0, 0, 0] = np.nan
    return x


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"label": lambda draw: draw.integers(0, 5, (16, 16))}, "has a label [34], but"),
        ({"label": lambda draw: draw.integers(0, 3, (16, 8))}, r"labels_0 is uint8 \(16, 8\)"),
        ({"value": nan}, "NaN"),
    ],
)
def test_data_that_cannot_be_are_refused_in_one_line(bad, why, tmp_path):
    with pytest.raises(DataError, match=why) as refused:
        climate.make_task(recipe(), write(tmp_path / "bad", **bad))
    assert "\n" not in str(refused.value)


def test_what_is_not_there_is_refused(folder, tmp_path):
    with pytest.raises(DataError, match=r"holds no \.h5 file"):
        climate.Samples(tmp_path / "nothing", "train")
