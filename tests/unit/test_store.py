"""A folder in the layout of NERSC's ERA5 tutorial data is opened. A file that does not fit is named in one line."""

import json
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from dltutorial.data import store
from dltutorial.errors import DataError


def test_a_folder_of_real_data_opens(own_data):
    shutil.rmtree(own_data / "test")
    for file in list(own_data.glob("*/*.h5")):
        file.rename(file.with_name(f"era5_{file.name}"))
    split = store.open_split(own_data)
    assert [file.name for file in split.files] == ["era5_1979.h5", "era5_1980.h5"]
    assert (split.snapshots, split.shape) == ((10, 10), (3, 16, 24))
    assert split.channel_names == ("channel 0", "channel 1", "channel 2")
    assert split.sample_bytes == 4 * 3 * 16 * 24


def test_channels_of_dataset_json_are_used(own_data):
    about = {"channels": ["u", "v", "t"], "units": ["m/s", "m/s", "K"]}
    (own_data / "dataset.json").write_text(json.dumps(about))
    split = store.open_split(own_data, "valid")
    assert split.channel_names == ("u", "v", "t") and split.channel_units == ("m/s", "m/s", "K")


def test_a_crop_takes_the_first_rows_and_columns(own_data):
    complete = store.open_split(own_data)
    split = store.open_split(own_data, crop=(12, 99))
    assert split.shape == (3, 12, 24)
    with split.open_year(1) as cropped, complete.open_year(1) as year:
        assert np.array_equal(cropped.read(4, 3), year.read(4, 3)[:, :, :12])


def write_another_grid(file):
    with h5py.File(file, "w") as h5:
        h5["fields"] = np.ones((2, 3, 16, 20), np.float32)


def remove_files_below(folder):
    for file in folder.iterdir():
        file.unlink()


def save(x):
    """Return a function that writes an array into a file."""
    return lambda file: np.save(file, x)


ONES = np.ones((1, 3, 1, 1), np.float32)
BAD = {  # the case: (the file or folder that the message names, a function that damages it)
    "no folder": (".", shutil.rmtree),
    "no split": ("train", shutil.rmtree),
    "no files": ("train", remove_files_below),
    "another grid": ("train/1980.h5", write_another_grid),
    "no statistics": ("stats/global_stds.npy", Path.unlink),
    "statistics of another shape": ("stats/global_means.npy", save(ONES[:, :2])),
    "a deviation of 0": ("stats/global_stds.npy", save(0 * ONES)),
    "statistics with NaN": ("stats/global_means.npy", save(np.nan * ONES)),
    "no JSON": ("dataset.json", lambda file: file.write_text("{")),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_does_not_fit_is_named_in_one_line(case, own_data):
    name, damage = BAD[case]
    damage(own_data / name)
    named = own_data if case == "no split" else own_data / name
    with pytest.raises(DataError, match=re.escape(str(named))) as caught:
        store.open_split(own_data, "train")
    assert "\n" not in str(caught.value)
