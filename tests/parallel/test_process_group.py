"""Where ranks meet follows from what a launcher says. A wrong setting is one clear line, and no rank waits for ever."""

import os
import socket
import subprocess
import sys

import pytest
from serving import free_port

from dltutorial.errors import CourseError
from dltutorial.launch import process_group
from dltutorial.ranks import RankInfo

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


def rank(number=0, world_size=2):
    return RankInfo(number, number, world_size, world_size, "torchrun")


@pytest.fixture
def port(monkeypatch):
    """A free one of this machine, which the environment names."""
    free = free_port()
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free), "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return free


def test_a_name_that_does_not_resolve_is_an_error_at_once(port, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "no-such-node.invalid")
    with pytest.raises(CourseError, match=r"no-such-node.invalid.*set MASTER_ADDR"):
        process_group.rendezvous(rank())


@pytest.mark.parametrize("number", [0, 1])
def test_missing_ranks_are_one_line(port, number, monkeypatch):
    monkeypatch.setattr(process_group, "RENDEZVOUS_S", 1)
    with pytest.raises(CourseError, match=rf"^rank {number} of 3 did not meet the others at 127\.0\.0\.1") as error:
        process_group.rendezvous(rank(number, 3))
    assert "\n" not in str(error.value)


def test_a_port_in_use_is_an_error(port):
    with socket.create_server(("127.0.0.1", port)), pytest.raises(CourseError, match="in use"):
        process_group.rendezvous(rank())


@pytest.mark.ci
def test_ranks_meet_and_part_without_destroying_the_group(port):
    envs = [{"RANK": n, "LOCAL_RANK": n, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"} for n in "01"]
    ranks = [subprocess.Popen([sys.executable, "-c", RANK], env=os.environ | env) for env in envs]
    assert [each.wait(100) for each in ranks] == [0, 3]
