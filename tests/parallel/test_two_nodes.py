"""Two nodes on one machine, with a slow link between them."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from waiting import wait_for

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
"""


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "where.py"
    file.write_text(WHERE)
    return file


def start(script, *arguments):
    line = [sys.executable, "-m", "dltutorial", "pocket", "network", str(script), *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def running(script):
    """Processes that run the script."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(script) in process.cmdline():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@needs_networks
@pytest.mark.ci
def test_two_ranks_on_each_of_two_nodes_meet_and_only_the_link_joins_them(script):
    process = start(script, "0")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("RANKS")]
    near, far = ("0", ["lo", "near"], 6.0), ("1", ["far", "lo"], 6.0)
    assert line == f"RANKS {[near, near, far, far]}"
    assert not running(script)


@needs_networks
@pytest.mark.ci
def test_ctrl_c_ends_the_ranks_of_both_nodes(script):
    process = start(script, "300")
    assert any(line.startswith("RANKS") for line in process.stdout)
    assert running(script)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    wait_for(lambda: not running(script))


def test_a_machine_without_unshare_is_one_line(script, monkeypatch):
    monkeypatch.setattr(two_nodes, "_environment", lambda: {"PATH": "/nowhere"})
    with pytest.raises(CourseError, match="no unshare here"):
        two_nodes.run([str(script)])
