"""Run a function on N ranks of this machine, and return the value of each rank.

Input: a function, of a module or of a notebook cell, and its arguments.
Output: the list of the function's values, in the order of the ranks.

    def total():
        x = torch.ones(3) * dist.get_rank()
        dist.all_reduce(x)
        return x

    launch(total, 2)    # [tensor([1., 1., 1.]), tensor([1., 1., 1.])]

The life of one launch has five parts. ``launch`` calls their functions in this order.

    part      function                      what it does
    server    start_fork_server             It starts a process that imports torch and never computes.
    ranks     _start                        The server forks itself once for each rank. Each fork runs ``worker.main``.
    store     worker._join_process_group    Each rank calls it. The ranks find each other through the TCPStore of
                                            rank 0, and make the process group.
    watch     _wait                         It waits until all ranks have returned, one has failed, or the deadline has
                                            passed.
              _stack_traces                 After the deadline, it asks the ranks that still run where they wait.
    end       _kill_all                     It kills all ranks.

Then ``launch`` returns the values of the ranks, or raises an error of ``failures.py``.

Read ``worker.py`` next, which says what a rank does. You may skip ``rank_process.py``. It contains the details of one
process, its two pipes and its end. You may also skip ``failures.py``, which only writes the messages.

A rank is a fork of the server, because a new Python process needs seconds to import torch, and a fork needs about
0.1 s. The notebook process itself is not forked, because a forked process has only one thread. The rank would not have
the other threads of the notebook, for example those of torch, and could wait for them forever.

The process group uses gloo, or NCCL if every rank has its own GPU. torchrun's variables are set. What the ranks print
appears line by line, as ``[rank 1] …``.

Sources: https://docs.pytorch.org/docs/stable/distributed.html and
https://docs.python.org/3/library/multiprocessing.html, "Contexts and start methods".
"""

import linecache
import multiprocessing
import os
import pickle
import socket
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

from dltutorial import machine, node
from dltutorial.errors import CourseError
from dltutorial.launch import failures
from dltutorial.launch.rank_process import RankProcess

GRACE_AFTER_PRIMARY_S = 0.3  # what the other ranks print at the same time may still arrive
GRACE_AFTER_SECONDARY_S = 2.0  # after a lost connection, the primary failure may still arrive
STACK_TRACE_WAIT_S = 1.0  # the time in which a waiting rank writes its stack trace


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
        backend: ``gloo``, or ``auto``, which is NCCL if every rank has its own GPU, and otherwise gloo.
        **kwargs: The keyword arguments. They are the same on every rank. If the function itself has an argument with
            the name ``timeout_s`` or ``backend``, pass it with ``functools.partial``.

    Returns:
        What the ranks returned, in the order of the ranks.

    Raises:
        CourseError: An argument is wrong, or something cannot be sent.
        RankFailed: A rank raised an exception or died. The text has the traceback of this rank.
        RanksHang: The deadline has passed. The text has the line at which each rank waits.
    """
    node.refuse_on_login("starting ranks")
    _check_world_size(world_size)
    start_fork_server()
    worker_arguments = {  # those that are the same on every rank
        "call": failures.pickled((function, args, kwargs), "the function takes or refers to something"),
        "backend": _choose_backend(world_size, backend),
        # Longer than the deadline, so that ``launch`` reports a hang before the process group does.
        "group_timeout_s": timeout_s + 60,
        "cells": _notebook_cells(),
    }
    ranks: list[RankProcess] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            _start(ranks, world_size, worker_arguments, Path(folder))
            failed = _wait(ranks, timeout_s)  # {rank: Failure}, only of ranks that have failed
            stack_traces = {} if failed else _stack_traces(ranks)
        finally:
            _kill_all(ranks)
    if failed:
        raise failures.rank_failed(failed, world_size)
    if stack_traces:
        raise failures.ranks_hang(timeout_s, stack_traces, world_size)
    return [pickle.loads(rank.pickled_value) for rank in ranks]


def start_fork_server() -> None:
    """Start the fork server in the background, so that the first launch does not wait for its imports."""
    multiprocessing.set_forkserver_preload(["dltutorial.launch.worker"])
    forkserver.ensure_running()


def _start(ranks: list[RankProcess], world_size: int, worker_arguments: dict[str, Any], folder: Path) -> None:
    """Start the ranks.

    This process opens the socket on which rank 0 serves the TCPStore (the place where ranks find each other), so that
    no other program can take the port before rank 0 runs.

    Args:
        ranks: An empty list, to which each rank is appended when it starts. A returned list would be lost if Ctrl-C
            interrupts this function, and ``launch`` could not end the ranks that have already started.
        world_size: The number of ranks.
        worker_arguments: The arguments of ``worker.main`` that are the same on every rank.
        folder: The folder for the files of the stack traces.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=world_size + 8) as listener:
        port = listener.getsockname()[1]
        for rank in range(world_size):
            env = _environment_of(rank, world_size, port)
            own_arguments = {"env": env, "listener": listener if rank == 0 else None}
            ranks.append(RankProcess(rank, folder, worker_arguments | own_arguments))


def _wait(ranks: list[RankProcess], timeout_s: float) -> dict[int, failures.Failure]:
    """Wait until each rank has returned, or one has failed, or the deadline has passed.

    A failure is *secondary* if the rank has failed only because it has lost the connection to another rank. A secondary
    failure can arrive before the primary failure that caused it. Therefore this function waits a grace period after a
    failure, and collects what arrives. In this example, rank 1 runs out of memory.

        time      what happens                                            new deadline
         0.0 s    all ranks have started                                  120.0 s (120.0 s later)
        10.0 s    the system kills rank 1 during an all-reduce
        10.1 s    rank 0 loses the connection: a secondary failure        12.1 s (2.0 s later)
        10.2 s    the death of rank 1 arrives: the primary failure        10.5 s (0.3 s later)
        10.5 s    nothing else has arrived, so ``launch`` reports rank 1

    Returns:
        A dictionary ``{rank: Failure}``. It has only the ranks that have failed, in the order in which their failures
        arrived. It is empty if all ranks have returned, and also if the deadline has passed without a failure.
    """
    deadline_s = time.monotonic() + timeout_s
    failed: dict[int, failures.Failure] = {}
    running = list(ranks)
    while running:
        sources = [source for rank in running for source in (rank.result_caller_end, rank.process.sentinel)]
        ready = connection.wait(sources, max(0.0, deadline_s - time.monotonic()))
        if not ready:
            break
        for rank in running:
            if rank.result_caller_end in ready or rank.process.sentinel in ready:
                rank.receive()
            if rank.failure is not None:
                failed[rank.number] = rank.failure
                grace_s = GRACE_AFTER_PRIMARY_S
                if rank.failure.is_secondary:
                    grace_s = GRACE_AFTER_SECONDARY_S
                deadline_s = min(deadline_s, time.monotonic() + grace_s)
        running = [rank for rank in running if rank.is_running]
    return failed


def _stack_traces(ranks: list[RankProcess]) -> dict[int, str]:
    """Return ``{rank: stack trace}`` of the ranks that still run. If a rank has just died, its stack trace is empty."""
    running = [rank for rank in ranks if rank.is_running]
    for rank in running:
        rank.request_stack_trace()
    if running:
        time.sleep(STACK_TRACE_WAIT_S)
    return {rank.number: rank.stack_trace_file.read_text(errors="replace") for rank in running}


def _kill_all(ranks: list[RankProcess]) -> None:
    """Kill all ranks, and only then wait for each of them."""
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.close()


def _check_world_size(world_size: int) -> None:
    """Refuse to start no rank, and warn if the ranks share cores."""
    if world_size < 1:
        raise CourseError(f"world_size={world_size}: launch starts at least 1 rank")
    n_cores = machine.cores()
    if world_size > n_cores:
        text = f"{world_size} ranks share {n_cores} cores: the results are right, but there is no speed-up"
        warnings.warn(text, stacklevel=3)  # the warning shows the line that called ``launch``


def _choose_backend(world_size: int, backend: str) -> str:
    """Return ``nccl`` if it may be used and every rank has its own GPU, and otherwise ``gloo``."""
    if backend not in ("auto", "gloo"):
        raise CourseError(f"backend={backend!r}: choose gloo, or auto, which is NCCL if every rank has its own GPU")
    if backend == "auto" and machine.n_devices() >= world_size:
        return "nccl"
    return "gloo"


def _environment_of(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the environment variables of a rank: those of the caller, and those that torchrun sets."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _notebook_cells() -> dict[str, Any]:
    """Return the source code of the notebook's cells, so that a traceback can show their lines."""
    return {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) > 1 and entry[1] is None  # no modification time: the source is a notebook cell, in no file
    }
