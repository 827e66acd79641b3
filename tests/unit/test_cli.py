"""Every mistake ends in one clear line on stderr and a status that is not 0; Ctrl-C leaves nothing half done."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import h5py
import nbformat
import numpy as np
import pytest
from waiting import wait_for

from dltutorial import __version__, cli
from dltutorial.course import doctor
from dltutorial.engine import run_folder
from dltutorial.errors import CourseError, Interrupted

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = {"dim": 16, "depth": 1, "heads": 2, "global-batch-size": 6, "steps": 4, "warmup-steps": 1}
TINY = [*(word for knob, value in SIZES.items() for word in (f"--{knob}", value)), "--device", "cpu", "--track"]
COMMANDS = ["doctor", "data", "train", "run", "exercises", "pocket"]


def call(*argv):
    """The exit status of a command line, run in this process."""
    try:
        return cli.main([str(word) for word in argv])
    except SystemExit as leaving:
        return leaving.code


@pytest.fixture
def refused(capsys):
    """Run a command line that must fail; returns its one line."""

    def run(*argv):
        assert call(*argv) == 2
        stderr = capsys.readouterr().err
        assert len(stderr.splitlines()) == 1, stderr
        assert stderr.startswith("dltutorial")
        return stderr

    return run


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one empty chapter that has one parameter."""
    cell = nbformat.v4.new_code_cell("steps = 3", metadata={"tags": ["parameters"]})
    folder = tmp_path / "notebooks"
    folder.mkdir()
    about = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=about), folder / "07_tiny.ipynb")
    monkeypatch.setenv("DLTUTORIAL_NOTEBOOKS", str(folder))


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=lambda words: " ".join(words) or "top")
def test_help_explains_each_command(command, capsys):
    assert call(*command, "--help") == 0
    stdout = capsys.readouterr().out
    assert stdout.startswith("usage: dltutorial")
    assert command or all(name in stdout for name in COMMANDS)


def test_python_m_is_the_same_program():
    done = subprocess.run([sys.executable, "-m", "dltutorial", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"dltutorial {__version__}\n")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (CourseError("no such thing; choose another"), 2, "dltutorial: no such thing; choose another\n"),
        (Interrupted("asked to end; go on with --resume"), 75, "dltutorial: asked to end; go on with --resume\n"),
        (KeyboardInterrupt(), 130, "dltutorial: interrupted; what was finished is kept\n"),
        (OSError(28, "No space left on device"), 2, "dltutorial: [Errno 28] No space left on device. The disk or"),
    ],
)
def test_an_error_that_says_what_to_do_is_one_line(error, status, line, monkeypatch, capsys):
    def report(measure):
        raise error

    monkeypatch.setattr(doctor, "report", report)
    assert call("doctor") == status
    stderr = capsys.readouterr().err
    assert stderr.startswith(line)
    assert len(stderr.splitlines()) == 1


def test_an_error_that_nobody_foresaw_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(doctor, "report", lambda measure: {}["a mistake in the course"])
    with pytest.raises(KeyError, match="a mistake in the course"):
        call("doctor")


def test_training_takes_sizes_from_the_data_and_knobs_from_file_and_options(tiny_data, tmp_path, capsys):
    (tmp_path / "r.json").write_text('{"steps": 3, "dim": 32, "seed": 9}')
    argv = ["train", "--data", tiny_data, "--name", "mine", "--config", tmp_path / "r.json", *TINY]
    assert call(*argv) == 0
    recipe = json.loads((tmp_path / "runs" / "mine" / "recipe.json").read_text())
    assert (recipe["n_channels"], recipe["n_lat"], recipe["n_lon"]) == (3, 16, 24)
    assert (recipe["steps"], recipe["dim"], recipe["seed"]) == (4, 16, 9)
    assert "step 4: loss" in capsys.readouterr().out


REFUSED = [
    (["nonsense"], "nonsense"),
    ([], "COMMAND"),
    (["run", "99"], "no chapter '99'"),
    (["run", "-p", "stepz", "3"], "stepz"),
    (["run", "--jobs", "0"], "--jobs"),
    (["run", "--timeout", "nan"], "--timeout: nan is not from 1 to 604,800"),
    (["run", "--preset", "huge"], "huge"),
    (["data", "weather", "--preset", "huge"], "huge"),
    (["data", "weather", "--processes", "0"], "--processes: 0 is not from 1"),
    (["data", "check"], "--source"),
    (["data"], "WHAT"),
    (["train", "--preset", "huge"], "huge"),
    (["train", "--stepz", "3"], "--stepz"),
    (["train", "--steps", "many"], "many"),
    (["train", "--heads", "3", "--dim", "128"], "heads"),
    (["train", "--learning-rate", "nan"], "learning_rate"),
    (["train", "--workers", "100000"], "workers 100,000: the "),
    (["train", "--depth", "1000000000"], "GiB or more, but a rank has"),
    (["train", "--config", "nowhere.json"], "nowhere.json"),
    (["train", "--name", "../x"], "../x"),
    (["pocket", "up", "--nodes", "1000"], "1 to 64 nodes"),
    (["exercises", "burn"], "burn"),
    (["exercises", "reset"], "exercises reset: the following arguments are required: NAME; see dltutorial exercises"),
]


@pytest.mark.parametrize(("argv", "words"), REFUSED, ids=[" ".join(argv) for argv, _ in REFUSED])
def test_what_cannot_be_is_refused_in_one_line(argv, words, refused, course, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in refused(*argv)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["train", "run", "doctor", "data weather"])
def test_an_unknown_preset_in_the_environment_is_named(command, refused, course, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_PRESET", "nonsense")
    assert "DLTUTORIAL_PRESET 'nonsense'" in refused(*command.split())


def put_nan(folder):
    with h5py.File(folder / "train" / "1979.h5", "r+") as year:
        year["fields"][0, 0, 0, 0] = np.nan


DAMAGE = {
    "missing": (shutil.rmtree, "no data folder"),
    "NaN": (put_nan, "1979.h5, snapshot 0, channel 0, holds NaN"),
    "without statistics": (lambda folder: shutil.rmtree(folder / "stats"), "global_means.npy is missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_data_that_cannot_be_used_are_named_before_anything_is_written(damage, own_data, refused, tmp_path):
    act, words = DAMAGE[damage]
    act(own_data)
    assert words in refused("train", "--data", own_data, "--name", "r", *TINY)
    assert not (tmp_path / "runs" / "r").exists()


def test_data_of_other_sizes_than_asked_for(tiny_data, refused):
    assert "n_lat" in refused("train", "--data", tiny_data, "--n-lat", 64, *TINY)


def test_folders_that_cannot_be_written(tiny_data, refused, tmp_path, monkeypatch, course):
    (file := tmp_path / "file").touch()  # the superuser may write anywhere but inside a file
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(file / "runs"))
    assert str(file) in refused("train", "--data", tiny_data, "--name", "r", *TINY)
    assert "cannot write" in refused("run", "07")
    assert str(file) in refused("data", "weather", "--preset", "smoke", "--out", file / "data")


def test_ctrl_c_while_training_leaves_a_checkpoint(tiny_data, tmp_path):
    """A terminal sends it to the loading process, too."""
    folder = tmp_path / "runs" / "r"
    argv = ["train", "--data", tiny_data, "--name", "r", *TINY, "--steps", 100_000, "--log-every", 1, "--workers", 1]
    command = [sys.executable, "-m", "dltutorial", *map(str, argv), "--checkpoint-every", "0"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True) as process:
        wait_for((folder / "progress.jsonl").exists)
        os.killpg(process.pid, signal.SIGINT)
        stderr = process.communicate(timeout=150)[1]
    assert process.returncode == 130, stderr
    last = stderr.splitlines()[-1]
    assert re.fullmatch(r"dltutorial: asked to end after \d+ updates; a checkpoint is written, .* --resume", last)
    assert run_folder.run_status(folder) == "interrupted"
    assert len(list((folder / "checkpoints").glob("step-*.pt"))) == 1
