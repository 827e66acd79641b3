"""The pocket cluster comes up in seconds, once, and leaves nothing; one that was killed is recognised."""

import contextlib
import inspect
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from waiting import wait_for

from dltutorial.errors import CourseError
from dltutorial.launch import pocket
from dltutorial.launch import pocket_daemons as daemons

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


@pytest.fixture
def name():
    name = f"own-{os.getpid()}"
    yield name
    pocket.down(name)


def command(*words, **env):
    run = [sys.executable, "-m", "dltutorial", "pocket", *words]
    return subprocess.run(run, capture_output=True, text=True, env=os.environ | env, timeout=250)


def test_up_is_the_same_again_and_down_leaves_nothing(name):
    cluster = pocket.up(2, name)
    assert pocket.states(cluster) == {"n0": "idle", "n1": "idle"}
    before = {process.pid for process in daemons.processes(cluster.folder)}
    assert pocket.up(2, name) == cluster
    assert {process.pid for process in daemons.processes(cluster.folder)} == before
    subprocess.run(
        ["sbatch", "-N2", "-o/dev/null", "--wrap", "srun sleep 77"], env=os.environ | cluster.env, check=True
    )
    asleep = lambda: [p for p in daemons.processes(cluster.folder) if "77" in p.cmdline()]  # noqa: E731
    wait_for(asleep)
    mine = daemons.processes(cluster.folder)
    assert pocket.down(name)
    assert not daemons.processes(cluster.folder)
    assert all(not psutil.pid_exists(p.pid) or p.status() == psutil.STATUS_ZOMBIE for p in mine)
    assert not cluster.folder.exists()
    assert not pocket.down(name)


def test_all_its_daemons_listen_on_the_loopback_only(cluster):
    ports = [c.laddr for p in daemons.processes(cluster.folder) for c in p.net_connections() if c.status == "LISTEN"]
    assert len(ports) == 1 + len(cluster.nodes)
    assert {port.ip for port in ports} == {"127.0.0.1"}


def test_only_its_user_may_look_into_it(cluster):
    assert cluster.folder.stat().st_mode & 0o077 == 0
    assert (cluster.folder / "munge.key").stat().st_mode & 0o077 == 0


def test_another_number_of_nodes_is_told(cluster):
    with pytest.raises(CourseError, match=r"is up with 4 nodes, not 2; end it first: dltutorial pocket down"):
        pocket.up(2, cluster.name)


def test_a_killed_cluster_is_recognised_and_replaced(name):
    cluster = pocket.up(1, name)
    daemons.kill(cluster.folder, "controller")
    left = pocket.status(name)
    assert left is not None
    assert not left.answers
    assert "was killed" in command("status", "--name", name).stderr
    assert pocket.up(2, name).nodes == ("n0", "n1")


def test_a_folder_too_long_for_sockets_is_reached_by_a_short_one(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("long" * 20)))
    cluster = pocket.up(1, name)
    assert len(str(cluster.folder)) < 60
    assert pocket.status(name) == cluster
    pocket.down(name)
    assert not cluster.folder.exists()


def test_the_command_prints_what_a_shell_evaluates(cluster):
    done = command("up", "--nodes", "4", "--name", cluster.name)
    assert done.stdout == f"export SLURM_CONF={cluster.folder}/slurm.conf\n"
    shown = command("status", "--name", cluster.name)
    assert (shown.returncode, shown.stdout) == (0, done.stdout)
    assert "n0 " in shown.stderr
    none = command("status", "--name", "nobody")
    assert (none.returncode, none.stdout) == (1, "")


def test_each_process_has_a_cluster_of_its_own_and_those_of_dead_ones_end():
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = f"lab-{gone.pid}"
    pocket.up(1, left)
    mine = pocket.own("lab", nodes=1)
    try:
        assert mine.name == f"lab-{os.getpid()}"
        assert left not in pocket.names()
    finally:
        pocket.down(mine.name)
    assert mine.name not in pocket.names()


def test_a_cluster_of_a_processs_own_ends_with_it():
    code = "from dltutorial.launch import pocket; print(pocket.own('brief', nodes=1).folder)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    folder = Path(done.stdout.strip())
    assert folder.name.startswith("brief-") and not folder.exists()


AS_NOBODY = """
import os, subprocess, sys
from dltutorial.launch import pocket
os.setgid(65534)
os.setuid(65534)
cluster = pocket.up(2)
print(subprocess.check_output(["srun", "-N2", "id", "-u"], env=os.environ | cluster.env, text=True).split())
job = ["sbatch", "-N2", "-o/dev/null", "--wrap", "srun sleep 78"]
subprocess.run(job, env=os.environ | cluster.env, check=True, stdout=subprocess.DEVNULL)
wanted = ["squeue", "--noheader", "--states=running"]
while not subprocess.check_output(wanted, env=os.environ | cluster.env):
    subprocess.run(["sleep", "0.1"])
print(daemons_of_nobody(os.environ["XDG_CACHE_HOME"]) != [])  # so that to find none later says something
pocket.down()
print(pocket.status())
"""


def daemons_of_nobody(folder):
    """Those that were started with this folder in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == 65534 and folder in process.environ().values():
                found.append(process)
    return found


def everyone_may_enter(folder):
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in (folder, *folder.parents))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_it_works_for_an_ordinary_user_too():
    if not everyone_may_enter(ROOT):
        pytest.skip("the course lies where an ordinary user may not read")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        env = os.environ | {"XDG_CACHE_HOME": folder, "HOME": folder}
        code = f"import contextlib, psutil\n{inspect.getsource(daemons_of_nobody)}{AS_NOBODY}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT)
        assert done.stdout.splitlines() == ["['65534', '65534']", "True", "None"], done.stderr
    wait_for(lambda: not daemons_of_nobody(folder))
