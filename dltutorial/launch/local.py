"""Run a function on N ranks of this machine, and return the value of each rank.

Input: a function, of a module or of a notebook cell, and its arguments.
Output: the list of the function's values, in the order of the ranks.

    def total():
        x = torch.ones(3) * dist.get_rank()
        dist.all_reduce(x)
        return x

    launch(total, 2)    # [tensor([1., 1., 1.]), tensor([1., 1., 1.])]

On each rank, the process group exists (gloo, or NCCL if every rank has its own GPU), and torchrun's variables are set.
What the ranks print appears at once, as ``[rank 1] …``.

A rank must not be a fork of a kernel that has already computed, because the fork would lack the threads of torch and
wait for them without end. So the ranks are forks of multiprocessing's fork server. This process has imported torch and
has never computed. A fork of it starts in about 0.1 s, while a new Python process needs seconds to import torch.

Sources: https://docs.pytorch.org/docs/stable/distributed.html and
https://docs.python.org/3/library/multiprocessing.html, "Contexts and start methods".
"""

import contextlib
import linecache
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from dltutorial import machine, node
from dltutorial.errors import CourseError
from dltutorial.launch import failures

MOST_RANKS_PER_CORE = 64
GRACE_AFTER_CAUSE_S = 0.3  # after a failure, the error that caused it may still arrive
GRACE_AFTER_EFFECT_S = 2.0  # after a lost connection, the rank that caused it may still report why
STACK_S = 1.0  # the time in which a waiting rank writes its stack


def launch(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = 120.0,
    backend: str = "auto",
    **kwargs: Any,
) -> list[Any]:
    """Run ``function(*args, **kwargs)`` on ``world_size`` ranks of this machine.

    Args:
        function: Any function that cloudpickle can send, for example one of a notebook cell.
        world_size: The number of processes.
        *args: The arguments. They are the same on every rank.
        timeout_s: The deadline, in seconds after the start of the last rank. Ranks that have not returned are ended.
        backend: ``gloo``, ``nccl``, or ``auto``, which is NCCL if every rank has its own GPU.
        **kwargs: The keyword arguments. They are the same on every rank.

    Returns:
        What the ranks returned, in the order of the ranks.

    Raises:
        CourseError: An argument is wrong, or something cannot be sent.
        RankFailed: A rank raised an exception or died. The text has the traceback of this rank.
        RanksHang: The deadline has passed. The text has the line at which each rank waits.
    """
    node.refuse_on_login("starting ranks")
    task = {
        "call": failures.pickled((function, args, kwargs), "the function takes or refers to something"),
        "backend": _checked_backend(world_size, backend),
        "group_timeout_s": timeout_s + 60,
        "cells": _notebook_cells(),
    }
    warm()
    ranks: list[_Rank] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0), backlog=world_size + 8) as listener,
    ):
        try:
            for rank in range(world_size):
                env = _environment_of(rank, world_size, listener.getsockname()[1])
                # Rank 0 gets the open socket of the store. Therefore no other program can take the port.
                socket_of_store = listener if rank == 0 else None
                ranks.append(_Rank(rank, Path(folder), {**task, "env": env, "listener": socket_of_store}))
            failed = _wait(ranks, timeout_s)
            stacks = {} if failed else _stacks([rank for rank in ranks if rank.is_running])
        finally:
            for started in ranks:
                started.kill()
            for started in ranks:
                started.close()
    if failed:
        raise failures.rank_failed(failed, world_size)
    if stacks:
        raise failures.ranks_hang(timeout_s, stacks, world_size)
    return [pickle.loads(rank.pickled_value) for rank in ranks]


def warm() -> None:
    """Start the fork server in the background, so that the first launch does not wait for its imports."""
    multiprocessing.set_forkserver_preload(["dltutorial.launch.worker"])
    forkserver.ensure_running()


class _Rank:
    """One rank as the caller sees it.

    Attributes:
        number: The number of the rank.
        process: Its process. It stays until the caller kills it.
        control: The pipe from which the value or the failure arrives.
        stack_file: The file to which the rank writes its stack after ``failures.STACK_SIGNAL``.
        pickled_value: What the function returned. It is empty until then.
        failure: How the rank failed, or None.
    """

    def __init__(self, number: int, folder: Path, task: dict[str, Any]) -> None:
        self.number = number
        self.stack_file = folder / f"stack-{number}"
        self.pickled_value = b""
        self.failure: failures.Failure | None = None
        self.control, control = multiprocessing.Pipe()
        output_of_rank, output = multiprocessing.Pipe(duplex=False)
        task = {**task, "control": control, "output": output, "stack_file": self.stack_file}
        self.process = ForkServerProcess(target=_run_rank, kwargs=task)
        with control, output, _hidden_main():
            self.process.start()
        self._printer = threading.Thread(target=_print_lines, args=(number, output_of_rank), daemon=True)
        self._printer.start()

    @property
    def is_running(self) -> bool:
        """Whether the rank has neither returned nor failed."""
        return not self.pickled_value and self.failure is None

    def receive(self) -> None:
        """Receive the value or the failure. If the process has died without a message, this is the failure."""
        try:
            if self.control.poll():
                self.pickled_value, self.failure = self.control.recv()
                return
        except (EOFError, OSError):  # the rank has closed the pipe because it ends
            pass
        self.process.join()
        self.failure = failures.from_exit(self.process.exitcode or 0)

    def kill(self) -> None:
        """Kill the rank and the processes that it has started."""
        assert self.process.pid  # a started process has one
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()  # it may not have its own process group yet

    def close(self) -> None:
        """Wait for the end of the killed process, and for the rest of its output."""
        self.process.join()
        self._printer.join(timeout=1.0)
        self.control.close()


def _run_rank(**task: Any) -> None:
    """Be one rank. The fork server has imported the worker and torch already."""
    from dltutorial.launch import worker

    worker.main(**task)


def _print_lines(rank: int, output: connection.Connection) -> None:
    """Print what a rank prints, line by line. Of a progress bar, which rewrites its line, print the last state."""
    with (
        output,
        open(output.fileno(), encoding="utf-8", errors="backslashreplace", newline="\n", closefd=False) as file,
    ):
        for line in file:
            text = line.rstrip("\r\n").rpartition("\r")[2]
            sys.stdout.write(f"[rank {rank}] {text}\n")  # one write, because several ranks print at the same time
            sys.stdout.flush()


def _wait(ranks: list[_Rank], timeout_s: float) -> dict[int, failures.Failure]:
    """Wait until each rank has returned, or one has failed, or the deadline has passed.

    Returns:
        The failures by rank, in the order in which they arrived.
    """
    end_s = time.monotonic() + timeout_s
    failed: dict[int, failures.Failure] = {}
    running = list(ranks)
    while running:
        sources = [source for rank in running for source in (rank.control, rank.process.sentinel)]
        ready = connection.wait(sources, max(0.0, end_s - time.monotonic()))
        if not ready:
            break
        for rank in running:
            if rank.control in ready or rank.process.sentinel in ready:
                rank.receive()
            if rank.failure is not None:
                failed[rank.number] = rank.failure
                grace_s = GRACE_AFTER_EFFECT_S if rank.failure.is_effect else GRACE_AFTER_CAUSE_S
                end_s = min(end_s, time.monotonic() + grace_s)
        running = [rank for rank in running if rank.is_running]
    return failed


def _stacks(ranks: list[_Rank]) -> dict[int, str]:
    """Return the stack of each rank. A signal handler of the rank writes it, even inside C++ code."""
    for rank in ranks:
        assert rank.process.pid
        os.kill(rank.process.pid, failures.STACK_SIGNAL)
    if ranks:
        time.sleep(STACK_S)
    return {rank.number: rank.stack_file.read_text(errors="replace") for rank in ranks}


def _checked_backend(world_size: int, backend: str) -> str:
    """Check the arguments of ``launch``, and return the backend that the ranks use."""
    n_cores = machine.cores()
    most = MOST_RANKS_PER_CORE * n_cores
    if not 1 <= world_size <= most:
        raise CourseError(f"world_size={world_size}: this machine runs at least 1 and at most {most} ranks")
    n_gpus = machine.n_devices()
    if backend == "nccl" and n_gpus < world_size:
        raise CourseError(f"nccl needs a GPU for each rank: {world_size} ranks, {n_gpus} GPUs; use backend='gloo'")
    if world_size > n_cores:
        text = f"{world_size} ranks share {n_cores} cores: the results are right, but there is no speed-up"
        warnings.warn(text, stacklevel=3)
    if backend == "auto":
        return "nccl" if n_gpus >= world_size else "gloo"
    return backend


def _environment_of(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the environment variables of a rank: those of the caller, and those that torchrun sets."""
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return {**os.environ, **{name: str(value) for name, value in variables.items()}}


def _notebook_cells() -> dict[str, Any]:
    """Return the source code of the notebook's cells, so that a traceback can show their lines."""
    return {name: entry for name, entry in linecache.cache.items() if len(entry) > 1 and entry[1] is None}


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Hide the module ``__main__``. Otherwise multiprocessing would run the caller's script again in each rank."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
