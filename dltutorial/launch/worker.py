"""The process of one rank: join the process group, run the function, send its value, and wait for the end.

The fork server imports this module once, and each rank is a fork of the fork server. Therefore torch is imported here,
and no rank needs to import it again.

The process stays until the caller kills it, so that no other rank loses the connection to it. It does not destroy the
process group, because that can hang while a DDP model exists (https://github.com/pytorch/pytorch/issues/56297).

Source: https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
"""

import contextlib
import datetime
import faulthandler
import gc
import linecache
import multiprocessing
import os
import pickle
import random
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

gc.disable()  # the imports make little garbage, and without the search for it they take three quarters of the time

# torch reads these variables when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a thread that waits releases its core
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # looking for GPUs must not start CUDA before the fork
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no C++ stack trace if a rank is lost

import numpy as np
import torch._dynamo  # noqa: F401  # the first optimizer imports it, which takes seconds
import torch.distributed as dist

from dltutorial import machine
from dltutorial.launch import failures, process_group
from dltutorial.ranks import RankInfo


def main(
    call: bytes,
    backend: str,
    group_timeout_s: float,
    cells: dict[str, Any],
    env: dict[str, str],
    listener: socket.socket | None,
    result_rank_end: Connection,
    output_rank_end: Connection,
    stack_trace_file: Path,
) -> None:
    """Be one rank, from the first line to the end of the process.

    Args:
        call: The function and its arguments, pickled.
        backend: ``gloo`` or ``nccl``.
        group_timeout_s: The seconds after which a collective raises an error.
        cells: The source code of the caller's notebook cells, as in ``linecache.cache``.
        env: The environment variables of the caller, and those of torchrun.
        listener: The socket of the store. Only rank 0 has it.
        result_rank_end: This rank's end of the pipe for its one message, ``(pickled value, failure)``. The caller's end
            closes when the caller ends.
        output_rank_end: This rank's end of the pipe for what it prints.
        stack_trace_file: The file for the stack trace, which the rank writes after ``failures.STACK_TRACE_SIGNAL``.
    """
    os.setsid()  # the caller ends this rank together with the processes that it has started
    threading.Thread(target=_end_with_caller, args=(result_rank_end,), daemon=True).start()
    _redirect(output_rank_end)
    faulthandler.enable()  # if the process crashes, it prints where
    faulthandler.register(failures.STACK_TRACE_SIGNAL, file=stack_trace_file.open("w"), all_threads=False)
    _replace_state_of_server(env, cells)
    pickled_value = b""
    failure = None
    try:
        os.environ["OMP_NUM_THREADS"] = str(machine.use_cores())
        store = _join_process_group(backend, group_timeout_s, listener)  # noqa: F841  # it lives as long as this name
        function, args, kwargs = pickle.loads(call)
        value = function(*args, **kwargs)
        pickled_value = failures.pickled(value, "the function returned something")
    except BaseException as error:  # also sys.exit() and Ctrl-C
        failure = failures.from_error(error)
    sys.stdout.flush()
    sys.stderr.flush()
    result_rank_end.send((pickled_value, failure))
    threading.Event().wait()  # until the caller kills this process; the other ranks may still use the store


def _end_with_caller(result_rank_end: Connection) -> None:
    """End this rank when the caller ends, for example because its kernel was restarted."""
    with contextlib.suppress(EOFError, OSError):
        result_rank_end.recv()  # the caller sends nothing, so this waits until the caller ends
    os.killpg(0, signal.SIGKILL)


def _replace_state_of_server(env: dict[str, str], cells: dict[str, Any]) -> None:
    """Replace what this process has inherited from the fork server by the state of the caller."""
    # Use Python's default start method, as under torchrun. With forkserver, each worker of a loader would import torch.
    multiprocessing.set_start_method(None, force=True)
    os.environ.clear()
    os.environ.update(env)
    linecache.cache.update(cells)
    random.seed()  # otherwise all ranks would draw the same random numbers
    np.random.seed()  # noqa: NPY002


def _redirect(output_rank_end: Connection) -> None:
    """Send standard output and standard error to one pipe, so that their lines stay in order."""
    for file_descriptor in (1, 2):
        os.dup2(output_rank_end.fileno(), file_descriptor)
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115


def _join_process_group(backend: str, timeout_s: float, listener: socket.socket | None) -> dist.Store:
    """Make the process group, and return its store. Rank 0 holds the store, on the socket that the caller opened."""
    info = RankInfo.from_env()
    process_group.use_loopback()
    store = dist.TCPStore(
        "127.0.0.1",
        int(os.environ["MASTER_PORT"]),
        info.world_size,
        is_master=info.rank == 0,
        timeout=datetime.timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach() if listener else None,
        use_libuv=False,  # the libuv store of torch 2.6 accepts no open socket
    )
    process_group.make_process_group(info, store, backend, timeout_s)
    return store


# The garbage collector writes into each object that it examines, so a rank would copy the memory that it shares with
# the fork server. A frozen object is not examined. Without this, a rank copied 1,600 more pages, and a launch of two
# ranks took about 0.15 s instead of 0.11 s.
gc.freeze()
gc.enable()
