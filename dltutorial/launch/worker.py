"""The process of one rank: join the process group, run the function, send its value, and wait for the end.

Input: an ``Assignment``, and the ends of three pipes.
Output: one message, ``(VALUE, pickled value)`` or ``(FAILURE, Failure)``.

The process stays until the caller kills it, so that no other rank loses the connection to it. It does not destroy the
process group, because that can hang while a DDP model exists (https://github.com/pytorch/pytorch/issues/56297).

Source: https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
"""

import contextlib
import datetime
import faulthandler
import linecache
import os
import pickle
import random
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

from dltutorial import machine
from dltutorial.errors import CourseError
from dltutorial.launch import failures
from dltutorial.ranks import RankInfo

VALUE = "value"
FAILURE = "failure"
STACK_SIGNAL = signal.SIGUSR2  # after this signal, a rank writes its stack


@dataclass(frozen=True)
class Assignment:
    """What a rank needs to know.

    Attributes:
        call: The function and its arguments, pickled.
        backend: ``gloo`` or ``nccl``.
        group_timeout_s: The seconds after which a collective raises an error.
        env: The environment variables of the caller, and those of torchrun.
        cells: The source code of the caller's notebook cells, as in ``linecache.cache``.
        listener: The socket of the store. Only rank 0 has it.
    """

    call: bytes
    backend: str
    group_timeout_s: float
    env: dict[str, str]
    cells: dict[str, Any]
    listener: socket.socket | None


def main(task: Assignment, control: Connection, output: Connection, stack: Connection) -> None:
    """Be one rank, from the first line to the end of the process.

    Args:
        task: What this rank has to do.
        control: The pipe for the message. It closes when the caller ends.
        output: The pipe for what the rank prints.
        stack: The pipe for the stack of the rank.
    """
    os.setsid()  # the caller ends this rank together with the processes that it has started
    _end_with_caller(control)
    _redirect(output)
    faulthandler.enable()  # if the process crashes, it prints where
    faulthandler.register(STACK_SIGNAL, file=stack.fileno(), all_threads=False)
    try:
        _take_settings_of_caller(task)
        store = _join_process_group(task)
        function, args, kwargs = pickle.loads(task.call)
        value = function(*args, **kwargs)
        message: tuple[str, Any] = (VALUE, pickled(value, "the function returned something"))
    except BaseException as error:
        message = (FAILURE, failures.from_error(error))
    sys.stdout.flush()
    sys.stderr.flush()
    control.send(message)
    threading.Event().wait()
    del store  # the other ranks use it as long as this process lives


def _end_with_caller(control: Connection) -> None:
    """Start a thread that ends this rank when the caller ends, for example because its kernel was restarted."""
    # This pipe would keep the fork server alive.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]

    def wait_for_end_of_caller() -> None:
        with contextlib.suppress(EOFError, OSError):
            control.recv()  # the caller sends nothing
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait_for_end_of_caller, daemon=True).start()


def _redirect(output: Connection) -> None:
    """Send standard output and standard error to one pipe, so that their lines stay in order."""
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115


def _take_settings_of_caller(task: Assignment) -> None:
    """Take over the environment of the caller, and this rank's share of the cores."""
    os.environ.clear()
    os.environ.update(task.env)
    linecache.cache.update(task.cells)
    import numpy as np

    random.seed()  # otherwise all ranks would continue with the state of the fork server
    np.random.seed()  # noqa: NPY002
    os.environ["OMP_NUM_THREADS"] = str(machine.use_cores())


def _join_process_group(task: Assignment) -> Any:
    """Make the process group, and return its store. Rank 0 holds the store, on the socket that the caller opened."""
    import torch.distributed as dist

    from dltutorial.launch import process_group

    info = RankInfo.from_env()
    process_group.use_loopback()
    store = dist.TCPStore(
        "127.0.0.1",
        int(os.environ["MASTER_PORT"]),
        info.world_size,
        is_master=info.rank == 0,
        timeout=datetime.timedelta(seconds=task.group_timeout_s),
        wait_for_workers=False,
        master_listen_fd=task.listener.detach() if task.listener else None,
        use_libuv=False,  # the libuv store of torch 2.6 accepts no open socket
    )
    process_group.make_process_group(info, store, task.backend, task.group_timeout_s)
    return store


def pickled(value: Any, what: str) -> bytes:
    """Pickle a value that is sent to a rank or comes from a rank.

    Args:
        value: The value. It may contain functions and classes of notebook cells.
        what: The beginning of the error message.

    Raises:
        CourseError: The value cannot be pickled.
    """
    import cloudpickle

    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        text = f"{what} that cannot be sent ({reason}); use numbers, arrays, tensors, plain objects"
        raise CourseError(text) from None
