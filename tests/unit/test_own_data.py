"""Data of other people, in NERSC's layout but not made here: cropped, with other floats, without some files."""

import itertools
import json
import shutil

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from dltutorial import cli
from dltutorial.data import convert, formats, loaders, store
from dltutorial.data.loaders import LOADERS, Pairs
from dltutorial.engine.forecasting import SCORE, evaluate, row_weights
from dltutorial.errors import DataError

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = (
    *("--preset", "smoke", "--patch", "8", "--dim", "16", "--depth", "1", "--heads", "2", "--steps", "4"),
    *("--global-batch-size", "4", "--eval-every", "2", "--log-every", "2", "--device", "cpu", "--track"),
)


def trained(folder, capsys, *options):
    """What ``dltutorial train`` printed, and the recipe that it wrote."""
    assert cli.main(["train", "--data", str(folder), "--name", "r", "--overwrite", *TINY, *map(str, options)]) == 0
    recipe = json.loads(next(folder.parent.rglob("runs/r/recipe.json")).read_text())
    return capsys.readouterr().out, recipe


def refused(capsys, *argv):
    """The one line with which a command refused."""
    try:
        status = cli.main([str(word) for word in argv])
    except SystemExit as end:
        status = end.code
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def change_year(folder, change, name="train/1980.h5"):
    """Write one year again, after ``change`` (T, C, H, W)."""
    with h5py.File(folder / name) as year:
        fields = change(year["fields"][:])
    with h5py.File(folder / name, "w") as year:
        year["fields"] = fields


def change_all(folder, change):
    """Write all years and the time means again, after ``change`` (T, C, H, W)."""
    for file in folder.glob("*/*.h5"):
        change_year(folder, change, file.relative_to(folder))
    file = folder / "stats" / "time_means.npy"
    np.save(file, change(np.load(file)))
    return folder


def with_value(place, value):
    """A change that writes ``value`` at a place."""

    def change(fields):
        fields[place] = value
        return fields

    return change


@pytest.fixture
def tall(own_data):
    """Fields of 17 × 27, of which the first 16 × 24 are those of ``tiny_data``."""

    def taller(fields):
        return np.pad(fields, ((0, 0), (0, 0), (0, 1), (0, 3)), mode="linear_ramp", end_values=1e4)

    return change_all(own_data, taller)


# Cropped data


@pytest.mark.parametrize("large", [2**30, 0])
@pytest.mark.parametrize("layout", [None, "npy", "hdf5-chunk4-gzip1", "zarr-chunk1"])
def test_a_crop_is_what_data_of_that_size_are(tall, tiny_data, tmp_path, layout, large, monkeypatch):
    monkeypatch.setattr(formats, "READ_DIRECT_BYTES", large)
    folder = convert.convert(tall, layout, tmp_path / "out", progress=False) if layout else tall
    small, split = store.open_split(tiny_data), store.open_split(folder, crop=(16, 24))
    assert (split.shape, split.grid, split.sample_bytes) == (small.shape, (17, 27), small.sample_bytes)
    assert np.array_equal(split.time_means_1CHW, small.time_means_1CHW)
    block = np.zeros((3, 5, *split.shape), np.float32)
    with split.open_year(1) as cropped, small.open_year(1) as whole:
        assert np.array_equal(cropped.snapshots(4, 3), whole.snapshots(4, 3))
        cropped.read_into(4, block[:, 2])
        assert np.array_equal(block[:, 2], whole.snapshots(4, 3))


@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_crops(tall, tiny_data, name):
    def batches(split):
        made = loaders.make_loader(split, 4, name, seed=1, roll=True)
        return [torch.stack(batch) for batch in itertools.islice(made, 6)]  # stacked: some use their memory again

    cropped, small = batches(store.open_split(tall, crop=(16, 24))), batches(store.open_split(tiny_data))
    assert all(torch.equal(one, other) for one, other in zip(cropped, small, strict=True))


class Persistence(nn.Module):
    """The forecast is the weather of now."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x


def test_scores_of_a_crop_weigh_its_rows_as_the_complete_grid_does(tall, tiny_data):
    split = store.open_split(tall, "valid", crop=(16, 24))
    with h5py.File(tiny_data / "valid" / "2016.h5") as year:
        normal = (year["fields"][:].astype(np.float64) - split.means_1C11) / split.stds_1C11
    change2 = (normal[1:] - normal[:-1]) ** 2
    weights = np.cos(np.deg2rad(np.linspace(90, -90, 17)))[:16, None]  # latitudes of 17 rows, without the last one
    weighted = np.sqrt((weights / weights.mean() * change2).mean((-2, -1))).mean()
    assert evaluate(Persistence(), Pairs(split))["valid/rmse"] == pytest.approx(weighted, rel=1e-4)
    assert row_weights(16, "sphere", 17).mean().item() == pytest.approx(1)


def test_training_crops_if_asked_and_says_how_if_no_patch_divides_the_rows(tall, capsys, tmp_path):
    line = refused(capsys, "train", "--data", tall, *TINY)
    assert "n_lat=17" in line and "n_lat=16 takes the data's first 16" in line
    line = refused(capsys, "train", "--data", tall, "--n-lat", 32, "--n-lon", 24, *TINY)
    assert "n_lat to at most 17" in line and "(3, 17, 27)" in line
    assert not (tmp_path / "runs").exists()
    printed, recipe = trained(tall, capsys, "--n-lat", 16, "--n-lon", 24)
    assert (recipe["n_lat"], recipe["n_lon"]) == (16, 24)
    assert "first 16 of 17 rows and 24 of 27 columns; --no-roll" in printed


# Statistics


def test_statistics_are_made_by_one_command(own_data, capsys):
    files = {name: own_data / "stats" / f"{name}.npy" for name in store.STATISTICS}
    for file in files.values():
        file.unlink()
    assert "data statistics --source" in refused(capsys, "train", "--data", own_data, *TINY)
    assert cli.main(["data", "statistics", "--source", str(own_data)]) == 0
    assert capsys.readouterr().out.split() == [str(file) for file in files.values()]
    x_TCHW = np.concatenate([h5py.File(file)["fields"][:] for file in store.year_files(own_data, "train")])
    x_TCHW = x_TCHW.astype(np.float64)
    expected = x_TCHW.mean((0, 2, 3)), x_TCHW.std((0, 2, 3)), x_TCHW.mean(0)
    shapes = (1, 3, 1, 1), (1, 3, 1, 1), (1, 3, 16, 24)
    for file, x, shape in zip(files.values(), expected, shapes, strict=True):
        array = np.load(file)
        assert array.dtype == np.float32 and array.shape == shape
        np.testing.assert_allclose(array, x.reshape(shape), rtol=1e-6, atol=1e-6)
    assert "finite" in store.validate(own_data)


def test_statistics_of_the_user_are_replaced_only_if_asked(own_data, capsys):
    means, time_means = own_data / "stats" / "global_means.npy", own_data / "stats" / "time_means.npy"
    theirs, right = np.full((1, 3, 1, 1), 7.0), np.load(means)
    np.save(means, theirs)
    time_means.unlink()
    statistics = "data", "statistics", "--source", str(own_data)
    assert cli.main(statistics) == 0
    assert capsys.readouterr().out.split() == [str(time_means)]
    assert np.array_equal(np.load(means), theirs)
    assert "add --overwrite" in refused(capsys, *statistics)
    assert cli.main([*statistics, "--overwrite"]) == 0
    np.testing.assert_allclose(np.load(means), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_value(np.s_[:, 1], 273.15), "channel 1 has one value"),
        (with_value((0, 0, 0, 0), np.nan), "snapshot 0, channel 0, holds NaN or infinity; fill these values"),
        (with_value((0, 2, 3, 3), -9999), "snapshot 0, channel 2, holds -9999, which stands for no value"),
    ],
)
def test_data_that_cannot_be_normalised_leave_the_statistics_as_they_are(own_data, capsys, change, words):
    change_all(own_data, change)
    before = {file: file.read_bytes() for file in (own_data / "stats").iterdir()}
    assert words in refused(capsys, "data", "statistics", "--overwrite", "--source", own_data)
    assert {file: file.read_bytes() for file in (own_data / "stats").iterdir()} == before


def test_without_time_means_all_but_the_anomaly_correlation_is_scored(own_data, capsys):
    (own_data / "stats" / "time_means.npy").unlink()
    printed, _ = trained(own_data, capsys)
    assert f"no anomaly correlation is scored; to make it: dltutorial data statistics --source {own_data}" in printed
    scores = evaluate(Persistence(), Pairs(store.open_split(own_data, "valid")))
    assert scores.keys() == {"valid/rmse", SCORE}
    assert scores[SCORE] == 1


@pytest.mark.parametrize(
    "wrong", [np.ones((1, 3, 16, 23)), np.full((1, 3, 16, 24), 1e300), np.ones((1, 3, 16, 24), int)]
)
def test_wrong_statistics_name_the_command_that_corrects_them(wrong, own_data, capsys):
    np.save(own_data / "stats" / "time_means.npy", wrong)
    line = refused(capsys, "train", "--data", own_data, *TINY)
    assert "time_means.npy" in line and line.endswith(f"dltutorial data statistics --overwrite --source {own_data}")
    assert cli.main(["data", "statistics", "--overwrite", "--source", str(own_data)]) == 0
    assert cli.main(["data", "check", "--source", str(own_data)]) == 0


# Other names, missing values, missing files


@pytest.mark.parametrize("attribute", ["_FillValue", "missing_value"])
def test_a_missing_value_that_the_file_declares_is_found_by_every_command(own_data, tmp_path, capsys, attribute):
    with h5py.File(own_data / "train" / "1980.h5", "r+") as year:
        year["fields"][4, 1, 2:4, 3:9] = -888
        year["fields"].attrs[attribute] = np.array([-888], np.float32)
    for command in (["check"], ["statistics", "--overwrite"], ["convert", "--layout", "npy", "--out", tmp_path / "c"]):
        line = refused(capsys, "data", *command, "--source", own_data)
        assert "1980.h5 holds -888, its own sign for a missing value; fill these values" in line
    assert "1980.h5 holds -888" in refused(capsys, "train", "--data", own_data, *TINY)


def test_no_test_split_other_datasets_and_years_of_unequal_length_are_accepted(own_data, capsys):
    shutil.rmtree(own_data / "test")
    change_year(own_data, lambda fields: fields[:7])
    for file in list(own_data.glob("*/*.h5")):
        with h5py.File(file, "r+") as year:
            year["valid_time"] = np.arange(10)
        file.rename(file.with_name(f"era5_{file.name}"))
    assert "step 4: loss" in trained(own_data, capsys)[0]
    assert "train 17, valid 10 samples" in store.validate(own_data)
    assert len(Pairs(store.open_split(own_data))) == 9 + 6


def test_years_on_another_grid_are_refused_before_they_are_cropped(own_data, capsys, tmp_path):
    (own_data / "stats" / "time_means.npy").unlink()
    change_year(own_data, lambda fields: np.tile(fields, (1, 1, 3, 1)), "valid/2016.h5")
    line = refused(capsys, "train", "--data", own_data, *TINY, "--n-lat", 16, "--n-lon", 24)
    assert "2016.h5 has (3, 48, 24)" in line and "must have the same shape" in line
    assert not (tmp_path / "runs").exists()


# What a check reports


def scaled_statistics(name, factor=1.0, deviations=0.0):
    """Statistics of other data: multiplied, or some deviations away."""

    def act(folder):
        file = folder / "stats" / f"{name}.npy"
        np.save(file, factor * np.load(file) + deviations * np.load(folder / "stats" / "global_stds.npy"))
        if name != "time_means":
            (folder / "stats" / "time_means.npy").unlink()

    return act


REFUSED = {
    "a fill value": (
        lambda folder: change_year(folder, with_value(np.s_[4, 1, 2:4, 3:9], 1e20)),
        "1980.h5, snapshot 4, channel 1, holds 1e+20, ",
    ),
    "a value far away": (
        lambda folder: change_year(folder, with_value(np.s_[4, 1, 2:4, 3:9], 1e4)),
        "1980.h5, snapshot 4, channel 1, holds 10000, 2e+03 deviations",
    ),
    "a snapshot of zeros": (
        lambda folder: change_year(folder, with_value(4, 0), "valid/2016.h5"),
        "2016.h5, snapshot 4, holds one value a field",
    ),
    "one snapshot": (
        lambda folder: change_year(folder, lambda fields: fields[:1], "valid/2016.h5"),
        "valid has no two snapshots in a row",
    ),
    "means of other data": (scaled_statistics("global_means", deviations=-20), "global_means.npy is beyond"),
    "time means of other data": (scaled_statistics("time_means", deviations=3), "time_means.npy is far from"),
    "deviations of other data": (scaled_statistics("global_stds", 2.5), "the spread of channel 0 is 0.4 ×"),
}


@pytest.mark.parametrize(("act", "words"), REFUSED.values(), ids=REFUSED)
def test_a_check_refuses_data_that_cannot_be_trained_on(act, words, own_data, capsys):
    act(own_data)
    assert words in refused(capsys, "data", "check", "--source", own_data)


def stuck(fields):
    fields[3:] = fields[3]
    return fields


def shifted(fields):
    fields[:, 1] += 7 * fields[:, 1].std()
    return fields


NOTED = {
    "one field": (with_value(np.s_[4, 1], 0), "note: 1 fields hold one value only, first "),
    "a stuck year": (stuck, "the one before once more"),
    "a shifted channel": (shifted, "is unlike the other years in channel 1: its mean is 7"),
}


@pytest.mark.parametrize(("change", "words"), NOTED.values(), ids=NOTED)
def test_a_check_notes_a_year_that_is_probably_wrong(change, words, own_data):
    assert words not in store.validate(own_data)
    change_year(own_data, change)
    assert cli.main(["data", "statistics", "--overwrite", "--source", str(own_data)]) == 0
    (noted,) = [line for line in store.validate(own_data).splitlines() if words in line]
    assert "1980.h5" in noted


def test_a_check_notes_a_year_in_two_splits_and_years_that_are_in_none(own_data):
    shutil.copy(own_data / "train" / "1980.h5", own_data / "valid" / "2015.h5")
    notes = store.validate(own_data).splitlines()[1:]
    (twice,) = [note for note in notes if "twice" in note]
    assert "train/1980.h5" in twice and "valid/2015.h5: a leak" in twice
    assert "note: 34 years from 1979 to 2017 are in no split, the first is 1981" in notes


@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_refuses_a_snapshot_of_zeros(name, own_data):
    change_year(own_data, with_value(2, 0))
    split = store.open_split(own_data, "train")
    with pytest.raises(DataError, match=r"1980\.h5, snapshot 2, holds one value a field"):
        for _ in itertools.islice(loaders.make_loader(split, 1, name), 2 * len(Pairs(split))):
            pass


def test_a_data_set_is_not_converted_into_itself(own_data, capsys):
    out = own_data / "train" / "c"
    line = refused(capsys, "data", "convert", "--layout", "npy", "--source", own_data, "--out", out)
    assert "lies in the data set itself" in line
    assert not out.exists()
