"""A login node is known by what its site says, not by installed commands; heavy calls refuse there, light ones run."""

import dataclasses
import subprocess
import sys

import pytest

from dltutorial import cli, config, node
from dltutorial.errors import CourseError

NOWHERE = node.Path("no such file")
SALLOC = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1"}  # the shell that salloc opens, on the login node
JOB = SALLOC | {"SLURMD_NODENAME": "n0"}


@pytest.fixture
def login(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DLTUTORIAL_NODE", "login")


@pytest.mark.parametrize(
    "kind, env",
    [
        ("own", {}),
        ("own", SALLOC),
        ("own", {"SLURM_CONF": "pocket/slurm.conf"}),
        ("own", {"DLTUTORIAL_NODE": "compute", "NERSC_HOST": "perlmutter"}),
        ("own", {"DLTUTORIAL_NODE": "", "SYSTEMNAME": "winter"}),
        ("own", {"JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}),
        ("job", JOB),
        ("job", JOB | {"DLTUTORIAL_NODE": "login", "NERSC_HOST": "perlmutter"}),
        ("login", {"DLTUTORIAL_NODE": "login"}),
        ("login", SALLOC | {"DLTUTORIAL_NODE": "login"}),
        ("login", {"NERSC_HOST": "perlmutter", "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}),
        ("login", {"SYSTEMNAME": "juwelsbooster"}),
        ("login", {"LMOD_SYSTEM_NAME": "frontier"}),
    ],
)
def test_the_first_sign_that_holds_decides(kind, env):
    sign, told = node.login_sign(env, NOWHERE), node.told(env, NOWHERE)
    assert (sign is not None) == (kind == "login")
    words = {"own": "this machine", "job": "a Slurm job", "login": f"a login node ({sign})"}
    assert told.startswith(words[kind])
    assert ("JupyterHub" in told) == ("JUPYTERHUB_SERVICE_PREFIX" in env)


def test_a_file_that_only_one_site_has_is_a_sign(tmp_path):
    (tmp_path / "systemname").write_text("jupiter\n")
    assert node.login_sign({}, tmp_path / "systemname").endswith("systemname is there, and no Slurm job")
    assert node.login_sign(JOB, tmp_path / "systemname") is None


def heavy():
    """name → a call that would keep cores busy."""
    from torch import nn

    from dltutorial.convergence import ensemble
    from dltutorial.course import bench, runner
    from dltutorial.course.checks import attempts
    from dltutorial.data import surveys, weather
    from dltutorial.launch import launch
    from dltutorial.train import loop, profiled, run
    from dltutorial.train.forecasting import squared_error
    from dltutorial.train.task import Task

    recipe = config.Recipe(preset="smoke")
    return {
        "the loop": lambda: next(loop.loop(Task(nn.Linear(1, 1), lambda skip: [], squared_error), recipe)),
        "a run": lambda: next(run.train(None, recipe, node.Path("run"))),
        "a profiled step": lambda: profiled.training_step(recipe, node.Path("data")),
        "ranks": lambda: launch(print, 2),
        "the weather": lambda: weather.ensure(config.preset("smoke"), node.Path("nowhere")),
        "lenses": lambda: surveys.lenses(seed=98765),
        "an ensemble": lambda: ensemble.train(None, [], 1, 1),
        "time to solution": lambda: attempts.attempts(None, None, [0]),
        "a benchmark": lambda: bench.run("ladder"),
        "a chapter": lambda: runner.run(["00"]),
    }


@pytest.mark.parametrize("name", heavy())
def test_heavy_calls_refuse_on_a_login_node_and_say_where_to_go(login, name, tmp_path, monkeypatch):
    if name != "a chapter":
        monkeypatch.chdir(tmp_path)
    with pytest.raises(CourseError, match=r"does not run on a login node \(DLTUTORIAL_NODE=login\)") as refused:
        heavy()[name]()
    (line,) = str(refused.value).splitlines()
    assert "sbatch -N 1" in line
    assert not list(tmp_path.glob("**/*.h5"))


def test_a_refused_training_from_the_terminal_names_its_job_script(login, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path / "data"))
    assert cli.main(["train", "--preset", "smoke", "--name", "refused"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "sbatch -N 1 slurm/train.sbatch" in said
    assert not (tmp_path / "data").exists() and not (tmp_path / "runs").exists()


def test_light_cells_run_on_a_login_node_and_the_chapter_says_so(login, capsys):
    from dltutorial.course import Chapter
    from dltutorial.scaling import simulator  # noqa: F401  models of cost are light

    Chapter("11", preset="smoke").claim("light cells run", holds=True, evidence="this one")
    said = capsys.readouterr().out
    assert "runs on a login node (DLTUTORIAL_NODE=login): light cells run, training is sent to Slurm" in said
    assert "light cells run" in said.splitlines()[-2]


def test_data_that_are_there_are_opened_on_a_login_node(login, tmp_path, monkeypatch):
    from dltutorial.data import convert, weather

    tiny = dataclasses.replace(config.preset("smoke"), n_lat=16, n_lon=32, years=(1, 1, 1), snapshots=2)
    with pytest.raises(CourseError, match="simulating the weather does not run on a login node"):
        weather.ensure(tiny, tmp_path / "made", progress=False)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("DLTUTORIAL_NODE", "compute")
        weather.ensure(tiny, tmp_path / "made", processes=1, device="cpu", progress=False)
    assert weather.ensure(tiny, tmp_path / "made", progress=False) == tmp_path / "made"
    with pytest.raises(CourseError, match="converting data does not run on a login node"):
        convert.convert(tmp_path / "made", "npy", tmp_path / "converted", progress=False)
    assert not (tmp_path / "converted").exists()


def test_asking_loads_nothing_heavy():
    code = "import dltutorial.node as n, sys; n.told({}); print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
