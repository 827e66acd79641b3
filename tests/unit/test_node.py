"""A login node is known by what its site sets. Heavy calls refuse to run there, and light cells run."""

import pytest

from dltutorial import config, node
from dltutorial.errors import CourseError

NOWHERE = node.Path("no such file")
SALLOC = {"SLURM_JOB_ID": "7"}  # the shell that salloc opens, on the login node
JOB = SALLOC | {"SLURMD_NODENAME": "n0"}


@pytest.fixture
def login(monkeypatch):
    """This process runs on a login node."""
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DLTUTORIAL_NODE", "login")


@pytest.mark.parametrize(
    "is_login, env",
    [
        (False, {}),
        (False, SALLOC),
        (False, JOB | {"NERSC_HOST": "perlmutter"}),
        (False, {"DLTUTORIAL_NODE": "compute", "NERSC_HOST": "perlmutter"}),
        (True, {"DLTUTORIAL_NODE": "login"}),
        (True, {"NERSC_HOST": "perlmutter"}),
        (True, {"SYSTEMNAME": "juwelsbooster"}),
        (True, {"LMOD_SYSTEM_NAME": "frontier"}),
    ],
)
def test_a_node_is_a_login_node_only_if_its_site_says_so(is_login, env):
    assert bool(node.login_sign(env, NOWHERE)) == is_login


def test_heavy_calls_refuse_on_a_login_node_and_name_the_command_for_slurm(login, tmp_path):
    from dltutorial import train
    from dltutorial.course import runner
    from dltutorial.data import weather, writing
    from dltutorial.launch import launch

    heavy_calls = [
        lambda: train.main(["--preset", "smoke"]),
        lambda: launch(print, 2),
        lambda: weather.ensure(config.preset("smoke"), tmp_path / "data"),
        lambda: runner.run(["00"], "smoke", jobs=None, parameters={}, out=None, timeout_s=60),
        lambda: writing.building(tmp_path / "demo").__enter__(),
    ]
    for call in heavy_calls:
        with pytest.raises(CourseError, match=r"does not run on a login node \(DLTUTORIAL_NODE=login\).*sbatch"):
            call()
    assert not (tmp_path / "data").exists()


def test_light_cells_run_on_a_login_node_and_the_chapter_says_so(login, capsys):
    from dltutorial.course import Chapter

    Chapter("11", preset="smoke").claim("light cells run", holds=True, evidence="this one")
    assert "runs on a login node (DLTUTORIAL_NODE=login): light cells run" in capsys.readouterr().out
