"""What the files at the top refuse, each in one clear line: recipes, presets, ranks, cores, nodes, names, files."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from dltutorial import config, limits, node, paths
from dltutorial.config import PRESETS, Recipe
from dltutorial.errors import CourseError
from dltutorial.ranks import RankInfo

ROOT = Path(__file__).parents[2]
TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "4", "SLURM_LOCALID": "0", "SLURM_GTIDS": "4",
        "SLURM_STEP_NUM_TASKS": "5"}  # fmt: skip


def recipe(**changes):
    return lambda: Recipe.of(PRESETS["smoke"], **changes)


def recipe_here(**changes):
    return lambda: Recipe.of(PRESETS["smoke"], **changes).require_room()


def recipe_of(text):
    def load():
        Path("r.json").write_text(text, "utf-8", errors="surrogateescape")
        Recipe.load(Path("r.json"))

    return load


def recipe_at(make):
    """A recipe from what is no regular file."""

    def load():
        make("r.json")
        Recipe.load(Path("r.json"))

    return load


def preset_of(name):
    def look():
        with mock.patch.dict(os.environ, {"DLTUTORIAL_PRESET": name}):
            config.preset()

    return look


def torchrun(**changes):
    return lambda: RankInfo.from_env(TORCHRUN | changes)


def srun(**changes):
    return lambda: RankInfo.from_env(SRUN | changes)


def listen(name):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)


def cores(words):
    def ask():
        with mock.patch.dict(os.environ, {"SLURM_CPUS_PER_TASK": words}):
            limits.cores()

    return ask


def write_below_a_file():
    Path("file").write_text("")
    paths.write_text(Path("file/x"), "")


def write_over(make):
    def write():
        make("place")
        paths.write_text(Path("place"), "")

    return write


WITHOUT_LOCALID = {name: value for name, value in SRUN.items() if name != "SLURM_LOCALID"}
# (what it is, a call, words of the line)
REFUSALS = [
    ("no samples in a batch", recipe(global_batch_size=0), "global_batch_size must be at least 1"),
    ("heads that do not divide", recipe(heads=3), "heads must divide dim=128"),
    ("patches that do not fit", recipe(n_lat=60), "n_lat must be divisible by patch=8"),
    ("no steps", recipe(steps=0), "steps must be at least 1"),
    ("a warm-up without end", recipe(warmup_steps=500, steps=500), "warmup_steps must be smaller than steps=500"),
    ("no rate", recipe(learning_rate=0.0), "learning_rate must be greater than 0"),
    ("a rate that is no number", recipe(learning_rate=float("nan")), "learning_rate=nan is not finite"),
    ("a rate in words", recipe(learning_rate="fast"), "learning_rate='fast' is not of type float"),
    ("half a step", recipe(steps=2.5), "steps=2.5 is not of type int"),
    ("a truth for a number", recipe(steps=True), "steps=True is not of type int"),
    ("a number for a truth", recipe(roll=1), "roll=1 is not of type bool"),
    ("a memory without end", recipe(beta1=1.0), "beta1 must be smaller than 1"),
    ("a negative memory", recipe(beta2=-0.1), "beta2 must not be negative"),
    ("a cosine that rises", recipe(final_rate_ratio=1.5), "final_rate_ratio must be at most 1"),
    ("an unknown device", recipe(device="tpu"), "device must be one of auto, cpu, cuda"),
    ("workers that nobody asks", recipe(loader="best", workers=1), "workers must be 0: the best loader takes none"),
    ("an unknown tracker", recipe(track=("mlflow",)), "track may name tensorboard and wandb only"),
    ("a tracker in a list", recipe(track=(["tensorboard"],)), "track may name tensorboard and wandb only"),
    ("trackers in a list", recipe(track=["tensorboard"]), "track=['tensorboard'] is not of type"),
    ("a negative seed", recipe(seed=-1), "seed must not be negative"),
    ("a seed too large", recipe(seed=2**63), "seed must be below 2**63"),
    ("an unknown knob", recipe(batch=4), "no knob 'batch'"),
    ("an empty file", recipe_of(""), "r.json is not JSON"),
    ("a list", recipe_of("[1]"), "r.json holds no JSON object"),
    ("a file cut short", recipe_of('{"steps": 1'), "r.json is not JSON"),
    ("an unknown knob in a file", recipe_of('{"stepz": 1}'), "no knob 'stepz'"),
    ("a knob that Python has a use for", recipe_of('{"cls": 1, "self": 2}'), "no knob 'cls', 'self'"),
    ("an unknown preset in a file", recipe_of('{"preset": "huge"}'), "preset 'huge'"),
    ("brackets without end", recipe_of("[" * 100_000), "r.json is not JSON (brackets are nested too deep"),
    ("a number without end", recipe_of('{"steps": ' + "1" * 5000 + "}"), "a number has thousands of digits"),
    ("a file without end", recipe_of(" " * 2**21), "longer than 1,048,576 characters"),
    ("no text", recipe_of("\udcff"), "r.json is not JSON"),
    ("a pipe", recipe_at(os.mkfifo), "cannot read recipe r.json: a pipe or device"),
    ("a device", lambda: Recipe.load(Path("/dev/zero")), "cannot read recipe /dev/zero: a pipe or device"),
    ("a folder", recipe_at(os.mkdir), "cannot read recipe r.json: Is a directory"),
    ("a socket", recipe_at(listen), "cannot read recipe r.json: No such device"),
    ("no file", lambda: Recipe.load(Path("r.json")), "cannot read recipe"),
    ("an unknown preset", lambda: config.preset("huge"), "preset 'huge' is not one of smoke, laptop, gpu, cluster"),
    ("an unknown preset in the environment", preset_of("nonsense"), "DLTUTORIAL_PRESET 'nonsense'"),
    ("a rank alone", lambda: RankInfo.from_env({"RANK": "0"}), "start through torchrun"),
    ("a world alone", lambda: RankInfo.from_env({"WORLD_SIZE": "2"}), "start through torchrun"),
    ("a rank beyond the world", torchrun(RANK="8"), "impossible ranks from torchrun: rank 8 of 8"),
    ("a negative rank", torchrun(RANK="-1"), "RANK='-1'"),
    ("a rank in words", torchrun(RANK="one"), "RANK='one'"),
    ("an empty rank", torchrun(RANK=""), "RANK=''"),
    ("a local rank beyond its node", torchrun(LOCAL_RANK="4"), "local rank 4 of 4"),
    ("a node without ranks", torchrun(LOCAL_WORLD_SIZE="0"), "local rank 1 of 0"),
    ("a node larger than the world", torchrun(LOCAL_WORLD_SIZE="9"), "local rank 1 of 9"),
    ("a task beyond its step", srun(SLURM_PROCID="5"), "impossible ranks from slurm: rank 5 of 5"),
    ("a local task in words", srun(SLURM_LOCALID="x"), "SLURM_LOCALID='x'"),
    ("no local task", lambda: RankInfo.from_env(WITHOUT_LOCALID), "start through srun"),
    ("tasks of a node in words", srun(SLURM_GTIDS="all"), "SLURM_GTIDS='all'"),
    ("no tasks of a node", srun(SLURM_GTIDS=""), "SLURM_GTIDS=''"),
    ("more tasks of a node than there are", srun(SLURM_GTIDS="0,1,2,3,4,5,6"), "local rank 0 of 7"),
    ("cores in words", cores("many"), "SLURM_CPUS_PER_TASK='many' is not a number of cores"),
    ("no cores", cores("0"), "SLURM_CPUS_PER_TASK='0' is not a number of cores"),
    ("an unknown node", lambda: node.login_sign({"DLTUTORIAL_NODE": "laptop"}), "; choose login or compute"),
    *(("a name " + name, lambda name=name: paths.inside(Path(), name), "stays inside its folder")
      for name in ("../x", "/x", "", "..", ".x", "a b", "x" * 101)),
    ("no room below a file", write_below_a_file, "cannot write"),
    ("a folder in the way", write_over(os.mkdir), "cannot write place: it is a folder, a pipe or a device"),
    ("a pipe in the way", write_over(os.mkfifo), "cannot write place: it is a folder, a pipe or a device"),
    ("a device in the way", write_over(lambda path: Path(path).symlink_to("/dev/null")), "cannot write place: it is a"),
    ("no name", lambda: paths.write_text(Path(), ""), "cannot write"),
    ("workers without end", recipe_here(workers=100_000), "workers 100,000: the"),
    ("blocks without end", recipe_here(depth=10**9), "GiB or more, but a rank has"),
    ("a batch without end", recipe_here(global_batch_size=10**12), "GiB or more, but a rank has"),
    ("more parts than samples", recipe_here(accumulate=17), "accumulate must be at most 16, the samples of a rank"),
    ("a rate beyond floats", recipe_of('{"learning_rate": 1' + "0" * 400 + "}"), "learning_rate must be below 2**63"),
    ("a rank with too many digits", torchrun(RANK="1" * 5000), "must be a whole number"),
    ("cores with too many digits", cores("1" * 5000), "is not a number of cores"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_what_cannot_be_gets_one_line(call, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CourseError) as refused:
        call()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob(".*.partial"))


def test_a_tilde_that_no_shell_has_expanded_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable, folder in (("RUNS", paths.runs_dir), ("DATA", paths.data_dir), ("RECORDS", paths.records_file)):
        monkeypatch.setenv(f"DLTUTORIAL_{variable}", "~/mine.jsonl")
        assert folder() == tmp_path / "mine.jsonl"
    monkeypatch.setenv("DLTUTORIAL_RUNS", "~nobody-of-that-name/mine")
    assert str(paths.runs_dir()) == "~nobody-of-that-name/mine"


@pytest.mark.parametrize(("folder", "variable"), [(paths.cache_dir, "CACHE"), (paths.settings_dir, "CONFIG")])
def test_a_folder_of_the_desktops_that_is_relative_is_ignored(monkeypatch, tmp_path, folder, variable):
    """As its specification has it; a ``~`` that no shell has expanded is the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for named in ("here", "./here", "~nobody-of-that-name/here", ""):
        monkeypatch.setenv(f"XDG_{variable}_HOME", named)
        assert folder() == tmp_path / f".{variable.lower()}" / "dltutorial"
    monkeypatch.setenv(f"XDG_{variable}_HOME", "~/mine")
    assert folder() == tmp_path / "mine" / "dltutorial"


@pytest.mark.parametrize(
    ("folder", "variable"),
    [(paths.cache_dir, "XDG_CACHE_HOME"), (paths.data_dir, "DLTUTORIAL_DATA"), (paths.settings_dir, "XDG_CONFIG_HOME")],
)
def test_a_user_without_a_home_is_told_what_to_set(monkeypatch, tmp_path, folder, variable):
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "DLTUTORIAL_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", mock.Mock(side_effect=KeyError("getpwuid(): uid not found: 12345")))
    with pytest.raises(CourseError, match=f"this user has no home folder; set .*{variable}") as refused:
        folder()
    assert "\n" not in str(refused.value)
    monkeypatch.setenv(variable, str(tmp_path))
    assert folder().is_relative_to(tmp_path)


NO_HOME = """
import pwd
def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
"""


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "dltutorial", "run", "00"),
        ("-m", "dltutorial", "report"),
    ],
)
def test_where_jupyter_needs_a_home_and_there_is_none_it_is_one_line(tmp_path, words):
    (tmp_path / "sitecustomize.py").write_text(NO_HOME)
    env = {name: value for name, value in os.environ.items() if name not in ("HOME", "JUPYTER_DATA_DIR")}
    env |= {"PYTHONPATH": str(tmp_path), "DLTUTORIAL_RUNS": str(tmp_path / "runs")}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "set HOME to a folder that you may write to" in line
    assert not (tmp_path / "runs").exists()
