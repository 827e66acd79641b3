"""``dltutorial data check`` reads a user's own data once, and says in one line each what is wrong with them."""

import shutil

import h5py
import numpy as np
import pytest

from dltutorial import cli


def change_year(folder, change, name="train/1980.h5"):
    """Write one year again, after ``change`` (T, C, H, W)."""
    with h5py.File(folder / name) as year:
        fields = change(year["fields"][:])
    with h5py.File(folder / name, "w") as year:
        year["fields"] = fields


def with_value(place, value):
    """A change that writes ``value`` at a place."""

    def change(fields):
        fields[place] = value
        return fields

    return change


def scaled_statistics(name, factor=1.0, deviations=0.0):
    """Statistics of other data: multiplied, or some deviations away."""

    def act(folder):
        file = folder / "stats" / f"{name}.npy"
        np.save(file, factor * np.load(file) + deviations * np.load(folder / "stats" / "global_stds.npy"))

    return act


def one_value(folder):
    for file in folder.glob("train/*.h5"):
        change_year(folder, with_value(np.s_[:, 1], 273.15), f"train/{file.name}")


PROBLEMS = {
    "NaN": (
        lambda folder: change_year(folder, with_value((4, 1, 2, 3), np.nan)),
        "1980.h5, snapshot 4, channel 1, holds NaN or infinity; fill these values",
    ),
    "infinity in another split": (
        lambda folder: change_year(folder, with_value((2, 0, 0, 0), np.inf), "valid/2016.h5"),
        "2016.h5, snapshot 2, channel 0, holds NaN or infinity",
    ),
    "integers": (lambda folder: change_year(folder, lambda fields: fields.astype(int)), "1980.h5 holds int64"),
    "one value": (one_value, "channel 1 has one value in all training years; leave it out"),
    "means of other data": (scaled_statistics("global_means", deviations=-20), "global_means.npy does not fit"),
    "deviations of other data": (scaled_statistics("global_stds", 2.5), "global_stds.npy does not fit"),
    "time means of other data": (scaled_statistics("time_means", deviations=3), "time_means.npy does not fit"),
    "no statistics": (lambda folder: shutil.rmtree(folder / "stats"), "global_means.npy is missing; compute it: "),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_each_problem_is_one_line(case, own_data, capsys):
    act, words = PROBLEMS[case]
    act(own_data)
    assert cli.main(["data", "check", "--source", str(own_data)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert words in lines[0]
    assert "is finite" not in lines[-1]


def test_good_data_are_summed_up_in_one_line(own_data, capsys):
    shutil.rmtree(own_data / "test")
    before = {file: file.stat().st_mtime_ns for file in own_data.rglob("*")}
    assert cli.main(["data", "check", "--source", str(own_data)]) == 0
    summary = f"{own_data}: train 20, valid 10 samples of 3 × 16 × 24; every value is finite\n"
    assert capsys.readouterr().out == summary
    assert {file: file.stat().st_mtime_ns for file in own_data.rglob("*")} == before


def test_statistics_that_are_missing_or_do_not_fit_are_written_if_the_user_asks(own_data, capsys):
    stats = own_data / "stats"
    right = {file.stem: np.load(file) for file in stats.iterdir()}
    own_means = right["global_means"] + 0.01  # close to the data, so they stay
    np.save(stats / "global_means.npy", own_means)
    np.save(stats / "global_stds.npy", 5 * right["global_stds"])
    (stats / "time_means.npy").unlink()
    assert cli.main(["data", "check", "--write-statistics", "--source", str(own_data)]) == 0
    written = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrote")]
    assert written == [f"wrote {stats / name}.npy" for name in ("global_stds", "time_means")]
    assert np.array_equal(np.load(stats / "global_means.npy"), own_means)
    for name in ("global_stds", "time_means"):
        x = np.load(stats / f"{name}.npy")
        assert x.dtype == np.float32 and x.shape == right[name].shape
        np.testing.assert_allclose(x, right[name], rtol=1e-5, atol=1e-5)
