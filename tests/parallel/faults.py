"""What ranks do in the tests. A file of its own, so that a rank imports nothing but this."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

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


def talk_then_wait(flag):
    if dist.get_rank() == 0:
        print("early", flush=True)
        while not Path(flag).exists():
            time.sleep(0.01)


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


def chained():
    try:
        deeper(0)
    except ZeroDivisionError as error:
        raise KeyError("outer") from error


def die(how):
    if dist.get_rank() == 1:
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), getattr(signal, how))
    dist.barrier()
    dist.all_reduce(torch.ones(1))


def leave():
    sys.exit(4)


def mismatched():
    if dist.get_rank() == 0:
        return "done"
    if dist.get_rank() == 1:
        x = torch.ones(4)
        dist.all_reduce(x)
    else:
        dist.barrier()


def stuck_with_the_lock():
    import ctypes

    ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the lock of the interpreter


def with_children():
    child = subprocess.Popen(["sleep", "100"])
    return os.getpid(), child.pid


def leave_behind(how):
    """Start what is not in this rank's process group any more; its number."""
    if how == "session":
        return subprocess.Popen(["sleep", "100"], start_new_session=True).pid
    code = "import subprocess as s; print(s.Popen(['sleep', '100'], start_new_session=True, stdout=-3).pid)"
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True, check=True)
    if how == "orphan":
        return int(said.stdout)
    Path(how).write_text(said.stdout.decode())
    os._exit(7)


class NoText(Exception):
    """It can be neither pickled nor printed."""

    def __str__(self):
        raise ValueError("no text")

    def __reduce__(self):
        raise TypeError("no pickle")


class NoWayBack:
    """It can be sent, and not be read."""

    def __reduce__(self):
        return int, ("no number",)


def odd(how):
    """What a function may do that no rank should; rank 0 alone."""
    if how == "text":
        raise NoText
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "closed":
        sys.stdout.close()
        os.close(1)
        return 5
    if how == "line":
        os.write(1, bytes(1) * 10**8 + b"\n")
    if how == "lines":
        sys.stdout.write(("x" * 99 + "\n") * 10**6)
    if how == "fork" and os.fork() == 0:
        return "the copy's value"
    if how == "fork and fail" and os.fork() == 0:
        raise ValueError("in the copy")
    if how == "back":
        return NoWayBack()
    if how == "deep":
        value = []
        for _ in range(10**5):
            value = [value]
        return value
    time.sleep(0.2)
    return "its value"


def give(what):
    return {"generator": (n for n in range(3)), "large": bytes(2000), "none": None}[what]


def ddp():
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def signal_the_server(number):
    """Stop or kill the fork server, which has made this rank."""
    dist.barrier()
    if dist.get_rank() == 0:
        os.kill(os.getppid(), number)
    return 1
