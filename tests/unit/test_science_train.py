"""``dltutorial train --task …`` of every case: a resumed run is the run never stopped; what cannot be is one line."""

import shutil

import h5py
import numpy as np
import pytest
import science_data
from same_run import assert_same_run

from dltutorial import cli
from dltutorial.engine import loop

pytestmark = pytest.mark.usefixtures("one_thread")
KNOBS = "--preset smoke --steps 8 --global-batch-size 8 --eval-every 4 --log-every 1 --checkpoint-every 3 --dim 8"
KNOBS = [*KNOBS.split(), "--warmup-steps", "1", "--device", "cpu", "--track"]


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Run the command line on a folder in this process; its exit status."""
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path / "runs"))

    def run(task, data, name, *more):
        return cli.main(["train", "--task", task, "--data", str(data), "--name", name, *KNOBS, *more])

    return run


@pytest.mark.ci
@pytest.mark.parametrize("task", science_data.TASKS)
def test_a_resumed_run_of_every_case_is_to_the_bit_the_one_never_stopped(train, task, tmp_path, monkeypatch):
    data = science_data.write(task, tmp_path / "data")
    turned = ["--roll"] if task in ("climate", "landcover") else []
    assert train(task, data, "whole", *turned) in (0, None)
    with monkeypatch.context() as patch:

        def interrupt_the_fifth(made, recipe, original=loop.learning_rate):
            if made == 5:
                raise KeyboardInterrupt
            return original(made, recipe)

        patch.setattr(loop, "learning_rate", interrupt_the_fifth)
        assert train(task, data, "stopped", *turned) == 130
    assert train(task, data, "stopped", *turned, "--resume") in (0, None)
    assert_same_run(tmp_path / "runs" / "whole", tmp_path / "runs" / "stopped")


def write_value(name, place, value):
    """Write a value into a dataset."""

    def change(h5):
        h5[name][place] = value

    return change


def replace(name, make):
    """Put another dataset in the place of one; ``make`` gets the old values."""

    def change(h5):
        values = h5[name][...]
        del h5[name]
        h5[name] = make(values)

    return change


def change_files(folder, pattern, change):
    """Change the HDF5 files whose names match."""
    for file in folder.glob(pattern):
        with h5py.File(file, "r+") as h5:
            change(h5)


OTHER_DATA = [
    ("climate", "validation/data-003.h5", replace("climate/labels_0", lambda labels: labels[::-1])),
    ("landcover", "train.h5", replace("images", lambda images: images[::-1])),
    ("cosmology", "train/box_07.h5", write_value("unitPar", 1, 0.5)),
    ("survey", "valid.h5", replace("labels", lambda labels: labels[::-1])),
    ("surrogate", "valid.h5", replace("tensor", lambda runs: runs[::-1])),
    ("pinn", "train.h5", lambda h5: h5.attrs.__setitem__("a", 1.5)),  # the error of the constant is scored with it
]


@pytest.mark.parametrize(("task", "file", "change"), OTHER_DATA, ids=[row[0] for row in OTHER_DATA])
def test_a_run_is_resumed_on_a_copy_of_its_data_and_not_on_other_data(train, task, file, change, tmp_path, capsys):
    data = science_data.write(task, tmp_path / "data")
    assert train(task, data, "r", "--steps", "2") == 0
    shutil.copytree(data, tmp_path / "copy")
    assert train(task, tmp_path / "copy", "r", "--steps", "2", "--resume") == 0
    assert "is finished already" in capsys.readouterr().out
    change_files(data, file, change)
    assert train(task, data, "r", "--steps", "2", "--resume") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "was trained on other data; give the same --data" in line


CLIMATE, BOX = "train/data-003.h5", "train/box_11.h5"
REFUSED = [
    ("climate", CLIMATE, write_value("climate/labels_0", (0, 0), 7), "has a label 7, but"),
    ("climate", CLIMATE, write_value("climate/data", (2, 3, 1), np.nan), "row 2 of climate/data holds NaN"),
    ("climate", CLIMATE, replace("climate/data", lambda x: x[:8]), "(8, 16, 5), not numbers (16, 16, 5)"),
    ("climate", "train/*.h5", replace("climate/labels_0", np.zeros_like), "no pixel is of class"),
    ("climate", "validation/data-003.h5", write_value("climate/data", slice(None), 0), "holds one value only"),
    ("climate", "stats.h5", write_value("climate/maxval", 0, -4.0), "maxval is not above its minval"),
    ("landcover", "validation.h5", write_value("labels", (4, 5), 9), "has a label 9, but"),
    ("landcover", "train.h5", write_value("labels", (slice(None), 4), 0), "no tile has pastures"),
    ("landcover", "train.h5", write_value("images", (7, 0, 0, 0), np.nan), "tile 7 holds NaN"),
    ("landcover", "validation.h5", replace("images", lambda x: x[:, :5]), "has samples (5, 8, 8), but"),
    ("landcover", "train.h5", replace("images", lambda x: np.ones((len(x), 24, 24, 12), "f4")), "channels last"),
    ("survey", "valid.h5", write_value("labels", 3, 5), "has a label 5, but"),
    ("survey", "valid.h5", write_value("labels", slice(None), 1), "must occur in both"),
    ("survey", "train.h5", write_value("images", (7, 0, 0, 0), np.nan), "row 7 of images holds NaN"),
    ("surrogate", "train.h5", write_value("tensor", (3, 5), np.nan), "row 3 of tensor"),
    ("surrogate", "valid.h5", replace("tensor", lambda x: 0 * x), "all runs are alike"),
    ("pinn", "valid.h5", write_value("c", 3, np.nan), "row 3 of c"),
    ("pinn", "train.h5", lambda h5: h5.attrs.__setitem__("a", np.nan), "a = nan, b = 0.2 are no two numbers"),
    ("cosmology", BOX, write_value("unitPar", 1, 4.0), "is not between -1 and 1"),
    ("cosmology", BOX, write_value("full", (0, 0, 0, 0), -1), "less than no particles"),
    ("cosmology", BOX, replace("full", lambda x: x[:8, :8, :8]), "not numbers (16, 16, 16, 4)"),
]


@pytest.mark.parametrize(("task", "files", "change", "words"), REFUSED, ids=[f"{r[0]}: {r[3]}" for r in REFUSED])
def test_data_that_cannot_be_used_are_one_line_and_status_2(train, task, files, change, words, tmp_path, capsys):
    data = science_data.write(task, tmp_path / "data")
    change_files(data, files, change)
    assert train(task, data, "bad") == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.strip() and "step/s" not in line]
    assert words in line
