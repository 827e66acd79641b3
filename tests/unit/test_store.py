"""A folder in the layout of NERSC's ERA5 tutorial data: opened, checked, written completely or not at all."""

import json
import re
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest

from dltutorial.data import store, writing
from dltutorial.errors import DataError

SHAPE = (3, 4, 8)


def write_year(file, x_TCHW):
    with writing.year_writer(file, len(x_TCHW), x_TCHW.shape[1:]) as append:
        append(x_TCHW)


@pytest.fixture
def era5(tmp_path):
    """A folder as the real ERA5 tutorial data are: years with a calendar's names, no dataset.json."""
    rng = np.random.default_rng(0)
    for split, years in (("train", (1979, 1980)), ("valid", (2016,))):
        for year in years:
            write_year(tmp_path / split / f"{year}.h5", rng.normal(3, 2, (5, *SHAPE)).astype(np.float32))
    writing.write_stats(tmp_path)
    return tmp_path


def test_folder_of_real_data_opens(era5):
    split = store.open_split(era5, "train")
    assert [file.name for file in split.files] == ["1979.h5", "1980.h5"]
    assert (split.snapshots, split.n_samples, split.shape) == ((5, 5), 10, SHAPE)
    assert split.channel_names == ("channel 0", "channel 1", "channel 2")
    assert (split.geometry, split.snapshot_s, split.sample_bytes) == ("sphere", None, 4 * 3 * 4 * 8)
    assert "train 10, valid 5 samples" in store.validate(era5)


def test_channels_of_dataset_json_are_used(era5):
    about = {"channels": ["u", "v", "t"], "units": ["m/s", "m/s", "K"], "geometry": "beta-plane", "snapshot_s": 60.0}
    (era5 / "dataset.json").write_text(json.dumps(about))
    split = store.open_split(era5, "valid")
    assert split.channel_names == ("u", "v", "t") and split.channel_units == ("m/s", "m/s", "K")
    assert split.geometry == "beta-plane" and split.snapshot_s == 60


@pytest.mark.parametrize(("offset", "times"), [(1e5, 1e-3), (-1e6, 1)])
def test_a_channel_of_which_float32_keeps_few_digits_is_refused(era5, offset, times):
    for file in [*era5.glob("train/*"), *era5.glob("valid/*")]:
        with h5py.File(file, "r+") as h5:
            x_TCHW = h5["fields"][:].astype(np.float64)
            x_TCHW[:, 1] = x_TCHW[:, 1] * times + offset
            del h5["fields"]
            h5["fields"] = x_TCHW
    writing.write_stats(era5)
    with pytest.raises(DataError, match="; write it less its mean, or in another unit") as refusal:
        store.open_split(era5)
    assert f"{era5 / 'stats'}: a channel of the years is within" in str(refusal.value)


def no_split(folder):
    shutil.rmtree(folder / "train")
    return folder


def no_files(folder):
    for file in (folder / "train").iterdir():
        file.unlink()
    return folder / "train"


def truncated(folder):
    file = folder / "train" / "1980.h5"
    file.write_bytes(file.read_bytes()[:-100])
    return file


def not_hdf5(folder):
    file = folder / "train" / "1980.h5"
    file.write_text("<html>404</html>")
    return file


def replaced(x, key="fields"):
    def damage(folder):
        file = folder / "train" / "1980.h5"
        with h5py.File(file, "w") as h5:
            h5[key] = x
        return file

    return damage


def nan_in_last(folder):
    file = folder / "train" / "1980.h5"
    with h5py.File(file, "r+") as h5:
        h5["fields"][-1, 0, 0, 0] = np.nan
    return file


def no_stats(folder):
    (folder / "stats" / "global_stds.npy").unlink()
    return folder / "stats" / "global_stds.npy"


def stats(name, x):
    def damage(folder):
        file = folder / "stats" / f"{name}.npy"
        file.write_bytes(b"abc") if x is None else np.save(file, x)
        return file

    return damage


def text(content):
    def damage(folder):
        (folder / "dataset.json").write_text(content)
        return folder / "dataset.json"

    return damage


ONES = np.ones((1, 3, 1, 1), np.float32)
BAD = {
    "no split": no_split,
    "no file": no_files,
    "truncated": truncated,
    "not HDF5": not_hdf5,
    "no fields": replaced(np.ones((2, *SHAPE), np.float32), "other"),
    "too few dimensions": replaced(np.ones(SHAPE, np.float32)),
    "integers": replaced(np.ones((2, *SHAPE), int)),
    "no snapshot": replaced(np.ones((0, *SHAPE), np.float32)),
    "another shape": replaced(np.ones((2, 3, 4, 6), np.float32)),
    "NaN": nan_in_last,
    "no statistics": no_stats,
    "statistics of another shape": stats("global_means", ONES[:, :2]),
    "time means of another shape": stats("time_means", ONES),
    "statistics that are no array": stats("global_means", None),
    "deviation of 0": stats("global_stds", 0 * ONES),
    "statistics with NaN": stats("global_means", np.nan * ONES),
    "dataset.json that is no JSON": text("{"),
    "dataset.json that is a list": text("[]"),
    "too few channel names": text('{"channels": ["u"]}'),
    "channels that are no list": text('{"channels": 3}'),
    "unknown geometry": text('{"geometry": "torus"}'),
}


@pytest.mark.parametrize("damage", BAD.values(), ids=BAD.keys())
def test_bad_data_get_one_line_that_names_the_file(era5, damage):
    culprit = damage(era5)
    with pytest.raises(DataError, match=re.escape(str(culprit))) as caught:
        store.open_split(era5, "train")
    assert "\n" not in str(caught.value)


def test_nan_anywhere_is_found_by_validate(era5):
    file = era5 / "valid" / "2016.h5"
    with h5py.File(file, "r+") as h5:
        h5["fields"][2, 0, 0, 0] = np.inf
    with pytest.raises(DataError, match=rf"{re.escape(str(file))}, snapshot 2"):
        store.validate(era5)


@pytest.mark.parametrize(
    ("x", "why"), [(np.ones((1, *SHAPE)), "1 of 2 snapshots"), (np.full((2, *SHAPE), np.nan), "is NaN or infinity")]
)
def test_a_year_that_is_incomplete_is_not_kept(tmp_path, x, why):
    with pytest.raises(DataError, match=why), writing.year_writer(tmp_path / "sim_0001.h5", 2, SHAPE) as append:
        append(x)
    assert list(tmp_path.iterdir()) == []


FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from dltutorial.data import formats, writing
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))  # no file can grow beyond this, as on a full disk
layout = formats.Layout.of(sys.argv[2])
try:
    with writing.year_writer(Path(sys.argv[1]), 64, (1, 10, 1000), layout=layout) as append:
        for row in range(64):
            append(np.full((1, 10, 1000), row, np.float32))
except writing.DataError as error:
    print(error)
"""


@pytest.mark.parametrize(("layout", "name"), [("hdf5-chunk1", "1980.h5"), ("npy", "1980.npy")])
def test_a_full_disk_is_one_line_and_leaves_no_file(layout, name, tmp_path):
    command = [sys.executable, "-c", FULL_DISK, tmp_path / name, layout]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    (line,) = done.stdout.splitlines()
    assert line.startswith("cannot write") and "too large" in line and "make room" in line
    assert list(tmp_path.iterdir()) == []
