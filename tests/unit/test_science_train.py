"""``dltutorial train --task …`` of every case: a resumed run is the run never stopped; what cannot be is one line."""

import shutil

import h5py
import numpy as np
import pytest
import science_data
from same_run import assert_same_run

from dltutorial import cli
from dltutorial.train import loop

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


def put(name, place, value):
    """Write one value into a data set of a file."""

    def change(h5):
        h5[name][place] = value

    return change


def swap(name, one, other):
    """Exchange two samples of a data set, or two values."""

    def change(h5):
        found = h5[name][...]
        found[[one, other]] = found[[other, one]]
        h5[name][...] = found

    return change


def attribute(name, value):
    """Write an attribute of the file."""
    return lambda h5: h5.attrs.__setitem__(name, value)


@pytest.mark.parametrize(
    ("task", "file", "change"),
    [
        ("climate", "train/data-007.h5", put("climate/data", (3, 3, 1), 0.25)),
        ("climate", "train/data-007.h5", swap("climate/labels_0", 0, 1)),
        ("climate", "validation/data-003.h5", swap("climate/labels_0", 0, 1)),
        ("climate", "stats.h5", put("climate/minval", 0, -4.0001)),
        ("landcover", "train.h5", swap("labels", 1, 2)),
        ("landcover", "train.h5", swap("images", 5, 6)),
        ("landcover", "validation.h5", swap("labels", 1, 2)),
        ("cosmology", "train/box_07.h5", put("unitPar", 1, 0.5)),
        ("cosmology", "train/box_07.h5", swap("full", 1, 2)),
        ("cosmology", "valid/box_02.h5", put("unitPar", 1, 0.5)),
        ("survey", "train.h5", swap("images", 5, 6)),
        ("survey", "valid.h5", swap("labels", 1, 2)),
        ("survey", "valid.h5", swap("images", 5, 6)),
        ("surrogate", "train.h5", swap("tensor", 1, 2)),
        ("surrogate", "valid.h5", swap("tensor", 1, 2)),
        ("pinn", "train.h5", swap("c", 1, 2)),
        ("pinn", "valid.h5", put("c", 3, 0.5)),
        ("pinn", "train.h5", attribute("a", 1.5)),  # the error of the constant is scored by it
    ],
)
def test_a_run_does_not_go_on_with_labels_or_samples_that_were_changed(train, task, file, change, tmp_path, capsys):
    data = science_data.write(task, tmp_path / "data")
    assert train(task, data, "r", "--steps", "2") == 0
    with h5py.File(data / file, "r+") as h5:
        change(h5)
    capsys.readouterr()
    assert train(task, data, "r", "--steps", "2", "--resume") == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "was trained on other data; give the same --data" in said


@pytest.mark.parametrize("task", science_data.TASKS)
def test_the_same_data_elsewhere_are_the_same(train, task, tmp_path, capsys):
    data = science_data.write(task, tmp_path / "data")
    assert train(task, data, "r", "--steps", "2") == 0
    shutil.copytree(data, tmp_path / "copy")
    assert train(task, tmp_path / "copy", "r", "--steps", "2", "--resume") == 0
    assert "is finished already" in capsys.readouterr().out


def keep_but(name, value):
    """In all samples: no such label any more."""

    def change(h5):
        found = h5[name][...]
        found[found == value] = 0
        h5[name][...] = found

    return change


def no_class(number):
    """In all tiles: not this class."""
    return put("labels", (slice(None), number), 0)


@pytest.mark.parametrize(
    ("task", "files", "change", "says"),
    [
        ("climate", "train/data-003.h5", put("climate/labels_0", (0, 0), 7), "labels from 0 to 7"),
        ("climate", "validation/data-003.h5", put("climate/labels_0", (0, 0), 3), "labels from 0 to 3"),
        ("climate", "train/*.h5", keep_but("climate/labels_0", 2), "no pixel is of class front"),
        ("climate", "train/data-005.h5", put("climate/data", (2, 3, 1), np.nan), "data-005.h5 holds NaN"),
        ("climate", "validation/data-005.h5", put("climate/data", (2, 3, 1), np.nan), "data-005.h5 holds NaN"),
        ("landcover", "train.h5", put("labels", (4, 5), 2), "labels run to 2"),
        ("landcover", "validation.h5", put("labels", (4, 5), 9), "labels run to 9"),
        ("landcover", "train.h5", no_class(4), "no tile has pastures"),
        ("landcover", "train.h5", put("images", (7, 0, 0, 0), np.nan), "tile 7 holds NaN"),
        ("landcover", "validation.h5", put("images", (7, 0, 0, 0), np.inf), "tile 7 holds NaN"),
        ("survey", "valid.h5", put("labels", 3, 5), "labels out of range: 5"),
        ("survey", "valid.h5", put("labels", slice(None), 1), "class 0 never occurs"),
        ("survey", "train.h5", put("images", (7, 0, 0, 0), np.nan), "image 7 holds NaN"),
        ("surrogate", "train.h5", put("tensor", (3, 5), np.nan), "row 3 of tensor"),
        ("pinn", "valid.h5", put("c", 3, np.nan), "row 3 of c"),
        ("cosmology", "valid/box_02.h5", put("unitPar", 1, np.nan), "is not between -1 and 1"),
        ("cosmology", "train/box_11.h5", put("unitPar", 1, 4.0), "is not between -1 and 1"),
        ("cosmology", "train/box_11.h5", put("full", (0, 0, 0, 0), -1), "less than no particles"),
    ],
)
def test_data_that_cannot_be_are_one_line_and_status_2(train, task, files, change, says, tmp_path, capsys):
    data = science_data.write(task, tmp_path / "data")
    for file in data.glob(files):
        with h5py.File(file, "r+") as h5:
            change(h5)
    assert train(task, data, "bad") == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.strip() and "step/s" not in line]
    assert len(said) == 1
    assert says in said[0]
