"""Labelled weather: what the rules find, and DeepCAM's layout."""

import numpy as np
import pytest

from dltutorial.errors import DataError
from dltutorial.science import climate
from dltutorial.science.arrays import write_arrays


@pytest.fixture
def folder(tmp_path):
    """Two samples in each split, in DeepCAM's layout."""
    generator = np.random.default_rng(0)
    for name in climate.FOLDERS.values():
        (tmp_path / name).mkdir()
        for number in range(2):
            write_sample(tmp_path / name / f"data-{number}.h5", generator.integers(0, 3, (8, 16)))
    write_arrays(tmp_path / "stats.h5", {"climate/minval": np.full(5, -4.0), "climate/maxval": np.full(5, 4.0)})
    return tmp_path


def write_sample(file, label_HW, x_HWC=None):
    x_HWC = np.ones((8, 16, 5), np.float32) if x_HWC is None else x_HWC
    write_arrays(file, {"climate/data": x_HWC, "climate/labels_0": label_HW.astype(np.uint8)})


def vortex(sign, size=32):
    """A sheet in which one vortex turns, without tracer."""
    y, x = np.mgrid[:size, :size] - size / 2
    around = np.exp(-(x**2 + y**2) / 18)
    return np.stack([-sign * y * around, sign * x * around, 0 * x, 0 * x, 0 * x])[None].astype(np.float32)


def test_a_cyclone_rotates_in_its_middle_and_an_anticyclone_is_none():
    rotation_THW, gradient_THW = climate.event_fields(vortex(1.0))
    assert rotation_THW[0].argmin() == 16 * 32 + 16
    assert rotation_THW.min() < 0
    assert climate.event_fields(vortex(-1.0))[0][0, 16, 16] == 0
    assert not gradient_THW.any()


def test_a_front_is_where_the_tracer_changes_fast():
    x_TCHW = np.zeros((1, 5, 16, 16), np.float32)
    x_TCHW[0, 4, :, 8:] = 1.0
    gradient_HW = climate.event_fields(x_TCHW)[1][0]
    assert gradient_HW[:, 7:9].min() > 0
    assert gradient_HW[:, 3:5].max() == 0


def test_labelled_weather_has_deepcams_layout(tmp_path):
    generator = np.random.default_rng(0)
    source = tmp_path / "weather"
    for split in climate.FOLDERS:
        (source / split).mkdir(parents=True)
        x_TCHW = generator.standard_normal((3, 5, 16, 16), np.float32)
        write_arrays(source / split / "sim_0001.h5", {"fields": x_TCHW})
    (source / "stats").mkdir()
    np.save(source / "stats" / "global_stds.npy", np.ones((1, 5, 1, 1), np.float32))
    (tmp_path / "climate").mkdir()
    climate.label_weather(source, tmp_path / "climate")
    samples = climate.Samples(tmp_path / "climate", "train")
    assert len(samples) == 3
    x_CHW, label_HW = samples[0]
    assert x_CHW.shape == (5, 16, 16)
    assert x_CHW.abs().max() <= 0.5 + 1e-6
    assert label_HW.shape == (16, 16)


def test_shares_of_classes_add_up_to_one(folder):
    shares_K = climate.Samples(folder, "train").class_shares()
    assert shares_K.shape == (3,)
    assert shares_K.sum().item() == pytest.approx(1)


def test_a_class_that_never_occurs_is_one_line(folder):
    for file in (folder / "train").iterdir():
        write_sample(file, np.zeros((8, 16)))
    with pytest.raises(DataError, match="no pixel is of the class cyclone"):
        climate.Samples(folder, "train").class_shares()
