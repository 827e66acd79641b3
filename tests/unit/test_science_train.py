"""``dltutorial train --task …`` of every case: a resumed run is the run never stopped; what cannot be is one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import science_data
from same_run import assert_same_run

from dltutorial import cli, config
from dltutorial.science import cases
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


def half_written(name):
    """What is left if its writer is killed after the first piece, of as many as there are rows."""

    def change(h5):
        found = h5[name][...]
        del h5[name]
        h5.create_dataset(name, found.shape, found.dtype, chunks=(1, *found.shape[1:]))[0] = found[0]

    return change


def instead(name, make):
    """Another data set in the place of one; ``make`` gets what it held."""

    def change(h5):
        found = h5[name][...]
        del h5[name]
        h5[name] = make(found)

    return change


def linked(name, kind):
    """The data set is elsewhere: in another file, under another name, or a group of it is."""

    def change(h5):
        other = f"{h5.filename}.other"
        with h5py.File(other, "w") as away:
            h5.copy(h5[name], away, name)
        if kind == "link":
            h5.move(name, "elsewhere")
            h5[name] = h5py.SoftLink("/elsewhere")
        elif kind == "virtual":
            layout = h5py.VirtualLayout(h5[name].shape, h5[name].dtype)
            layout[...] = h5py.VirtualSource(other, name, h5[name].shape)
            del h5[name]
            h5.create_virtual_dataset(name, layout)
        elif kind == "raw":
            found = h5[name][...]
            del h5[name]
            h5.create_dataset(name, data=found, external=[(f"{h5.filename}.raw", 0, found.nbytes)])
        else:
            first = name.split("/")[0]
            del h5[first]
            h5[first] = h5py.ExternalLink(other, first)

    return change


def half(labels):
    """Each as a share, one of them 0.5."""
    labels = labels.astype(np.float32)
    labels.flat[3] = 0.5
    return labels


def missing(labels):
    """One is not known."""
    return np.where(half(labels) == 0.5, np.nan, labels)


# Of each case: a file, and the name of a data set in it.
PLACES = [
    ("climate", "train/data-003.h5", "climate/data"),
    ("climate", "validation/data-003.h5", "climate/labels_0"),
    ("climate", "stats.h5", "climate/minval"),
    ("landcover", "train.h5", "images"),
    ("landcover", "validation.h5", "labels"),
    ("survey", "train.h5", "images"),
    ("survey", "valid.h5", "labels"),
    ("surrogate", "train.h5", "tensor"),
    ("surrogate", "valid.h5", "settings"),
    ("pinn", "train.h5", "points"),
    ("pinn", "valid.h5", "c"),
    ("cosmology", "train/box_00.h5", "full"),
    ("cosmology", "valid/box_02.h5", "unitPar"),
]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (half_written, "lacks"),
        (lambda name: linked(name, "external"), "keeps its values in other files"),
        (lambda name: linked(name, "link"), "keeps its values in other files"),
        (lambda name: linked(name, "virtual"), "keeps its values in other files"),
        (lambda name: linked(name, "raw"), "keeps its values in other files"),
        (lambda name: instead(name, lambda found: found[:0]), "not numbers ("),
        (lambda name: instead(name, lambda found: h5py.Empty("f4")), "not numbers ("),
        (lambda name: instead(name, lambda found: found.astype("S9")), "not numbers ("),
        (lambda name: instead(name, lambda found: found[..., None]), "not numbers ("),
        (lambda name: lambda h5: h5[name].attrs.__setitem__("scale_factor", 0.1), "has packed values"),
    ],
    ids=["half written", "external", "link", "virtual", "raw", "without a row", "empty", "text", "one more", "packed"],
)
@pytest.mark.parametrize(("task", "file", "name"), PLACES)
def test_numbers_that_are_not_all_there_are_one_line(train, task, file, name, change, says, tmp_path, capsys):
    data = science_data.write(task, tmp_path / "data")
    with h5py.File(data / file, "r+") as h5:
        change(name)(h5)
    assert train(task, data, "bad") == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.strip() and "step/s" not in line]
    assert file in said and says in said


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize(("task", "file", "name"), PLACES[::2])
def test_what_never_ends_is_not_read(train, task, file, name, kind, tmp_path, capsys):
    data = science_data.write(task, tmp_path / "data")
    (data / file).unlink()
    {"pipe": os.mkfifo, "device": lambda file: file.symlink_to("/dev/zero"), "folder": Path.mkdir}[kind](data / file)
    assert train(task, data, "bad") == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert file in said and "is no regular file" in said


@pytest.mark.parametrize(
    ("task", "files", "change", "says"),
    [
        ("climate", "train/data-003.h5", put("climate/labels_0", (0, 0), 7), "has a label 7, but"),
        ("climate", "validation/data-003.h5", put("climate/labels_0", (0, 0), 3), "has a label 3, but"),
        ("climate", "train/*.h5", keep_but("climate/labels_0", 2), "no pixel is of class front"),
        ("climate", "train/data-005.h5", put("climate/data", (2, 3, 1), np.nan), "005.h5: row 2 of climate/data holds"),
        ("climate", "validation/data-005.h5", put("climate/data", (2, 3, 1), np.nan), "005.h5: row 2 of climate/data"),
        ("landcover", "train.h5", put("labels", (4, 5), 2), "has a label 2, but"),
        ("landcover", "validation.h5", put("labels", (4, 5), 9), "has a label 9, but"),
        ("landcover", "train.h5", no_class(4), "no tile has pastures"),
        ("landcover", "train.h5", put("images", (7, 0, 0, 0), np.nan), "tile 7 holds NaN"),
        ("landcover", "validation.h5", put("images", (7, 0, 0, 0), np.inf), "tile 7 holds NaN"),
        ("landcover", "train.h5", put("images", (7, 0, 0, 0), 65535), "tile 7 holds NaN, infinity, no value"),
        (
            "landcover",
            "train.h5",
            instead("images", lambda x: (x / 40).astype("u1")),
            "images is uint8, no reflectance",
        ),
        ("survey", "valid.h5", put("labels", 3, 5), "has a label 5, but"),
        ("survey", "valid.h5", put("labels", slice(None), 1), "must occur in both"),
        ("survey", "train.h5", put("images", (7, 0, 0, 0), np.nan), "row 7 of images holds NaN"),
        ("surrogate", "train.h5", put("tensor", (3, 5), np.nan), "row 3 of tensor"),
        ("pinn", "valid.h5", put("c", 3, np.nan), "row 3 of c"),
        ("cosmology", "valid/box_02.h5", put("unitPar", 1, np.nan), "row 1 of unitPar holds NaN"),
        ("cosmology", "train/box_11.h5", put("unitPar", 1, 4.0), "is not between -1 and 1"),
        ("cosmology", "train/box_11.h5", put("full", (0, 0, 0, 0), -1), "less than no particles"),
        ("climate", "validation/data-003.h5", put("climate/data", slice(None), 0), "003.h5 holds one value only"),
        (
            "landcover",
            "train.h5",
            put("images", 7, 0),
            "tile 7 holds NaN, infinity, no value, one value, or another unit",
        ),
        ("survey", "train.h5", put("images", 7, 0), "image 7 holds one value only"),
        ("cosmology", "train/box_11.h5", put("full", slice(None), 0), "or none in all"),
        ("climate", "train/data-003.h5", instead("climate/labels_0", half), "003.h5 has a label 0.5, but"),
        ("climate", "train/data-003.h5", instead("climate/labels_0", missing), "row 0 of climate/labels_0 holds NaN"),
        ("landcover", "train.h5", instead("labels", half), "train.h5 has a label 0.5, but"),
        ("landcover", "train.h5", instead("labels", missing), "train.h5 has a label nan, but"),
        ("survey", "valid.h5", instead("labels", half), "valid.h5 has a label 0.5, but"),
        ("survey", "valid.h5", instead("labels", missing), "row 3 of labels holds NaN"),
        ("survey", "valid.h5", instead("labels", np.sort), "must occur in both"),
        ("survey", "valid.h5", instead("images", lambda x: x.repeat(3, 1)), "valid.h5 has samples (3, 16, 16), but"),
        ("landcover", "validation.h5", instead("images", lambda x: x[:, :5]), "has samples (5, 8, 8), but"),
        ("climate", "stats.h5", put("climate/maxval", 0, np.inf), "row 0 of climate/maxval holds"),
        ("climate", "stats.h5", put("climate/maxval", 0, 1e300), "row 0 of climate/maxval holds"),
        ("climate", "stats.h5", put("climate/maxval", 0, -4.0), "maxval is not above its minval"),
        *(
            (
                task,
                f"{name}.h5",
                instead("images", lambda x, n=n: np.ones((len(x), 24, 24, n), x.dtype)),
                "channels last, it seems; write",
            )
            for task, name, n in (("landcover", "train", 12), ("landcover", "validation", 12), ("survey", "train", 3))
        ),
        (
            "climate",
            "train/data-003.h5",
            instead("climate/data", lambda x: x[:8]),
            "(8, 16, 5), not numbers (16, 16, 5)",
        ),
        ("climate", "validation/data-003.h5", instead("climate/labels_0", lambda x: x[:8]), "not numbers (16, 16)"),
        ("cosmology", "train/box_11.h5", instead("full", lambda x: x[:8, :8, :8]), "not numbers (16, 16, 16, 4)"),
        ("cosmology", "valid/box_02.h5", instead("full", lambda x: x[:8, :8, :8]), "not numbers (16, 16, 16, 4)"),
        ("surrogate", "valid.h5", instead("tensor", lambda x: x[:, :9]), "not numbers (20, 64)"),
        ("surrogate", "valid.h5", instead("tensor", lambda x: 0 * x), "valid.h5: all runs are alike"),
        ("pinn", "train.h5", attribute("a", np.nan), "its attributes a = nan, b = 0.2 are no two numbers"),
        ("pinn", "train.h5", attribute("a", "fast"), "train.h5"),
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


def test_one_run_alone_is_no_validation(train, tmp_path, capsys):
    data = science_data.write("surrogate", tmp_path / "data")
    with h5py.File(data / "valid.h5", "r+") as h5:
        for name in ("settings", "tensor"):
            instead(name, lambda found: found[:1])(h5)
    assert train("surrogate", data, "bad") == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "valid.h5: all runs are alike" in said


def test_the_error_of_a_constant_that_is_zero_is_no_share(train, tmp_path):
    data = science_data.write("pinn", tmp_path / "data")
    with h5py.File(data / "train.h5", "r+") as h5:
        h5.attrs["a"] = 0.0
    assert train("pinn", data, "still") == 0
    scores = json.loads((tmp_path / "runs" / "still" / "status.json").read_text())["scores"]
    assert scores["valid/a_error"] == pytest.approx(abs(scores["valid/a"]))


@pytest.mark.parametrize(("task", "file"), [("climate", "train/data-003.h5"), ("cosmology", "train/box_03.h5")])
@pytest.mark.parametrize("suffix", [".H5", ".hdf5"])
def test_a_sample_in_another_spelling_of_hdf5_counts(train, task, file, suffix, tmp_path, capsys):
    data = science_data.write(task, tmp_path / "data")
    (data / file).rename((data / file).with_suffix(suffix))
    (data / file).with_name("._data-003.h5").write_text("of another system")
    assert train(task, data, "r", "--steps", "2") == 0
    with h5py.File((data / file).with_suffix(suffix), "r+") as h5:
        h5.attrs["changed"] = 1
    assert train(task, data, "r", "--steps", "2", "--resume") == 2
    assert "was trained on other data" in capsys.readouterr().err


@pytest.mark.parametrize("task", science_data.TASKS)
def test_no_samples_wanted_are_as_many_as_the_preset_has(task):
    case, base = cases.case(task), config.preset("smoke")
    assert case.make_recipe(base, {"samples": 0}, None) == case.make_recipe(base, {}, None)


FULL = """
import resource, sys
from dltutorial import config
from dltutorial.errors import DataError
from dltutorial.science import cases
case = cases.case(sys.argv[1])
recipe = case.make_recipe(config.preset("smoke"), {"samples": 2000}, None)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # a file has no room beyond this, as on a full disk
try:
    case.ensure(recipe, progress=False)
except DataError as error:
    print("told", error)
"""


@pytest.mark.ci
@pytest.mark.parametrize("task", [task for task in science_data.TASKS if task != "climate"])
def test_a_disk_that_takes_no_more_is_an_error_and_not_the_end_of_the_process(task, tmp_path):
    command, environment = [sys.executable, "-c", FULL, task], os.environ | {"DLTUTORIAL_DATA": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("told cannot write") and len(done.stdout.splitlines()) == 1
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] in ([], [".lock"])
