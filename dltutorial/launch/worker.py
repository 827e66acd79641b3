"""What a rank's process does: join the process group, run the function, send its value, stay until it is ended.

In: an ``Assignment`` and pipes to the caller. Out: one message, VALUE or ERROR. The rank stays until the caller kills
it, so that no other rank loses a peer or the store; destroying a gloo group while a DDP model lives can hang
(https://github.com/pytorch/pytorch/issues/56297). When the caller is gone, the rank and its children end.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
"""

import contextlib
import ctypes
import datetime
import faulthandler
import linecache
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from socket import socket
from typing import Any

from dltutorial import machine
from dltutorial.errors import CourseError
from dltutorial.launch import failures
from dltutorial.ranks import RankInfo

VALUE, ERROR = "value", "error"  # kinds of message to the caller
WHERE_SIGNAL = signal.SIGUSR2  # a rank answers it with its stack
SOCKETS = "DLTUTORIAL_FORK_SERVER_SOCKETS"  # the folder of the fork server's socket
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # https://man7.org/linux/man-pages/man2/prctl.2.html


@dataclass(frozen=True)
class Assignment:
    """All a rank has to know."""

    call: bytes  # function and arguments, pickled
    limit_bytes: int  # of the value
    backend: str
    group_timeout_s: float  # after which a collective gives up by itself
    env: dict[str, str]
    cells: dict[str, Any]  # sources of notebook cells, as ``linecache.cache`` has them


def main(task: Assignment, control: Connection, output: Connection, stack: Connection, listener: socket | None) -> None:
    """Be one rank from the first line to the end of the process."""
    os.setsid()  # a process group of its own, which the caller ends as a whole
    pid = os.getpid()
    threading.Thread(target=_end_with_caller, args=(control,), daemon=True).start()
    _end_with_fork_server()
    for number in (1, 2):  # standard output and error go to one pipe, in the order in which they were written
        os.dup2(output.fileno(), number)
    sys.stdout, sys.stderr = (
        open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        for number in (1, 2)
    )
    faulthandler.enable()  # a crash prints its stack into the rank's output
    faulthandler.register(WHERE_SIGNAL, file=stack.fileno(), all_threads=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    message: tuple[str, Any]
    try:
        _take_over(task)
        store = _join(task, listener)
        function, args, kwargs = pickle.loads(task.call)
        message = VALUE, packed(function(*args, **kwargs), "the function returned something", task.limit_bytes)
    except BaseException as error:
        message = ERROR, failures.from_error(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if os.getpid() != pid:  # a copy that the function has forked, and that came here too: it is no rank
        os._exit(message[0] == ERROR)
    control.send(message)
    threading.Event().wait()
    del store  # lives as long as the rank


def _end_with_caller(control: Connection) -> None:
    """The caller sends nothing: its end of the pipe closes when it dies."""
    with contextlib.suppress(EOFError, OSError):
        control.recv()
    os.killpg(0, signal.SIGKILL)


def _end_with_fork_server() -> None:
    """The same for a rank that keeps Python's lock: the fork server ends with the caller, on Linux the rank with it."""
    with contextlib.suppress(AttributeError, TypeError, OSError):  # a pipe that would keep the server alive
        os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    control_process(PR_SET_CHILD_SUBREAPER, 1)  # its own children's children stay below it


def control_process(option: int, value: int) -> None:
    """Set what Linux does with this process or what it leaves behind; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _take_over(task: Assignment) -> None:
    """Have the caller's surroundings, and this rank's share of the cores."""
    os.environ.clear()
    os.environ.update(task.env)
    linecache.cache.update(task.cells)
    tempfile.tempdir = None  # found again from this environment
    import numpy as np

    random.seed()  # else all ranks go on with the fork server's state
    np.random.seed()  # noqa: NPY002
    os.environ["OMP_NUM_THREADS"] = str(machine.use_cores())


def _join(task: Assignment, listener: socket | None) -> Any:
    """Make the process group; returns the store, which rank 0 holds, on the socket that the caller has opened."""
    import torch.distributed as dist

    from dltutorial.launch import process_group

    info = RankInfo.from_env()
    process_group.use_loopback()
    store = dist.TCPStore(
        "127.0.0.1", int(os.environ["MASTER_PORT"]), info.world_size, is_master=listener is not None,
        timeout=datetime.timedelta(seconds=task.group_timeout_s), wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
        use_libuv=False,  # the libuv store of torch 2.6 takes no open socket
    )  # fmt: skip
    process_group.make_process_group(info, store, task.backend, task.group_timeout_s)
    return store


def packed(value: Any, what: str, limit_bytes: int) -> bytes:
    """Pickle a value that goes to or comes from a rank. CourseError: it cannot be pickled, or is too large."""
    import cloudpickle

    try:
        data = cloudpickle.dumps(value)
    except Exception as error:
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise CourseError(f"{what} that cannot be sent ({told}); use numbers, arrays, tensors, plain objects") from None
    if len(data) > limit_bytes:
        told = f"more than the {limit_bytes / 2**20:.0f} MiB that a launch sends; save it to a file and send the path"
        raise CourseError(f"{what} of {len(data) / 2**20:.0f} MiB, {told}")
    return data
