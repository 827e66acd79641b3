"""Where ranks meet follows from what a launcher says. A wrong setting is one clear line, and no rank waits for ever."""

import os
import socket
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from serving import free_port

from dltutorial.errors import CourseError
from dltutorial.launch import process_group
from dltutorial.ranks import RankInfo

TORCHRUN = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost,n[1-2]"}
RANK = """
import sys
import torch
import torch.distributed as dist
from dltutorial.launch import process_group
from dltutorial.ranks import RankInfo
info = RankInfo.from_env()
store = process_group.rendezvous(info)
device = process_group.make_process_group(info, store, "gloo")
x = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
x(torch.ones(1, 2)).sum().backward()
process_group.leave(info, store, 3 if info.rank else 0)
"""


def rank(number=0, world_size=2, local_world_size=None, launcher="torchrun"):
    local = world_size if local_world_size is None else local_world_size
    return RankInfo(number, number % local, world_size, local, launcher)


@pytest.fixture
def port(monkeypatch):
    """A free one of this machine, which the environment names."""
    free = free_port()
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free), "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return free


def test_under_srun_it_is_the_first_node_and_a_port_of_the_step(tmp_path, monkeypatch):
    tool = tmp_path / "scontrol"
    tool.write_text("#!/bin/sh\n[ $2 = node ] && echo NodeName=$3 NodeAddr=127.0.0.7 Port=1 || printf 'n3\\nn4\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    here = rank(1, 4, 2, "slurm")
    where = process_group.address(here, SRUN)
    assert where["MASTER_ADDR"] == "127.0.0.7"
    assert 1024 < int(where["MASTER_PORT"]) < 32768
    steps = [("7", "0"), ("7", "1"), ("8", "0"), ("9", "0")]
    envs = [SRUN | {"SLURM_JOB_ID": job, "SLURM_STEP_ID": step} for job, step in steps]
    assert len({process_group.address(here, env)["MASTER_PORT"] for env in envs}) == 4
    assert process_group.address(here, SRUN | TORCHRUN) == TORCHRUN


def test_a_name_that_does_not_resolve_is_an_error_at_once(port, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "no-such-node.invalid")
    with pytest.raises(CourseError, match=r"no-such-node.invalid.*set MASTER_ADDR"):
        process_group.rendezvous(rank())


@pytest.mark.parametrize("number", [0, 1])
def test_missing_ranks_are_one_line(port, number):
    with pytest.raises(CourseError, match=rf"^rank {number} of 3 did not meet the others at 127\.0\.0\.1") as error:
        process_group.rendezvous(rank(number, 3), timeout_s=1)
    assert "\n" not in str(error.value)


def test_a_port_in_use_is_an_error(port):
    with socket.create_server(("127.0.0.1", port)), pytest.raises(CourseError, match="in use"):
        process_group.rendezvous(rank(), timeout_s=5)


@pytest.mark.ci
def test_ranks_meet_and_part_without_destroying_the_group(port):
    envs = [{"RANK": n, "LOCAL_RANK": n, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"} for n in "01"]
    ranks = [subprocess.Popen([sys.executable, "-c", RANK], env=os.environ | env) for env in envs]
    assert [each.wait(100) for each in ranks] == [0, 3]


def test_without_nccl_ranks_on_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(CourseError, match="need NCCL, which this torch lacks"):
        process_group.make_process_group(rank(), dist.HashStore(), "cpu:gloo,cuda:nccl")
