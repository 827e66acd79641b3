"""Data of other people, in NERSC's layout but not made here: cropped, with other floats, without some files."""

import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from dltutorial import cli
from dltutorial.config import PRESETS
from dltutorial.data import convert, formats, loaders, store, weather, writing
from dltutorial.data.loaders import LOADERS, Pairs
from dltutorial.errors import DataError
from dltutorial.train.forecasting import SCORE, evaluate, row_weights

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = (
    *("--preset", "smoke", "--patch", "8", "--dim", "16", "--depth", "1", "--heads", "2", "--steps", "4"),
    *("--global-batch-size", "4", "--eval-every", "2", "--log-every", "2", "--device", "cpu", "--track"),
)


def trained(folder, capsys, *options):
    """What ``dltutorial train`` said on standard output, without the folder of the run; and the recipe it left."""
    assert cli.main(["train", "--data", str(folder), "--name", "r", "--overwrite", *TINY, *map(str, options)]) == 0
    runs = json.loads(next(folder.parent.rglob("runs/r/recipe.json")).read_text())
    return capsys.readouterr().out, runs


def refused(capsys, *argv):
    """The one line in which a command was refused."""
    try:
        status = cli.main([str(word) for word in argv])
    except SystemExit as end:
        status = end.code
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def rewritten(folder, change):
    """Every year and the time means passed through ``change`` (T, C, H, W)."""
    for file in folder.glob("*/*.h5"):
        with h5py.File(file) as year:
            fields = change(year["fields"][:])
        with h5py.File(file, "w") as year:
            year["fields"] = fields
    file = folder / "stats" / "time_means.npy"
    np.save(file, change(np.load(file)))
    return folder


def taller(fields_TCHW):
    """One row and three columns more, which are unlike all others."""
    return np.pad(fields_TCHW, ((0, 0), (0, 0), (0, 1), (0, 3)), mode="linear_ramp", end_values=1e4)


@pytest.fixture
def tall(own_data):
    """Fields of 17 × 27, of which the first 16 × 24 are ``tiny_data``'s."""
    return rewritten(own_data, taller)


# Cropped


@pytest.mark.parametrize("large", [2**30, 0])
@pytest.mark.parametrize("layout", [None, "hdf5-chunk1", "npy", "hdf5-chunk4-gzip1", "zarr-chunk1"])
def test_a_crop_is_what_data_of_that_size_are(tall, tiny_data, tmp_path, layout, large, monkeypatch):
    monkeypatch.setattr(formats, "READ_DIRECT_BYTES", large)
    folder = convert.convert(tall, layout, tmp_path / "out", progress=False) if layout else tall
    small, split = store.open_split(tiny_data), store.open_split(folder, crop=(16, 24))
    assert (split.shape, split.grid, split.sample_bytes) == (small.shape, (17, 27), small.sample_bytes)
    assert np.array_equal(split.time_means_1CHW, small.time_means_1CHW)
    block = np.zeros((3, 5, *split.shape), np.float32)
    with split.open_year(1) as cropped, small.open_year(1) as whole:
        assert cropped.shape == whole.shape
        assert np.array_equal(cropped.snapshots(4, 3), whole.snapshots(4, 3))
        cropped.read_into(4, block[:, 2])
        assert np.array_equal(block[:, 2], whole.snapshots(4, 3))


@pytest.mark.parametrize("name", [*LOADERS, "plain"])
def test_every_loader_crops(tall, tiny_data, name):
    def batches(split):
        if name == "plain":
            made = loaders.endless_batches(Pairs(split), 4, seed=1, roll=True)
        else:
            made = loaders.make_loader(split, 4, name, seed=1, roll=True)
        return [torch.stack(batch) for batch in itertools.islice(made, 6)]  # stacked: some use their memory again

    cropped, small = batches(store.open_split(tall, crop=(16, 24))), batches(store.open_split(tiny_data))
    assert all(torch.equal(one, other) for one, other in zip(cropped, small, strict=True))


class Same(nn.Module):
    """Persistence."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x


def test_scores_of_a_crop_weigh_its_rows_as_the_whole_grid_does(tall, tiny_data):
    (tall / "dataset.json").write_text('{"geometry": "beta-plane"}')  # flat: all rows count the same
    split = store.open_split(tall, "valid", crop=(16, 24))
    raw = h5py.File(tiny_data / "valid" / "2016.h5")["fields"][:]
    normal = (raw.astype(np.float64) - split.means_1C11) / split.stds_1C11
    change2 = (normal[1:] - normal[:-1]) ** 2
    scores = evaluate(Same(), Pairs(split))
    assert scores["valid/rmse"] == pytest.approx(np.sqrt(change2.mean((-2, -1))).mean(), rel=1e-4)
    (tall / "dataset.json").unlink()  # a sphere: latitudes 90 … −90 of 17 rows, without the last one
    weights = np.cos(np.deg2rad(np.linspace(90, -90, 17)))[:16, None]
    weighted = np.sqrt((weights / weights.mean() * change2).mean((-2, -1))).mean()
    scores = evaluate(Same(), Pairs(store.open_split(tall, "valid", crop=(16, 24))))
    assert scores["valid/rmse"] == pytest.approx(weighted, rel=1e-4)
    assert row_weights(16, "sphere", 17).mean().item() == pytest.approx(1)


def test_training_crops_where_a_knob_asks_for_less(tall, tiny_data, capsys):
    said, recipe = trained(tall, capsys, "--n-lat", 16, "--n-lon", 24)
    assert (recipe["n_lat"], recipe["n_lon"]) == (16, 24)
    assert "first 16 of 17 rows and 24 of 27 columns; --no-roll" in said
    assert "no-roll" not in trained(tall, capsys, "--n-lat", 16, "--n-lon", 24, "--no-roll")[0]
    whole = store.open_split(tall)
    assert whole.shape == (3, 17, 27)


def test_training_says_which_knob_crops_rows_that_no_patch_divides(tall, capsys, tmp_path):
    line = refused(capsys, "train", "--data", tall, *TINY)
    assert "n_lat=17" in line and "n_lat=16 takes the data's first 16" in line
    line = refused(capsys, "train", "--data", tall, "--n-lat", 16, *TINY)
    assert "n_lon=27" in line and "n_lon=24 takes" in line
    assert not (tmp_path / "runs").exists()


def test_a_patch_need_not_divide_the_rows_of_a_preset(own_data, capsys):
    rewritten(own_data, lambda fields: fields[:, :, :15])
    _, recipe = trained(own_data, capsys, "--patch", 3)
    assert (recipe["n_lat"], recipe["n_lon"], recipe["patch"]) == (15, 24, 3)


@pytest.mark.parametrize(("knob", "most"), [("--n-lat", "n_lat to at most 17"), ("--n-lon", "n_lon to at most 27")])
def test_more_rows_or_columns_than_there_are_cannot_be_asked_for(tall, capsys, knob, most, tmp_path):
    options = {"--n-lat": 16, "--n-lon": 24, knob: 32}
    line = refused(capsys, "train", "--data", tall, *itertools.chain(*options.items()), *TINY)
    assert most in line and "(3, 17, 27)" in line
    assert not (tmp_path / "runs").exists()


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
        found = np.load(file)
        assert found.dtype == np.float32 and found.shape == shape
        np.testing.assert_allclose(found, x.reshape(shape), rtol=1e-6, atol=1e-6)
    assert "finite" in store.validate(own_data)


def test_statistics_that_are_there_are_replaced_only_if_asked(own_data, capsys):
    means, climate = own_data / "stats" / "global_means.npy", own_data / "stats" / "time_means.npy"
    theirs, right = np.full((1, 3, 1, 1), 7.0), np.load(means)
    np.save(means, theirs)
    climate.unlink()
    statistics = "data", "statistics", "--source", str(own_data)
    assert cli.main(statistics) == 0
    assert capsys.readouterr().out.split() == [str(climate)]
    assert np.array_equal(np.load(means), theirs)
    assert "add --overwrite" in refused(capsys, *statistics)
    assert cli.main([*statistics, "--overwrite"]) == 0
    np.testing.assert_allclose(np.load(means), right, rtol=1e-5, atol=1e-6)


def test_statistics_behind_a_link_are_another_sets(own_data, tmp_path):
    (own_data / "stats").rename(other := tmp_path / "other")
    (own_data / "stats").symlink_to(other)
    before = {file.name: file.read_bytes() for file in other.iterdir()}
    with pytest.raises(DataError, match="stats is a link, and what lies behind it"):
        writing.write_stats(own_data)
    assert {file.name: file.read_bytes() for file in other.iterdir()} == before


def test_statistics_are_replaced_all_or_none(own_data):
    """A disk that takes the two small files, and not the large one."""
    for file in (own_data / "stats").iterdir():
        np.save(file, np.load(file) * 2)
    before = {file: file.read_bytes() for file in (own_data / "stats").iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(DataError, match=r"cannot write .*stats.*make room"):
            writing.write_stats(own_data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {file: file.read_bytes() for file in (own_data / "stats").iterdir()} == before


def test_statistics_are_replaced_all_or_none_also_if_one_cannot_take_its_name(own_data, monkeypatch):
    for file in (own_data / "stats").iterdir():
        np.save(file, np.load(file) * 2)
    before = {file: file.read_bytes() for file in (own_data / "stats").iterdir()}
    plain = os.replace

    def replace(source, target, **how):
        if str(target).endswith("global_means.npy"):
            raise PermissionError(1, "Operation not permitted", str(target))
        plain(source, target, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        patch.setattr(Path, "replace", lambda file, target: replace(file, target))
        with pytest.raises(DataError):
            writing.write_stats(own_data)
    assert {file: file.read_bytes() for file in (own_data / "stats").iterdir()} == before


KILLED = """
import os, sys
from pathlib import Path
from dltutorial.data import writing

plain, taken = Path.replace, []

def replace(file, target):
    taken.append(target)
    if len(taken) > int(sys.argv[2]):
        os._exit(9)
    return plain(file, target)

Path.replace = replace
writing.write_stats(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("after", [0, 1, 2])
def test_statistics_half_replaced_by_a_kill_are_told_until_they_are_made_anew(after, own_data, tmp_path, capsys):
    """``after`` so many of three: those of the years before they were changed, and after."""
    with h5py.File(own_data / "train" / "1980.h5", "r+") as year:
        year["fields"][...] *= 2
    before = {file.name: file.read_bytes() for file in (own_data / "stats").iterdir()}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(own_data), str(after)], capture_output=True, text=True)
    assert killed.returncode == 9, killed.stderr
    there = {file.name: file.read_bytes() for file in (own_data / "stats").glob("*.npy")}
    assert sum(there[name] != before[name] for name in before) == after
    source = "--source", own_data
    for command in (
        ("train", "--data", own_data, *TINY),
        ("data", "check", *source),
        ("data", "statistics", *source),
        ("data", "convert", "--layout", "npy", "--out", tmp_path / "c", *source),
    ):
        line = refused(capsys, *command)
        assert "stats may be of two computations" in line
        assert line.endswith(f"make them anew: dltutorial data statistics --overwrite --source {own_data}")
    assert cli.main(["data", "statistics", "--overwrite", "--source", str(own_data)]) == 0
    assert "every value is finite" in store.validate(own_data)
    trained(own_data, capsys)


@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_what_a_kill_has_left_of_statistics_goes_and_nothing_that_is_written_or_somebodys(own_data, capsys, options):
    stats, long_ago = own_data / "stats", time.time() - 3600
    left, written = stats / ".time_means.npy.0123abcd.partial", stats / ".global_stds.npy.4567abcd.partial"
    mine = {stats / ".time_means.npy.0123abcd.mine.partial", stats / ".notes.npy.0123abcd.partial"}
    for file in (left, written, *mine):
        file.write_text("half")
        os.utime(file, None if file == written else (long_ago, long_ago))
    (stats / "time_means.npy").unlink()
    assert "every value is finite" in store.validate(own_data)
    assert cli.main(["data", "statistics", "--source", str(own_data), *options]) == 0
    assert {*stats.glob(".*")} == {written, *mine}


def test_statistics_that_were_not_made_leave_half_replaced_ones_told(own_data, capsys):
    (own_data / "stats" / store.REPLACING).touch()
    rewritten(own_data, still)
    assert "channel 1 has one value" in refused(capsys, "data", "statistics", "--overwrite", "--source", own_data)
    assert "of two computations" in refused(capsys, "train", "--data", own_data, *TINY)


def test_new_statistics_are_all_on_the_disk_before_the_first_takes_its_name(own_data, monkeypatch):
    acts, sync, plain = [], os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (acts.append("sync"), sync(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda file, target: (acts.append("replace"), plain(file, target))[1])
    writing.write_stats(own_data)
    assert acts[:3] == ["sync"] * 3
    assert acts.count("replace") == 3
    assert sorted(file.name for file in (own_data / "stats").iterdir()) == sorted(f"{n}.npy" for n in store.STATISTICS)


@pytest.mark.parametrize("missing", ["train/1980.npy", "stats/time_means.npy", "dataset.json"])
def test_in_a_converted_set_what_is_ones_own_stays(missing, own_data, tmp_path):
    out = convert.convert(own_data, "npy", tmp_path / "c", progress=False)
    before = (out / missing).read_bytes()
    for name in ("global_means", "global_stds"):
        np.save(out / "stats" / f"{name}.npy", 2 * np.load(out / "stats" / f"{name}.npy"))
    about = json.loads((out / "dataset.json").read_text())
    (out / "dataset.json").write_text(json.dumps(about | {"channels": ["t", "u", "v"]}))
    own = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    (out / missing).unlink()
    convert.convert(own_data, "npy", out, progress=False)
    if missing != "stats/time_means.npy":  # which may be missing
        assert {file: file.read_bytes() for file in own} == own | {out / missing: before}


def still(fields):
    fields[:, 1] = 273.15  # a sum of squares in float32, or far from 0, would not find it constant
    return fields


def broken(fields):
    fields[0, 0, 0, 0] = np.nan
    return fields


def test_a_files_own_word_for_no_value_is_read(own_data, capsys):
    with h5py.File(own_data / "train" / "1980.h5", "r+") as year:
        year["fields"].attrs["_FillValue"] = np.array([-5.5], np.float32)  # an array of one, as NetCDF writes it
    store.validate(own_data)
    with h5py.File(own_data / "train" / "1980.h5", "r+") as year:
        year["fields"][1, 1, :2] = -5.5
    for command in (["check"], ["statistics", "--overwrite"]):
        assert "1980.h5 holds -5.5, its own word for no value" in refused(
            capsys, "data", *command, "--source", own_data
        )


@pytest.mark.parametrize(("change", "why"), [(still, "channel 1 has one value"), (broken, "snapshot 0, holds NaN")])
def test_statistics_of_what_cannot_be_normalised_are_refused(own_data, capsys, change, why):
    rewritten(own_data, change)
    before = {file: file.read_bytes() for file in (own_data / "stats").iterdir()}
    assert why in refused(capsys, "data", "statistics", "--overwrite", "--source", own_data)
    assert {file: file.read_bytes() for file in (own_data / "stats").iterdir()} == before


def test_years_of_different_shapes_have_no_statistics(own_data, capsys):
    with h5py.File(own_data / "train" / "1980.h5", "w") as year:
        year["fields"] = np.random.default_rng(0).normal(size=(2, 3, 8, 24))
    assert "1980.h5 has samples (3, 8, 24)" in refused(
        capsys, "data", "statistics", "--overwrite", "--source", own_data
    )


def test_without_time_means_all_but_the_anomaly_correlation_is_scored(own_data, capsys):
    with_them, _ = trained(own_data, capsys)
    (own_data / "stats" / "time_means.npy").unlink()
    without, _ = trained(own_data, capsys)
    assert f"no anomaly correlation is scored; to make it: dltutorial data statistics --source {own_data}" in without
    assert "anomaly" not in with_them.splitlines()[0] and "anomaly_correlation 0." in with_them
    scored = [line for line in without.splitlines() if "rmse" in line]
    assert scored and all("rmse_ratio_to_persistence" in line and "anomaly" not in line for line in scored)
    scores = evaluate(Same(), Pairs(store.open_split(own_data, "valid")))
    assert scores.keys() == {"valid/rmse", SCORE}
    assert scores[SCORE] == 1


WRONG = {
    "of another shape": np.ones((1, 3, 16, 23)),
    "above what float32 holds": np.full((1, 3, 16, 24), 1e300),
    "whole numbers": np.ones((1, 3, 16, 24), int),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_statistics_name_the_command_that_mends_them(wrong, own_data, capsys):
    np.save(own_data / "stats" / "time_means.npy", WRONG[wrong])
    line = refused(capsys, "train", "--data", own_data, *TINY)
    assert "time_means.npy" in line and line.endswith(f"dltutorial data statistics --overwrite --source {own_data}")
    assert cli.main(line.partition("dltutorial data")[2].join(["data", ""]).split()) == 0
    assert cli.main(["data", "check", "--source", str(own_data)]) == 0


def test_a_deviation_that_float32_rounds_to_0_is_refused(own_data, capsys):
    np.save(own_data / "stats" / "global_stds.npy", np.full((1, 3, 1, 1), 1e-60))
    assert "a deviation of 0" in refused(capsys, "train", "--data", own_data, *TINY)


# Floats, names, what is missing and what is more


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
def test_other_floats_are_trained_on_and_converted(own_data, tmp_path, capsys, dtype):
    rewritten(own_data, lambda fields: fields.astype(dtype))
    for file in (own_data / "stats").iterdir():
        np.save(file, np.load(file).astype(np.float64))
    said, _ = trained(own_data, capsys)
    out = tmp_path / "out"
    assert cli.main(["data", "convert", "--source", str(own_data), "--layout", "hdf5-chunk1", "--out", str(out)]) == 0
    capsys.readouterr()
    with h5py.File(out / "train" / "1979.h5") as new, h5py.File(own_data / "train" / "1979.h5") as old:
        assert new["fields"].dtype == np.float32
        assert np.array_equal(new["fields"][:], old["fields"][:].astype(np.float32))
    again, _ = trained(out, capsys)
    loss = [line.partition(" · ")[0] for line in said.splitlines() if line.startswith("step")]
    assert loss and loss == [line.partition(" · ")[0] for line in again.splitlines() if line.startswith("step")]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
def test_other_floats_are_read_to_their_place_whatever_the_size(own_data, dtype, monkeypatch):
    rewritten(own_data, lambda fields: fields.astype(dtype))
    monkeypatch.setattr(formats, "READ_DIRECT_BYTES", 0)
    with formats.open_year(own_data / "train" / "1979.h5") as year:
        block = np.zeros((2, *year.shape), np.float32)
        year.read_into(3, block)
        assert np.array_equal(block, year.snapshots(3, 2)) and block.any()


def test_what_float32_cannot_hold_is_one_line(own_data, capsys):
    with h5py.File(own_data / "train" / "1980.h5", "r+") as year:
        fields = year["fields"][:].astype(np.float64)
        del year["fields"]
        fields[3, 0, 0, 0] = 1e300
        year["fields"] = fields
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it would stand on a line of its own
        line = refused(capsys, "data", "check", "--source", own_data)
    assert "1980.h5, snapshot 3, holds NaN or infinity" in line


def test_no_test_split_more_datasets_and_other_names_are_accepted(own_data, capsys):
    shutil.rmtree(own_data / "test")
    for file in list(own_data.glob("*/*.h5")):
        with h5py.File(file, "r+") as year:
            year["valid_time"] = np.arange(10)
        file.rename(file.with_name(f"era5_{file.name}"))
    said, _ = trained(own_data, capsys)
    assert "step 4: loss" in said
    assert "train 20, valid 10 samples" in store.validate(own_data)


# What a check says


def test_a_check_notes_years_that_are_in_no_split(own_data):
    (own_data / "test" / "2017.h5").rename(own_data / "test" / "2019.h5")
    line, note = store.validate(own_data).splitlines()
    assert "finite" in line
    assert note == "note: 37 years from 1979 to 2019 are in no split, the first is 1981"
    for number, file in enumerate(sorted(own_data.glob("*/*.h5")), 1):
        file.rename(file.with_name(f"sim_{number:04}.h5"))
    assert "\n" not in store.validate(own_data)


@pytest.mark.parametrize("plan", [{"years": [2, 2, 1]}, {"years": [2, 2]}, {"years": "many"}, [2, 3], "of mine", None])
def test_a_check_notes_a_first_or_last_year_that_is_gone(own_data, plan):
    n = len(list(own_data.glob("*/*.h5")))
    (own_data / "dataset.json").write_text(json.dumps({"plan": plan}))
    notes = store.validate(own_data).splitlines()[1:]
    told = [note for note in notes if "dataset.json tells of" in note]
    is_more = isinstance(plan, dict) and isinstance(plan["years"], list) and sum(plan["years"]) > n
    assert told == ([f"note: dataset.json tells of {sum(plan['years'])} years, but {n} are there"] if is_more else [])


def test_statistics_of_almost_nothing_are_one_line(own_data, capsys):
    file = own_data / "stats" / "global_stds.npy"
    np.save(file, np.full_like(np.load(file), 1e-38))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "stats" in refused(capsys, "data", "check", "--source", own_data)


def zeroed(places):
    def act(folder):
        with h5py.File(folder / "valid" / "2016.h5", "r+") as year:
            year["fields"][places] = 0

    return act


def one_snapshot(folder):
    with h5py.File(folder / "valid" / "2016.h5") as year:
        fields = year["fields"][:1]
    with h5py.File(folder / "valid" / "2016.h5", "w") as year:
        year["fields"] = fields


def scaled(name, by):
    def act(folder):
        np.save(folder / "stats" / f"{name}.npy", by * np.load(folder / "stats" / f"{name}.npy"))

    return act


def filled(value, statistics=True):
    """Some points without a value; others made statistics of them, and saw nothing."""

    def act(folder):
        with h5py.File(folder / "train" / "1980.h5", "r+") as year:
            year["fields"][4, 1, 2:4, 3:9] = value
        if statistics:
            with mock.patch.object(store, "no_value", lambda x: np.zeros_like(x, bool)):
                writing.write_stats(folder)

    return act


@pytest.mark.parametrize("attribute", ["_FillValue", "missing_value"])
def test_a_word_of_the_files_own_for_no_value_is_read_by_all(own_data, tmp_path, capsys, attribute):
    filled(-888, statistics=False)(own_data)
    with h5py.File(own_data / "train" / "1980.h5", "r+") as year:
        year["fields"].attrs[attribute] = np.float32(-888)
    convert = ["convert", "--layout", "npy", "--out", tmp_path / "c"]
    for command in (["check"], ["statistics", "--overwrite"], convert):
        assert "1980.h5 holds -888, its own word for no value" in refused(
            capsys, "data", *command, "--source", own_data
        )
    assert "1980.h5 holds -888" in refused(capsys, "train", "--data", own_data, *TINY)
    with h5py.File(own_data / "train" / "1980.h5", "r+") as year:
        year["fields"].attrs[attribute] = "none"
    assert "missing_value is no number; correct" in refused(capsys, "data", "check", "--source", own_data)


def test_a_fill_value_of_a_files_own_is_read_by_all(own_data, tmp_path, capsys):
    filled(-888, statistics=False)(own_data)
    with h5py.File(own_data / "train" / "1980.h5", "r+") as year:
        fields = year["fields"][:]
        del year["fields"]
        year.create_dataset("fields", data=fields, fillvalue=-888)
    convert = ["convert", "--layout", "npy", "--out", tmp_path / "c"]
    for command in (["check"], ["statistics", "--overwrite"], convert):
        assert "1980.h5 holds -888, its own word for no value" in refused(
            capsys, "data", *command, "--source", own_data
        )
    assert "1980.h5 holds -888" in refused(capsys, "train", "--data", own_data, *TINY)


def test_a_data_set_is_not_converted_into_itself(own_data, capsys):
    out = own_data / "train" / "c"
    said = refused(capsys, "data", "convert", "--layout", "npy", "--source", own_data, "--out", out)
    assert "lies in the data set itself" in said
    assert not out.exists()


def test_a_source_that_is_changed_while_it_is_converted_gives_no_data_set(own_data, tmp_path, monkeypatch):
    plain = convert._write_years

    def write_years(todo, layout, progress):
        plain(todo, layout, progress)
        with h5py.File(own_data / "train" / "1980.h5", "r+") as year:
            year["fields"][...] *= 3
        os.utime(own_data / "train" / "1980.h5", (1, 1))

    monkeypatch.setattr(convert, "_write_years", write_years)
    with pytest.raises(DataError, match=r"was changed meanwhile; delete .*, and convert again"):
        convert.convert(own_data, "npy", tmp_path / "c", progress=False)
    assert not (tmp_path / "c" / "dataset.json").exists()


@pytest.mark.parametrize("value", ["NaN", "0", "-5", "true", "Infinity"])
def test_no_time_that_cannot_be_lies_between_snapshots(own_data, capsys, value):
    (own_data / "dataset.json").write_text(f'{{"snapshot_s": {value}}}')
    assert "snapshot_s" in refused(capsys, "data", "check", "--source", own_data)


@pytest.mark.parametrize("value", [9.96921e36, -9999, 1e20])
def test_no_statistics_are_made_of_what_says_no_value(value, own_data, capsys):
    filled(value, statistics=False)(own_data)
    before = {file.name: file.read_bytes() for file in (own_data / "stats").iterdir()}
    said = refused(capsys, "data", "statistics", "--overwrite", "--source", own_data)
    assert (
        f"1980.h5, snapshot 4, channel 1, holds {value:g}, which stands for no value elsewhere; leave the year out"
        in said
    )
    assert {file.name: file.read_bytes() for file in (own_data / "stats").iterdir()} == before


def moved(name, by=1000):
    def act(folder):
        file = folder / "stats" / f"{name}.npy"
        np.save(file, np.load(file) + by * np.load(folder / "stats" / "global_stds.npy"))
        if name != "time_means":
            (folder / "stats" / "time_means.npy").unlink()

    return act


ODD = {
    **{
        f"fill value {value}": (filled(value), f"1980.h5, snapshot 4, channel 1, holds {value:g}, ")
        for value in (9.96921e36, -9.96921e36, 1e20, -32767, -9999)
    },
    "a value far off": (filled(1e4, statistics=False), "1980.h5, snapshot 4, channel 1, holds 10000, 2e+03 deviations"),
    "means of others": (moved("global_means"), "is of other data: "),
    "means beyond all values": (moved("global_means", -20), "is of other data: global_means.npy is beyond"),
    "time means of others": (moved("time_means"), "time_means.npy is "),
    "time means of another month": (moved("time_means", 3), "time_means.npy is "),
    "a snapshot of zeros": (zeroed(4), "2016.h5, snapshot 4, holds one value a field"),
    "one snapshot": (one_snapshot, "valid has no two snapshots in a row"),
    "tiny deviations": (scaled("global_stds", 1e-30), "is of other data: "),
    "twice the deviations": (scaled("global_stds", 2.5), "the spread of channel 0 is 0.4 × global_stds.npy"),
    "half of the deviations": (scaled("global_stds", 0.4), "is of other data: the spread of channel 0 is 2.5 ×"),
    "huge means": (scaled("global_means", 1e30), "is of other data: "),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_check_refuses_what_cannot_be_trained_on(odd, own_data, capsys):
    act, why = ODD[odd]
    act(own_data)
    assert why in refused(capsys, "data", "check", "--source", own_data)


def test_training_refuses_means_of_other_data(own_data, capsys):
    file = own_data / "stats" / "global_means.npy"
    np.save(file, np.load(file) + 1000 * np.load(own_data / "stats" / "global_stds.npy"))
    assert "time_means.npy is far from global_means.npy" in refused(capsys, "train", "--data", own_data, *TINY)


def test_training_refuses_what_says_no_value(own_data, capsys):
    filled(-9999)(own_data)
    said = refused(capsys, "train", "--data", own_data, *TINY)
    assert "1980.h5, snapshot 4, channel 1, holds -9999, which stands for no value elsewhere" in said


@pytest.mark.parametrize("layout", ["hdf5-chunk1", "hdf5-chunk4-gzip1", "npy"])
@pytest.mark.parametrize("large", [2**30, 0])  # what is read straight to its place
@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_refuses_a_snapshot_of_zeros(layout, large, name, own_data, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "READ_DIRECT_BYTES", large)
    folder = convert.convert(own_data, layout, tmp_path / "c", progress=False)
    split = store.open_split(folder, "train")
    if layout == "npy":
        np.load(split.files[1], mmap_mode="r+")[2] = 0
    else:
        with h5py.File(split.files[1], "r+") as year:
            year["fields"][2] = 0
    with pytest.raises(DataError, match=rf"{split.files[1].name}, snapshot 2, holds one value a field"):
        for _ in itertools.islice(loaders.make_loader(split, 1, name), 2 * len(Pairs(split))):
            pass


def test_a_check_notes_fields_of_one_value(own_data):
    zeroed(np.s_[4, 1])(own_data)
    found = [line for line in store.validate(own_data).splitlines() if "one value" in line]
    assert found == [
        f"note: 1 fields hold one value only, first {own_data / 'valid' / '2016.h5'}, snapshot 4, channel 1"
    ]


def test_a_check_notes_a_snapshot_half_of_whose_rows_are_zeros(own_data):
    zeroed(np.s_[4, :, 8:])(own_data)
    note = f"note: 1 snapshots have many rows of one value, first {own_data / 'valid' / '2016.h5'}, snapshot 4"
    assert note in store.validate(own_data).splitlines()


@pytest.mark.parametrize("layout", ["npy", "hdf5-chunk4-gzip1"])
def test_nan_and_zeros_are_not_converted(own_data, tmp_path, layout):
    zeroed(np.s_[7])(own_data)
    with pytest.raises(DataError, match=r"2016\.h5, snapshot 7, holds one value"):
        convert.convert(own_data, layout, tmp_path / "out", progress=False)
    with h5py.File(own_data / "valid" / "2016.h5", "r+") as year:
        year["fields"][7, 1, 2, 3] = np.nan
    with pytest.raises(DataError, match=r"2016\.h5, snapshot 7, holds NaN"):
        convert.convert(own_data, layout, tmp_path / "again", progress=False)
    assert not [*tmp_path.glob("out/valid/*"), *tmp_path.glob("again/valid/*")]


def copied(folder, to):
    shutil.copy(folder / "train" / "1980.h5", folder / to)


def linked(folder, to):
    (folder / to).hardlink_to(folder / "train" / "1980.h5")


def pointed_at(folder, to):
    (folder / to).symlink_to(folder / "train" / "1980.h5")


def renewed(folder, to):
    """The same year with other numbers: a later edition of it."""
    with h5py.File(folder / "train" / "1980.h5") as old, h5py.File(folder / to, "w") as new:
        new["fields"] = old["fields"][:] * np.float32(1.001)


def half(folder, to):
    with h5py.File(folder / "train" / "1980.h5") as old, h5py.File(folder / to, "w") as new:
        new["fields"] = old["fields"][5:]


SAME = [(copied, "valid/2015.h5"), (linked, "valid/2015.h5"), (pointed_at, "test/1980.h5"), (renewed, "valid/1980.h5"),
        (half, "valid/2015.h5"), (copied, "train/x_1980.h5"), (renewed, "train/x_1980.h5")]  # fmt: skip


@pytest.mark.parametrize(("act", "to"), SAME)
def test_a_check_notes_a_year_that_is_there_twice_and_that_it_is_a_leak(act, to, own_data):
    act(own_data, to)
    (found,) = [line for line in store.validate(own_data).splitlines() if "twice" in line]
    assert found.startswith(f"note: 1 years are there twice, or in part, first {own_data / 'train' / '1980.h5'} and ")
    assert str(own_data / to) in found
    assert ("a leak" in found) == (not to.startswith("train"))


def stuck(fields):
    fields[3:] = fields[3]


def shifted(fields):
    fields[:, 1] += 7 * fields[:, 1].std()


def wider(fields):
    fields[:, 0] += 4 * (fields[:, 0] - fields[:, 0].mean())


@pytest.mark.parametrize(("spoil", "words"), [
    (stuck, "the one before once more"),
    (shifted, "is unlike the other years in channel 1: its mean is 7"),
    (wider, "is unlike the other years in channel 0: its mean is 0"),
])  # fmt: skip
def test_a_check_notes_a_year_that_cannot_be_meant(spoil, words, own_data):
    file = own_data / "train" / "1980.h5"
    assert not re.search("once more|unlike", store.validate(own_data))
    with h5py.File(file, "r+") as year:
        fields = year["fields"][:]
        spoil(fields)
        year["fields"][:] = fields
    assert cli.main(["data", "statistics", "--overwrite", "--source", str(own_data)]) == 0
    noted = [line for line in store.validate(own_data).splitlines() if words in line]
    assert len(noted) == 1 and str(file) in noted[0], store.validate(own_data)


def test_a_file_that_another_program_writes_is_said_to_be_that(own_data):
    with h5py.File(own_data / "train" / "1980.h5", "r+"):
        code = "import sys; from dltutorial.data import store; store.validate(sys.argv[1])"
        done = subprocess.run([sys.executable, "-c", code, str(own_data)], capture_output=True, text=True)
    assert "another program has it open for writing" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("rows", "columns"), [(48, 24), (16, 48)])
def test_validation_on_another_grid_is_refused_before_both_are_cropped(rows, columns, own_data, capsys, tmp_path):
    (own_data / "stats" / "time_means.npy").unlink()
    with h5py.File(own_data / "valid" / "2016.h5", "r+") as year:
        fields = year["fields"][:]
        del year["fields"]
        year["fields"] = np.tile(fields, (1, 1, rows // 16, columns // 24))
    line = refused(capsys, "train", "--data", own_data, *TINY, "--n-lat", 16, "--n-lon", 24)
    assert "valid/2016.h5" in line.replace(os.sep, "/") and f"{rows}, {columns})" in line and "16, 24)" in line
    assert not (tmp_path / "runs").exists()


# Pipes and devices, which never end


@pytest.mark.parametrize("name", ["stats/global_means.npy", "stats/time_means.npy", "dataset.json", "valid/2016.h5"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_never_ends_is_not_read(own_data, name, kind, tmp_path):
    file = own_data / name
    file.unlink(missing_ok=True)
    {"pipe": os.mkfifo, "device": lambda file: file.symlink_to("/dev/zero"), "folder": Path.mkdir}[kind](file)
    for act in (store.validate, lambda folder: convert.convert(folder, "npy", tmp_path / "out", progress=False)):
        with pytest.raises(DataError, match=re.escape(str(file))) as caught:
            act(own_data)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["stats/global_stds.npy", "stats/time_means.npy", "stats"])
@pytest.mark.parametrize("kind", ["pipe", "other"])
def test_statistics_that_are_no_files_are_not_replaced(own_data, name, kind, capsys):
    place = own_data / name
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    os.mkfifo(place) if kind == "pipe" else place.write_text("x") if name == "stats" else place.mkdir()
    why = f"{place} is no {'folder' if name == 'stats' else 'regular file'}; remove it"
    assert why in refused(capsys, "data", "statistics", "--overwrite", "--source", own_data)


def test_statistics_that_may_not_be_written_are_told_before_the_data_are_read(own_data, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    monkeypatch.setattr(store, "samples", lambda file: pytest.fail("it read"))
    said = refused(capsys, "data", "statistics", "--overwrite", "--source", own_data)
    assert f"you may not write to {own_data / 'stats'}, where statistics belong; ask for it" in said


@pytest.mark.parametrize("command", [
    ["statistics", "--source", "{}"], ["check", "--source", "{}"], ["convert", "--layout", "npy", "--source", "{}"],
    ["weather", "--preset", "smoke", "--out", "{}"], ["convert", "--layout", "npy", "--source", "{own}", "--out", "{}"],
])  # fmt: skip
def test_a_path_that_is_too_long_is_said_to_be_that(command, own_data, tmp_path, capsys):
    long = tmp_path / ("x" * 300)
    said = refused(capsys, "data", *(word.format(long, own=own_data) for word in command))
    assert str(long) in said and "disk" not in said and "Errno" not in said


def test_a_pipe_among_simulated_years_is_not_read(tmp_path):
    (tmp_path / "train").mkdir()
    os.mkfifo(tmp_path / "train" / "sim_0001.h5")
    with pytest.raises(DataError, match=r"sim_0001\.h5 is no regular file"):
        weather.ensure(PRESETS["smoke"], tmp_path, progress=False)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_split_of_another_grid_is_named_and_the_statistics_stay(split, own_data, capsys, tmp_path):
    """ERA5's years of 721 rows beside some of 720."""
    file = next((own_data / split).glob("*.h5"))
    with h5py.File(file) as year:
        fields = year["fields"][:, :, :-8]
    with h5py.File(file, "w") as year:
        year["fields"] = fields
    for argv in (
        ("check", "--source", own_data),
        ("convert", "--source", own_data, "--layout", "npy", "--out", tmp_path / "n"),
    ):
        line = refused(capsys, "data", *argv)
        assert file.name in line and "remove one of them" in line and "statistics" not in line
    if split == "valid":
        assert file.name in refused(capsys, "train", "--data", own_data, "--name", "r", *TINY)


def test_no_data_set_is_simulated_into_a_folder_of_other_things(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    line = refused(capsys, "data", "weather", "--preset", "smoke", "--out", tmp_path)
    assert "holds notes.txt, and no data set" in line
    assert sorted(place.name for place in tmp_path.iterdir() if place.name != "runs") == ["notes.txt"]


def test_a_configuration_of_a_windows_editor_is_read(own_data, capsys, tmp_path):
    (config := tmp_path / "c.json").write_text('\ufeff{"steps": 3}', encoding="utf-8")
    assert trained(own_data, capsys, "--config", config, "--eval-every", "3")[1]["steps"] == 4  # the option goes before
    config.write_text('\ufeff{"seed": 7}', encoding="utf-8")
    assert trained(own_data, capsys, "--config", config)[1]["seed"] == 7
