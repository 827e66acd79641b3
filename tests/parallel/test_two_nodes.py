"""Two nodes on one machine, with a slow link between them; nothing of them is left, however they end."""

import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from dltutorial.errors import CourseError
from dltutorial.launch import two_nodes

needs_networks = pytest.mark.skipif(bool(two_nodes.missing()), reason=f"two nodes: {two_nodes.missing()}")

WHERE = """
import os, sys, socket, time
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=200))
rank = dist.get_rank()
x = torch.full((4,), float(rank))
dist.all_reduce(x)
mine = sorted(name for _, name in socket.if_nameindex())
every = [None] * dist.get_world_size()
dist.all_gather_object(every, (os.environ["GROUP_RANK"], mine, x[0].item()))
if rank == 0:
    print("RANKS", every, flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(rank == int(sys.argv[2]))
"""


@pytest.fixture
def script(tmp_path):
    (file := tmp_path / "where.py").write_text(WHERE)
    return file


def start(script, *arguments):
    line = [sys.executable, "-m", "dltutorial", "pocket", "network", str(script), *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def left(script):
    """Processes that run the script."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(script) in process.cmdline():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def ends(holds, within_s=120.0):
    deadline = time.monotonic() + within_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)
    return holds()


@needs_networks
@pytest.mark.ci
def test_two_ranks_on_each_of_two_nodes_meet_and_only_the_link_joins_them(script):
    process = start(script, "0", "-1")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("RANKS")]
    near, far = ("0", ["lo", "near"], 6.0), ("1", ["far", "lo"], 6.0)
    assert line == f"RANKS {[near, near, far, far]}"
    assert not left(script)


@needs_networks
@pytest.mark.ci
def test_a_rank_that_fails_on_one_node_ends_both(script):
    process = start(script, "0", "3")
    _, err = process.communicate(timeout=200)
    assert process.returncode != 0
    assert "where.py FAILED" in err
    assert ends(lambda: not left(script))


@needs_networks
@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_however_it_is_ended(script, number):
    process = start(script, "300", "-1")
    assert any(line.startswith("RANKS") for line in process.stdout)
    assert left(script)
    process.send_signal(number)
    assert ends(lambda: not left(script))
    process.communicate(timeout=120)
    assert process.returncode != 0


@pytest.mark.parametrize(("given", "told"), [([], "which script"), (["nowhere.py"], "'nowhere.py' is no file")])
def test_what_is_no_script_is_one_line(given, told):
    with pytest.raises(CourseError, match=told):
        two_nodes.run(given)


@pytest.mark.parametrize(("path", "told"), [("/nowhere", "no unshare here"), ("no tc", "tc: command not found")])
def test_a_machine_that_cannot_says_why(script, monkeypatch, tmp_path, path, told):
    for name in ("unshare", "setpriv", "bash", "ip") if path == "no tc" else ():
        (tmp_path / name).symlink_to(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or "/nowhere")
    if path == "no tc" and two_nodes.missing():
        pytest.skip(two_nodes.missing())
    monkeypatch.setattr(two_nodes, "_environment", lambda: {"PATH": str(tmp_path) if path == "no tc" else path})
    with pytest.raises(CourseError, match=told):
        two_nodes.run([str(script)])
