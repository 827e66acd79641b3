"""What ranks do in the tests. A file of its own, so that a rank imports nothing but this."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from dltutorial.ranks import RankInfo


def total(scale, *, more=0):
    x = torch.full((3,), float(dist.get_rank() * scale + more))
    dist.all_reduce(x)
    return dist.get_rank(), x.tolist()


def surroundings():
    env = {name: os.environ[name] for name in ("MASTER_ADDR", "OMP_NUM_THREADS")}
    return RankInfo.from_env(), env, torch.get_num_threads(), str(Path.cwd()), os.environ.get("MINE")


def talk():
    print("first\nsecond")
    print("to stderr", file=sys.stderr)
    os.write(1, b"no newline")


def divide_on_rank_1():
    if dist.get_rank() == 1:
        deeper(0)
    dist.barrier()


def deeper(x):
    return 1 / x


def fail_everywhere():
    if dist.get_rank() == 1:
        raise ValueError("the real one")
    time.sleep(0.1)
    raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")


def die():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def mismatched():
    if dist.get_rank() == 0:
        return "done"
    if dist.get_rank() == 1:
        x = torch.ones(4)
        dist.all_reduce(x)
    else:
        dist.barrier()


def give_generator():
    return (n for n in range(3))
