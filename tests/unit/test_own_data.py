"""Data of other people, in NERSC's layout but not made here: cropped, with other floats, without some files."""

import itertools
import json

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from dltutorial import cli
from dltutorial.data import convert, loaders, store
from dltutorial.data.loaders import LOADERS, Pairs
from dltutorial.train.forecasting import evaluate, row_weights

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


@pytest.mark.parametrize("layout", [None, "npy", "hdf5-chunk4-gzip1", "zarr-chunk1"])
def test_a_crop_is_what_data_of_that_size_are(tall, tiny_data, tmp_path, layout):
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
    np.testing.assert_allclose(
        evaluate(Same(), Pairs(split)).rmse_C, np.sqrt(change2.mean((-2, -1))).mean(0), rtol=1e-4
    )
    (tall / "dataset.json").unlink()  # a sphere: latitudes 90 … −90 of 17 rows, without the last one
    weights = np.cos(np.deg2rad(np.linspace(90, -90, 17)))[:16, None]
    weighted = np.sqrt((weights / weights.mean() * change2).mean((-2, -1))).mean(0)
    scores = evaluate(Same(), Pairs(store.open_split(tall, "valid", crop=(16, 24))))
    np.testing.assert_allclose(scores.rmse_C, weighted, rtol=1e-4)
    assert row_weights(16, "sphere", 17).mean().item() == pytest.approx(1)


def test_training_crops_where_a_knob_asks_for_less(tall, tiny_data, capsys):
    said, recipe = trained(tall, capsys, "--n-lat", 16, "--n-lon", 24)
    assert (recipe["n_lat"], recipe["n_lon"]) == (16, 24)
    assert "first 16 of 17 rows and 24 of 27 columns" in said
    whole = store.open_split(tall)
    assert whole.shape == (3, 17, 27)


def test_training_says_which_knob_crops_rows_that_no_patch_divides(tall, capsys, tmp_path):
    line = refused(capsys, "train", "--data", tall, *TINY)
    assert "n_lat=17" in line and "n_lat=16 takes the data's first 16" in line
    line = refused(capsys, "train", "--data", tall, "--n-lat", 16, *TINY)
    assert "n_lon=27" in line and "n_lon=24 takes" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("knob", "most"), [("--n-lat", "n_lat to at most 17"), ("--n-lon", "n_lon to at most 27")])
def test_more_rows_or_columns_than_there_are_cannot_be_asked_for(tall, capsys, knob, most, tmp_path):
    options = {"--n-lat": 16, "--n-lon": 24, knob: 32}
    line = refused(capsys, "train", "--data", tall, *itertools.chain(*options.items()), *TINY)
    assert most in line and "(3, 17, 27)" in line
    assert not (tmp_path / "runs").exists()
