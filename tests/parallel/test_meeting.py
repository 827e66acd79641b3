"""Where ranks meet follows from what a launcher says; what cannot be is one clear line, and nobody waits for ever."""

import socket
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from dltutorial.errors import CourseError
from dltutorial.launch import meeting
from dltutorial.ranks import RankInfo

TORCHRUN = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost,n[1-2]"}


def rank(number=0, world_size=2, local_world_size=None, launcher="torchrun"):
    local = world_size if local_world_size is None else local_world_size
    return RankInfo(number, number % local, world_size, local, number // local, launcher)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def meet_here(monkeypatch):
    """The environment of ranks that meet on a free port of this machine; returns it."""
    port = free_port()
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    for name in ("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "lo")
    return port


def one_line(error):
    return str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n0", "n0"),
        ("n[0-3]", "n0"),
        ("gpu[003-007,9],login1", "gpu003"),
        ("nid001,nid002", "nid001"),
        ("c[1-2]n[04-07]", "c1n04"),
        ("jwb[0001].juwels", "jwb0001.juwels"),
    ],
)
def test_the_first_node_of_slurms_notation(nodes, first):
    assert meeting.first_host(nodes) == first


def test_torchrun_says_where():
    assert meeting.place(rank(), TORCHRUN) == meeting.Place("localhost", 29500)
    kept = meeting.place(rank(), TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert kept == meeting.Place("localhost", 29500, kept=True)


def test_under_srun_it_is_the_first_node_and_a_port_of_the_step():
    here = rank(1, 4, 2, "slurm")
    place = meeting.place(here, SRUN)
    assert place.address == "localhost"
    assert 1024 < place.port < 32768
    ports = {meeting.place(here, SRUN | {"SLURM_JOB_ID": job, "SLURM_STEP_ID": step}).port for job, step in
             [("7", "0"), ("7", "1"), ("8", "0"), ("9", "0")]}  # fmt: skip
    assert len(ports) == 4
    assert meeting.place(here, SRUN | TORCHRUN) == meeting.Place("localhost", 29500)


def test_ranks_of_one_node_need_no_name():
    assert meeting.place(rank(1, 2, launcher="slurm"), SRUN | {"SLURM_STEP_NODELIST": "x9"}).address == "127.0.0.1"


def test_a_node_that_only_slurm_knows_is_asked_of_slurm(tmp_path, monkeypatch):
    tool = tmp_path / "scontrol"
    tool.write_text("#!/bin/sh\necho NodeName=$4 Arch=x NodeAddr=127.0.0.7 NodeHostName=$4\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    there = SRUN | {"SLURM_STEP_NODELIST": "no-such-node[3-4]"}
    assert meeting.place(rank(0, 4, 2, "slurm"), there).address == "127.0.0.7"


@pytest.mark.parametrize(
    ("info", "env", "said"),
    [
        (rank(), {}, "do not say where the ranks meet"),
        (rank(), {"MASTER_ADDR": "localhost"}, "do not say where the ranks meet"),
        (rank(), TORCHRUN | {"MASTER_PORT": "x"}, "MASTER_PORT='x' is no port"),
        (rank(), TORCHRUN | {"MASTER_PORT": "70000"}, "is no port"),
        (rank(0, 4, 2, "slurm"), {}, "SLURM_STEP_NODELIST is not set"),
    ],
)
def test_what_says_nothing_is_one_line(info, env, said):
    with pytest.raises(CourseError, match=said) as error:
        meeting.place(info, env)
    assert one_line(error)


def test_a_name_that_nobody_knows_is_told_at_once(meet_here, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "no-such-node.invalid")
    start = time.monotonic()
    with pytest.raises(CourseError, match=r"no-such-node.invalid.*set MASTER_ADDR") as error:
        meeting.meet(rank())
    assert one_line(error)
    assert time.monotonic() - start < 90  # and not after meeting.JOIN_S


def test_a_port_in_use_is_told(meet_here):
    with socket.create_server(("127.0.0.1", meet_here)), pytest.raises(CourseError, match="it is in use") as error:
        meeting.meet(rank(), join_s=5)
    assert one_line(error)


def test_a_rank_that_finds_nobody_says_so(meet_here):
    with pytest.raises(CourseError, match=r"finds nobody at 127\.0\.0\.1") as error:
        meeting.meet(rank(1), join_s=1)
    assert one_line(error)


def test_too_few_ranks_are_counted(meet_here):
    with pytest.raises(CourseError, match=r"WORLD_SIZE is 3, but only 1 rank came within 1 s; start as many") as error:
        meeting.meet(rank(0, 3), join_s=1)
    assert one_line(error)


def together(*infos, join_s=3):
    """Each rank in a thread meets the others; returns what each says."""
    said = {}

    def come(number, info):
        try:
            said[number] = meeting.meet(info, join_s=join_s)
        except CourseError as error:
            said[number] = str(error)

    threads = [threading.Thread(target=come, args=pair) for pair in enumerate(infos)]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    return list(said.values())


def test_all_ranks_meet(meet_here):
    assert all(isinstance(store, dist.Store) for store in together(rank(0, 3), rank(1, 3), rank(2, 3), join_s=90))


@pytest.mark.timed
def test_ranks_that_were_told_different_numbers_are_told(meet_here):
    said = together(rank(0, 2), rank(1, 3))
    assert any("rank 1 was told of 3 ranks, another of 2" in str(line) for line in said)


@pytest.mark.timed
def test_two_that_call_themselves_the_same_are_told(meet_here):
    said = together(rank(0, 3), rank(1, 3), rank(1, 3))
    assert any("two processes call themselves rank 1 of 3" in str(line) for line in said)


def test_without_nccl_ranks_on_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(CourseError, match="need NCCL, which this torch lacks") as error:
        meeting.make_group(rank(), dist.HashStore(), "cuda")
    assert one_line(error)


def test_the_command_says_it_in_one_line(tmp_path):
    env = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "dltutorial", "train", "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=250)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "WORLD_SIZE=4, but MASTER_ADDR" in line
