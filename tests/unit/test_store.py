import json
import re
import shutil

import h5py
import numpy as np
import pytest

from dltutorial import machine
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


def test_statistics_are_those_of_the_training_years(era5):
    split = store.open_split(era5, "valid")
    x_TCHW = np.concatenate([h5py.File(file)["fields"][:] for file in store.year_files(era5, "train")])
    np.testing.assert_allclose(split.means_1C11, x_TCHW.mean((0, 2, 3))[None, :, None, None], rtol=1e-5)
    np.testing.assert_allclose(split.stds_1C11, x_TCHW.std((0, 2, 3))[None, :, None, None], rtol=1e-5)
    np.testing.assert_allclose(split.time_means_1CHW, x_TCHW.mean(0, keepdims=True), rtol=1e-5)


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


def test_years_with_their_channels_last_are_noted(tmp_path):
    x_THWC = np.random.default_rng(0).normal(3, 2, (5, 8, 16, 3)).astype(np.float32)
    for file in ("train/1979.h5", "valid/1980.h5"):
        write_year(tmp_path / file, x_THWC)
    writing.write_stats(tmp_path)
    assert "note: channels come last, it seems" in store.validate(tmp_path)
    for file in ("train/1979.h5", "valid/1980.h5"):
        (tmp_path / file).unlink()
        write_year(tmp_path / file, np.moveaxis(x_THWC, 3, 1))
    writing.write_stats(tmp_path)
    assert "channels come last" not in store.validate(tmp_path)


def test_year_is_stored_one_sample_a_chunk(era5):
    with h5py.File(era5 / "train" / "1979.h5") as h5:
        fields = h5["fields"]
        assert (fields.shape, fields.chunks) == ((5, *SHAPE), (1, *SHAPE))
        assert fields.dtype == np.float32 and fields.compression is None


def no_data(folder):
    shutil.rmtree(folder)
    return folder


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


def other_name(folder):
    return (folder / "train" / "1980.h5").rename(folder / "train" / "year80.h5")


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
    "no folder": no_data,
    "no split": no_split,
    "no file": no_files,
    "truncated": truncated,
    "not HDF5": not_hdf5,
    "name without a year": other_name,
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
def test_year_that_is_not_whole_is_not_kept(tmp_path, x, why):
    with pytest.raises(DataError, match=why), writing.year_writer(tmp_path / "sim_0001.h5", 2, SHAPE) as append:
        append(x)
    assert list(tmp_path.iterdir()) == []


def test_interrupted_year_is_not_kept(tmp_path):
    with pytest.raises(KeyboardInterrupt), writing.year_writer(tmp_path / "sim_0001.h5", 2, SHAPE) as append:
        append(np.ones(SHAPE))
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written_gets_one_line(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(DataError, match="cannot write"),
        writing.year_writer(tmp_path / "file" / "sim_0001.h5", 1, SHAPE),
    ):
        pass


def test_space_is_checked_before_writing(tmp_path):
    free = machine.disk_free_bytes(tmp_path)
    writing.check_space(tmp_path / "not" / "yet", free // 2)
    with pytest.raises(DataError, match=r"free, but .* MB are needed"):
        writing.check_space(tmp_path / "not" / "yet", 2 * free)
