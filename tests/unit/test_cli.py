"""Every mistake ends in one clear line on stderr and a status that is not 0; an interrupt leaves nothing half done."""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref

import h5py
import nbformat
import numpy as np
import psutil
import pytest
from waiting import wait_for

from dltutorial import __version__, cli
from dltutorial.train import run_folder

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = {"dim": 16, "depth": 1, "heads": 2, "global-batch-size": 6, "steps": 4, "warmup-steps": 1}
TINY = [*(word for knob, value in SIZES.items() for word in (f"--{knob}", value)), "--device", "cpu", "--track"]
# No UTF-8: neither what a terminal may show, nor what a file is taken to be that is opened without a word on it.
LOCALES = {"latin-1": {"PYTHONIOENCODING": "latin-1"}, "POSIX": {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}}
COMMANDS = ["doctor", "data", "train", "run", "bench", "exercises", "report"]


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
        assert call(*argv) not in (0, None)
        said = capsys.readouterr().err
        assert said.endswith("\n")
        assert len(said.splitlines()) == 1, said
        assert "Traceback" not in said
        assert len(said) > 25
        return said

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


@pytest.fixture
def file(tmp_path):
    """A file, where a folder is wanted. (The superuser may write anywhere but inside a file.)"""
    (tmp_path / "file").write_text("not a folder")
    return tmp_path / "file"


def python(*words, **options):
    env = os.environ | options.pop("env", {})
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=env, timeout=250, check=False, **options
    )


# What works


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=lambda words: " ".join(words) or "top")
def test_help_explains_each_command(command, capsys):
    assert call(*command, "--help") == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: dltutorial")
    assert command or all(name in said for name in COMMANDS)


def test_module_and_version():
    done = python("-m", "dltutorial", "--version")
    assert (done.returncode, done.stdout) == (0, f"dltutorial {__version__}\n")


def test_training_takes_sizes_from_the_data_and_knobs_from_file_and_options(tiny_data, tmp_path, capsys):
    (tmp_path / "r.json").write_text('{"steps": 3, "dim": 32, "seed": 9}')
    argv = ["train", "--data", tiny_data, "--name", "mine", "--config", tmp_path / "r.json", *TINY]
    assert call(*argv) == 0
    recipe = json.loads((tmp_path / "runs" / "mine" / "recipe.json").read_text())
    assert (recipe["n_channels"], recipe["n_lat"], recipe["n_lon"]) == (3, 16, 24)
    assert (recipe["steps"], recipe["dim"], recipe["seed"]) == (4, 16, 9)
    assert recipe["track"] == []
    assert "step 4: loss" in capsys.readouterr().out


def test_a_named_preset_wins_over_the_files(tiny_data, tmp_path):
    (tmp_path / "r.json").write_text('{"preset": "gpu", "seed": 9}')
    argv = ["train", "--preset", "smoke", "--data", tiny_data, "--name", "mine", "--config", tmp_path / "r.json", *TINY]
    assert call(*argv) == 0
    recipe = json.loads((tmp_path / "runs" / "mine" / "recipe.json").read_text())
    assert (recipe["preset"], recipe["seed"]) == ("smoke", 9)


def test_a_whole_data_set_passes_its_check(tiny_data, capsys):
    assert call("data", "check", "--source", tiny_data) == 0
    assert "train 20, valid 10, test 10" in capsys.readouterr().out


# What is refused


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["nonsense"], "nonsense"),
        ([], "COMMAND"),
        (["train", "--preset", "huge"], "huge"),
        (["data", "weather", "--preset", "huge"], "huge"),
        (["run", "--preset", "huge"], "huge"),
        (["run", "99"], "99"),
        (["run", "-p", "stepz", "3"], "stepz"),
        (["run", "--jobs", "0"], "--jobs"),
        (["class", "join", ""], "FOLDER: a name is expected; is it a variable that is not set?"),
        (["data", "check", "--source", " "], "--source: a name is expected"),
        (["train", "--stepz", "3"], "--stepz"),
        (["train", "--steps", "many"], "many"),
        (["train", "--steps", "1" + "0" * 21], "steps must be below 2**63"),
        (["train", "--steps", "1" * 5000], "--steps: invalid int value"),
        (["train", "--steps", "-1"], "steps must be at least 1"),
        (["train", "--weight-decay", "inf"], "weight_decay=inf is not finite"),
        (["train", "--beta1", "-0.1"], "beta1 must not be negative"),
        (["train", "--workers", "100000"], "workers 100,000: the "),
        (["train", "--depth", "1000000000"], "GiB or more, but a rank has"),
        (["train", "--dim", "1" + "0" * 18], "GiB or more, but a rank has"),
        (["train", "--global-batch-size", "1" + "0" * 15], "GiB or more, but a rank has"),
        (["train", "--no-fused-attention", "--heads", "128", "--patch", "1", "--depth", "100"], "GiB or more"),
        (["train", "--config", "/dev/zero"], "cannot read recipe /dev/zero: a pipe or device"),
        *((["run", "--timeout", s], f"--timeout: {s} is not from 1 to 604,800") for s in ("inf", "nan", "-1", "0.001")),
        (["run", "--jobs", "1" + "0" * 30], "--jobs"),
        (["bench", "loaders", "--repeats", "-1"], "--repeats: -1 is not from 1"),
        (["class", "view", ".", "--watch", "nan"], "--watch: nan is not from 1"),
        (["data", "weather", "--processes", "1" + "0" * 30], "--processes"),
        (["data", "weather", "--seed", "-1"], "seed -1"),
        (["pocket", "up", "--nodes", "1" + "0" * 30], "1 to 64 nodes"),
        (["train", "--global-batch-size", "0"], "global_batch_size"),
        (["train", "--heads", "3", "--dim", "128"], "heads"),
        (["train", "--n-lat", "60", "--patch", "8"], "n_lat"),
        (["train", "--learning-rate", "nan"], "learning_rate"),
        (["train", "--device", "tpu"], "device"),
        (["train", "--track", "mlflow"], "track"),
        (["train", "--config", "nowhere.json"], "nowhere.json"),
        (["train", "--name", "../x"], "../x"),
        (["train", "--name", "/x"], "/x"),
        (["train", "--name", ""], "''"),
        (["train", "--name", ".."], ".."),
        (["data", "weather", "--processes", "0"], "--processes: 0 is not from 1"),
        (["data", "check"], "--source"),
        (["data"], "WHAT"),
        (["data", "check", "--source", ".", "--out", "x"], "--out"),
        (["data", "check", "--source", ".", "--preset", "smoke"], "--preset"),
        (["data", "statistics"], "--source"),
        (["data", "statistics", "--source", ".", "--out", "x"], "--out"),
        (["data", "weather", "--source", "."], "--source"),
        (["data", "weather", "--layout", "npy"], "--layout"),
        (["data", "convert"], "--layout"),
        *(
            (["data", "convert", "--layout", "npy", "--source", ".", option, value], f"--source and {option} exclude")
            for option, value in (("--preset", "smoke"), ("--seed", "0"), ("--processes", "1"))
        ),
        (["bench", "nonsense"], "nonsense"),
        (["exercises", "burn"], "burn"),
        (["exercises"], "status|reset|build; see dltutorial exercises --help"),
        (
            ["exercises", "reset"],
            "exercises reset: the following arguments are required: NAME; see dltutorial exercises",
        ),
        (["exercises", "status", "--yes"], "--yes"),
        (["class"], "join|leave|status|view; see dltutorial class --help"),
        (["class", "view"], "class view: the following arguments are required: FOLDER"),
        (["report", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_in_one_line(argv, named, refused, course, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert named in refused(*argv)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "argv", ["report loop", "class join loop", "data check --source loop", "train --name x --data loop", "scaling loop"]
)
def test_a_link_that_goes_round_is_one_line(argv, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    assert "loop" in refused(*argv.split())


@pytest.mark.parametrize("command", ["train", "run", "doctor", "data weather"])
def test_an_unknown_preset_in_the_environment_is_named(command, refused, course, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_PRESET", "nonsense")
    assert "DLTUTORIAL_PRESET 'nonsense'" in refused(*command.split())


def truncate(folder):
    file = folder / "train" / "1980.h5"
    file.write_bytes(file.read_bytes()[:3000])


def rename_dataset(folder):
    with h5py.File(folder / "train" / "1980.h5", "r+") as year:
        year.move("fields", "t2m")


def rename_into_a_group(folder):
    with h5py.File(folder / "train" / "1980.h5", "r+") as year:
        year.move("fields", "t2m")
        year.create_group("fields").move("/t2m", "t2m")


def leave_unwritten(folder):
    with h5py.File(folder / "train" / "1980.h5", "w") as year:
        year.create_dataset("fields", (10, 3, 16, 24), np.float32, chunks=(1, 3, 16, 24))[:4] = 1


def put_nan(folder):
    with h5py.File(folder / "train" / "1979.h5", "r+") as year:
        year["fields"][0, 0, 0, 0] = np.nan


def spell(suffix):
    """Another end of a year's name."""
    return lambda folder: (folder / "train" / "1980.h5").rename(folder / "train" / f"1980{suffix}")


DAMAGE = {
    "missing": (shutil.rmtree, "no data folder"),
    "empty": (lambda folder: (shutil.rmtree(folder), folder.mkdir()), "no folder train"),
    "without files": (lambda folder: [f.unlink() for f in (folder / "train").iterdir()], "no .h5 file"),
    "truncated": (truncate, "1980.h5 is truncated"),
    "no HDF5": (lambda folder: (folder / "train" / "1980.h5").write_text("no"), "1980.h5 is not readable"),
    "another layout": (rename_dataset, "no dataset 'fields' but ['t2m']"),
    "a group in its place": (rename_into_a_group, "no dataset 'fields' but a group of that name"),
    "half written": (leave_unwritten, "1980.h5 lacks 6 of its 10 chunks"),
    "NaN": (put_nan, "1979.h5, snapshot 0, holds NaN"),
    "capitals": (spell(".H5"), "1980.H5 would be left out"),
    "another spelling": (spell(".hdf5"), "1980.hdf5 would be left out"),
    "NetCDF": (spell(".nc"), "1980.nc would be left out"),
    "without statistics": (lambda folder: shutil.rmtree(folder / "stats"), "global_means.npy is missing"),
    "without valid": (
        lambda folder: shutil.rmtree(folder / "valid"),
        "no folder valid; move some years of train there",
    ),
    "name": (lambda folder: (folder / "train" / "1979.h5").rename(folder / "train" / "a.h5"), "four digits"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_data_are_named_before_anything_is_written(damage, own_data, refused, tmp_path):
    act, words = DAMAGE[damage]
    act(own_data)
    assert words in refused("train", "--data", own_data, "--name", "r", *TINY)
    assert not (tmp_path / "runs" / "r").exists()
    assert words in refused("data", "check", "--source", own_data)


def test_data_of_other_sizes_than_asked_for(tiny_data, refused):
    assert "n_lat" in refused("train", "--data", tiny_data, "--n-lat", 64, *TINY)
    assert "n_lat" in refused("train", "--data", tiny_data, *TINY, "--patch", 7)
    assert "global_batch_size" in refused("train", "--data", tiny_data, *TINY, "--global-batch-size", 999)


def test_folders_that_cannot_be_written(tiny_data, refused, file, monkeypatch, course):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(file / "runs"))
    assert "cannot write" in refused("train", "--data", tiny_data, "--name", "r", *TINY)
    assert "cannot write" in refused("run", "07")
    assert "cannot write" in refused("run", "07", "--out", file / "here")
    assert str(file) in refused("data", "weather", "--preset", "smoke", "--out", file / "data")
    assert str(file) in refused("data", "weather", "--preset", "smoke", "--out", file)


def test_a_file_or_folder_in_the_way_is_named(tiny_data, refused, tmp_path):
    (tmp_path / "runs").mkdir()
    argv = ["train", "--data", tiny_data, "--name", "records.jsonl", *TINY]
    assert "is a file" in refused(*argv)  # every later record goes there
    (tmp_path / "runs" / "records.jsonl").touch()
    assert "is a file" in refused(*argv)
    assert "is a file" in refused(*argv, "--overwrite")
    (tmp_path / "runs" / "odd" / "status.json").mkdir(parents=True)
    assert "odd/status.json: Is a directory; nothing was changed" in refused(
        "train", "--data", tiny_data, "--name", "odd", "--overwrite", *TINY
    )
    assert "stays as it is" in refused("report", tmp_path / "runs" / "records.jsonl", "--out", tmp_path)
    assert not list(tmp_path.glob(".*.partial"))


def test_an_existing_run_is_kept_unless_overwriting_is_asked_for(tiny_data, refused, tmp_path, capsys):
    argv = ["train", "--data", tiny_data, "--name", "r", *TINY]
    assert call(*argv) == 0
    capsys.readouterr()
    weights = (tmp_path / "runs" / "r" / "weights.pt").read_bytes()
    assert "holds a run already" in refused(*argv)
    assert (tmp_path / "runs" / "r" / "weights.pt").read_bytes() == weights
    assert call(*argv, "--seed", 3, "--overwrite") == 0
    assert (tmp_path / "runs" / "r" / "weights.pt").read_bytes() != weights


def test_several_ranks_that_nobody_tells_where_to_meet_are_refused(tiny_data, refused, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert "MASTER_ADDR and MASTER_PORT do not say where" in refused("train", "--data", tiny_data, *TINY)


def test_a_world_size_alone_is_refused(tiny_data, refused, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "RANK" in refused("train", "--data", tiny_data, *TINY)


def test_a_closed_pipe_is_no_traceback():
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m dltutorial doctor | true"], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


@pytest.mark.ci
@pytest.mark.parametrize("command", ["doctor", "bench", "exercises status", "class status"])
def test_a_locale_without_utf_8_ends_no_command(command):
    done = python("-m", "dltutorial", *command.split(), env=LOCALES["POSIX"], errors="replace")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("locale", [pytest.param("latin-1", marks=pytest.mark.ci), "POSIX"])
def test_a_locale_without_utf_8_ends_no_training(locale, tiny_data, tmp_path):
    env = LOCALES[locale] | {"DLTUTORIAL_RUNS": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1"}
    words = ["train", "--data", tiny_data, "--name", "r", *TINY]
    done = python("-m", "dltutorial", *map(str, words), env=env, errors="replace")
    assert done.returncode == 0, done.stderr
    assert "rmse" in done.stdout


@pytest.mark.parametrize("locale", [pytest.param("latin-1", marks=pytest.mark.ci), "POSIX"])
def test_a_locale_without_utf_8_ends_no_chapter(locale, course, tmp_path):
    """Nor a script that a cell starts."""
    (tmp_path / "say.py").write_text("print('\u00b7 \u2713')", encoding="utf-8")
    file = tmp_path / "notebooks" / "07_tiny.ipynb"
    notebook = nbformat.read(file, 4)
    cell = f"import subprocess, sys\nsubprocess.run([sys.executable, {str(tmp_path / 'say.py')!r}], check=True)"
    notebook.cells += [nbformat.v4.new_code_cell(cell + "\nprint('\u2260')")]
    nbformat.write(notebook, file)
    out = tmp_path / "out"
    words = ["run", "07", "--preset", "smoke", "--timeout", "90.5", "--out", str(out)]
    done = python("-m", "dltutorial", *words, env=LOCALES[locale], errors="replace")
    assert done.returncode == 0, done.stderr
    assert "07_tiny" in done.stdout


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("DLTUTORIAL_DATA", "file", "train --preset smoke"),
        ("DLTUTORIAL_RUNS", "/dev/null/x", "run 07"),
        ("DLTUTORIAL_RUNS", "/dev/null/x", "report"),
        ("DLTUTORIAL_NODE", "banana", "doctor"),
        ("DLTUTORIAL_NOTEBOOKS", "/dev/null/x", "run 07"),
        ("XDG_CACHE_HOME", "/dev/null/x", "pocket up"),
        ("XDG_CONFIG_HOME", "/dev/null/x", "class status"),
        ("SLURM_CPUS_PER_TASK", "1" * 5000, "doctor"),
        ("WORLD_SIZE", "1" * 5000, "doctor"),
    ],
)
def test_a_variable_that_cannot_be_is_refused_in_one_line(variable, value, words, refused, course, file, monkeypatch):
    if variable == "WORLD_SIZE":
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv(variable, str(file) if value == "file" else value)
    refused(*words.split())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("doctor", "XDG_CACHE_HOME"),
        ("data weather --preset smoke", "DLTUTORIAL_DATA"),
        ("class join .", "XDG_CONFIG_HOME"),
        ("data check --source ~/x", "no home folder '~/x'; give the whole path"),
        ("report --out=~nobody-of-that-name/x", "no home folder '~nobody-of-that-name/x'; give the whole path"),
    ],
)
def test_a_user_without_a_home_is_told_so_in_one_line(words, named, refused, course, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "DLTUTORIAL_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert named in refused(*words.split())


def test_a_variable_that_others_read_does_no_harm(file):
    env = {"OMP_NUM_THREADS": "banana", "COLUMNS": "0", "CUDA_VISIBLE_DEVICES": "banana", "DLTUTORIAL_PRESET": ""}
    done = python("-c", "import os, runpy, sys; os.environ.pop('HOME', 0); sys.argv = ['dltutorial', 'doctor'];"
                  "runpy.run_module('dltutorial', run_name='__main__')", env=env)  # fmt: skip
    assert "The course can run." in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.ci
@pytest.mark.parametrize("words", ["--version", "--help", "doctor"])
@pytest.mark.parametrize(
    ("output", "status", "told"), [("/dev/full", 2, r"dltutorial: .*No space left.*\n"), ("", 141, "")]
)
def test_what_cannot_be_printed_at_the_end_is_one_line_or_none(words, output, status, told):
    """Python keeps a short text back until it ends, unless PYTHONUNBUFFERED is set."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reads, writes = os.pipe()
    os.close(reads)
    with open(output or os.devnull, "w") as there:
        done = subprocess.run(
            [sys.executable, "-m", "dltutorial", *words.split()], env=env, stdout=there if output else writes,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    os.close(writes)
    assert (done.returncode, bool(re.fullmatch(told, done.stderr))) == (status, True), done.stderr


# Ctrl-C


@pytest.mark.parametrize(
    "module", ["dltutorial.cli", "argparse", "dltutorial.errors", "dltutorial.course.doctor", "torch"]
)
def test_ctrl_c_while_a_command_loads_is_one_line(module):
    """It comes at the moment in which the program begins to load a module."""
    code = f"""
import importlib.abc, runpy, signal, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.modules.pop("argparse", None)
sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["dltutorial", "doctor"]
runpy.run_module("dltutorial", run_name="__main__")
"""
    done = python("-c", code)
    assert done.returncode == 130, done.stderr
    assert [line.partition(";")[0] for line in done.stderr.splitlines()] == ["dltutorial: interrupted"]


UNHEARD = """
import os, signal, sys
from dltutorial import cli
from dltutorial.train import run
plain, how = run.train, sys.argv.pop(1)
def unheard(*args, **options):
    for n, seen in enumerate(plain(*args, **options)):
        if n == 0 and how != "full disk":  # from now on nobody reads either stream
            reads, writes = os.pipe()
            os.close(reads)
            os.dup2(writes, 1), os.dup2(writes, 2)
        if n == 0 and how == "Ctrl-C":  # ends `| tee log`, too
            os.kill(os.getpid(), signal.SIGINT)
        yield seen
run.train = unheard
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.ci
@pytest.mark.parametrize(("how", "ends"), [("full disk", "finished"), ("gone", "finished"), ("Ctrl-C", "interrupted")])
def test_a_run_that_nobody_hears_any_more_goes_on_or_ends_with_a_checkpoint(how, ends, tiny_data, tmp_path):
    line = ["train", "--name", "unheard", "--data", tiny_data, "--preset", "smoke", "--patch", "4", "--steps", "40"]
    line += ["--dim", "8", "--heads", "1", "--depth", "1", "--global-batch-size", "2", "--log-every", "1"]
    with open("/dev/full" if how == "full disk" else tmp_path / "log", "w") as out:
        done = subprocess.run(
            [sys.executable, "-c", UNHEARD, how, *map(str, line), "--eval-every", "5", "--track"], check=False,
            stdout=out, stderr=out, env=os.environ | {"DLTUTORIAL_RUNS": str(tmp_path)}, timeout=250,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    folder = tmp_path / "unheard"
    assert json.loads((folder / "status.json").read_text())["status"] == ends
    steps = len((folder / "progress.jsonl").read_text().splitlines())
    if how == "Ctrl-C":
        assert steps < 40
        assert list((folder / "checkpoints").glob("step-*.pt"))
    else:
        assert (steps, done.returncode) == (40, 0)
        assert (folder / "weights.pt").exists()


def interrupted(argv, ready, env=None):
    """Start a command, interrupt it as Ctrl-C would once ``ready()``; returns its status and what it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dltutorial", *map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=os.environ | (env or {}), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 100
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    try:
        _, said = process.communicate(timeout=150)
    finally:
        process.kill()
        process.wait()
    return process.returncode, [line for line in said.replace("\r", "\n").split("\n") if line]


@pytest.mark.parametrize("where", ["a weak reference's callback", "__del__"])
def test_an_interrupt_where_python_drops_it_comes_again(where):
    dropped = []

    def interrupt(*_):
        dropped.append(where)
        signal.raise_signal(signal.SIGINT)

    thing = type("Thing", (), {"__del__": interrupt} if where == "__del__" else {})()
    kept = None if where == "__del__" else weakref.ref(thing, interrupt)
    with pytest.raises(KeyboardInterrupt), cli.no_interrupt_lost():
        del thing
        assert dropped  # and nothing was raised here
        waited_from_s = time.monotonic()
        time.sleep(90)
    assert time.monotonic() - waited_from_s < 60  # and did not wait for the end of the call
    del kept


@pytest.mark.parametrize("workers", [0, 1])
def test_ctrl_c_while_training_leaves_a_checkpoint(tiny_data, tmp_path, workers):
    """A terminal sends it to the loading processes, too."""
    folder = tmp_path / "runs" / "r"
    argv = ["train", "--data", tiny_data, "--name", "r", *TINY, "--steps", 100_000, "--log-every", 1]
    argv += ["--checkpoint-every", 0, "--workers", workers]
    status, said = interrupted(argv, (folder / "progress.jsonl").exists, {"OMP_NUM_THREADS": "1"})
    assert status == 130, said
    first, last = [line for line in said if not line.startswith("training:")]
    assert "Ctrl-C again" in first
    assert re.fullmatch(r"dltutorial: asked to end after \d+ updates; a checkpoint is written, .* --resume", last)
    assert run_folder.run_status(folder) == "interrupted"
    assert len(list((folder / "checkpoints").glob("step-*.pt"))) == 1
    assert not (folder / "weights.pt").exists()


@pytest.mark.ci
def test_sigterm_while_workers_start_ends_all_of_them(tiny_data, tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    words = ["train", "--data", tiny_data, "--name", "r", *TINY, "--steps", 100_000, "--workers", 4]
    process = subprocess.Popen(
        [sys.executable, "-m", "dltutorial", *map(str, words)], stderr=subprocess.PIPE, text=True, env=env
    )
    workers = []
    while not workers and process.poll() is None:
        begun = (tmp_path / "runs" / "r" / "recipe.json").exists()
        workers = psutil.Process(process.pid).children() if begun else []
    process.send_signal(signal.SIGTERM)
    try:
        _, said = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 75, said
    assert not psutil.wait_procs(workers, timeout=60)[1]


@pytest.mark.ci
def test_a_terminal_that_is_closed_costs_no_progress(tiny_data, tmp_path):
    words = ["train", "--data", tiny_data, "--name", "r", *TINY, "--steps", 100_000, "--checkpoint-every", 0]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["OMP_NUM_THREADS"] = "1"
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests under nohup ignores it
        os.execv(sys.executable, [sys.executable, "-m", "dltutorial", *map(str, words)])
    reader = threading.Thread(target=drain, args=(terminal, (ends := threading.Event())), daemon=True)
    reader.start()
    wait_for((tmp_path / "runs" / "r" / "progress.jsonl").exists)
    ends.set()
    reader.join()  # a read that waits would keep the terminal open
    os.close(terminal)  # the kernel sends SIGHUP
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 75
    assert run_folder.run_status(tmp_path / "runs" / "r") == "interrupted"
    assert list((tmp_path / "runs" / "r" / "checkpoints").glob("step-*.pt"))


def drain(terminal, ends):
    with contextlib.suppress(OSError):
        while not ends.is_set():
            if select.select([terminal], [], [], 0.1)[0]:
                os.read(terminal, 2**16)


@pytest.mark.ci
def test_closed_output_is_no_reason_to_end(tmp_path):
    words = [sys.executable, "-m", "dltutorial", "data", "weather", "--preset", "smoke", "--out", str(tmp_path / "w")]
    code = f"import subprocess, os; os.close(1); os.close(2); os.execv({sys.executable!r}, {words!r})"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
    missing = f"import os; os.close(2); os.execv({sys.executable!r}, {[*words[:3], 'run', 'nonsense']!r})"
    assert subprocess.run([sys.executable, "-c", missing], timeout=120).returncode == 2


@pytest.mark.ci
@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_a_page_is_written_whichever_streams_are_closed(closed, tmp_path):
    words = f"{sys.executable} -m dltutorial report --out page.html {closed}"
    env = os.environ | {"DLTUTORIAL_RUNS": str(tmp_path)}
    (tmp_path / "records.jsonl").touch()
    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True, timeout=250)
    assert (done.returncode, done.stderr) == (0, "")
    assert "<section" in (tmp_path / "page.html").read_text()


def test_a_question_finds_nobody_where_the_input_is_closed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert call("--version") == 0
    assert not sys.stdin.isatty() and sys.stdin.read() == ""


def test_a_folder_that_is_gone_is_told(capsys, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.main(["exercises", "status"]) == 2
    assert "the folder that you are in is gone; cd into" in capsys.readouterr().err


def test_control_bytes_of_a_name_are_shown_and_not_done(capsys, tmp_path):
    assert cli.main(["data", "check", "--source", str(tmp_path / "a\x1b]0;x\x07b")]) == 2
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert r"a\x1b]0;x\x07b" in said
