"""A user's own data of any shape and with any values: they are opened, or one line says what is wrong."""

import shutil

import h5py
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dltutorial.data import check, store

T, C, H, W = 3, 2, 4, 6
STATISTICS = {"global_means": (1, C, 1, 1), "global_stds": (1, C, 1, 1), "time_means": (1, C, H, W)}
SIZES = st.integers(0, 7)
SHAPES = st.just((T, C, H, W)) | st.lists(SIZES, max_size=5).map(tuple)
DTYPES = st.sampled_from(["f4", "f4", "f8", "f2", "i4", "?", "c8"])
BAD_VALUES = st.sampled_from([0.0, np.nan, np.inf, 1e20, -9999.0])


def write(folder, split_shapes, dtype="f4", bad_value=None):
    """A data set with one file for each split; ``bad_value`` stands at one point of it."""
    shutil.rmtree(folder, ignore_errors=True)
    for number, (split, shape) in enumerate(split_shapes.items(), 1):
        (folder / split).mkdir(parents=True)
        fields = np.random.default_rng(number).normal(size=shape).astype(dtype)
        if bad_value is not None and fields.size:
            with np.errstate(all="ignore"):
                fields.flat[0] = np.array(bad_value).astype(dtype)
        with h5py.File(folder / split / f"sim_{number:04d}.h5", "w") as year:
            year["fields"] = fields
    (folder / "stats").mkdir()
    for name, shape in STATISTICS.items():
        values = np.ones(shape, np.float32) if name == "global_stds" else np.zeros(shape, np.float32)
        np.save(folder / "stats" / f"{name}.npy", values)
    return folder


GOOD_SHAPES = dict.fromkeys(store.SPLITS, (T, C, H, W))


def shape_or_line(folder):
    """The shape of a sample of the training split, None if the data set is refused in one line."""
    report = check.check(folder)
    for line in report.problems:
        assert len(line.splitlines()) == 1, line
    if report.problems:
        return None
    split = store.open_split(folder, "train")
    for values in (split.means_1C11, split.stds_1C11, next(store.samples(split.files[0]))):
        assert np.isfinite(values).all()
    return split.shape


@given(st.fixed_dictionaries(dict.fromkeys(store.SPLITS, SHAPES)), DTYPES)
def test_any_shape_and_type(place, shapes, dtype):
    shape = shape_or_line(write(place / "data", shapes, dtype))
    if shape:
        assert {shapes[split][1:] for split in store.SPLITS} == {shape}


@given(BAD_VALUES)
def test_any_value(place, value):
    shape = shape_or_line(write(place / "data", GOOD_SHAPES, bad_value=value))
    assert (shape is None) == (value != 0)  # a finite outlier does not fit the statistics, which have deviation 1


@given(st.sampled_from([*STATISTICS]), SHAPES, DTYPES, BAD_VALUES)
def test_any_statistics(place, name, shape, dtype, value):
    folder = write(place / "data", GOOD_SHAPES)
    with np.errstate(all="ignore"):
        np.save(folder / "stats" / f"{name}.npy", np.full(shape, value).astype(dtype))
    shape_or_line(folder)
