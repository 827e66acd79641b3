"""What happens inside one rank: take the call, join the process group, run the function, send its value, end.

In: a socket to the caller, a pipe for output, a pipe for the stack, and for rank 0 the listening socket of the store.
Out: one message, RESULT or ERROR. The rank stays until the caller closes the socket, so that no other rank loses a
peer or the store, and then ends with ``os._exit``: destroying a gloo group while a DDP model lives can hang.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
"""

import contextlib
import datetime
import faulthandler
import json
import os
import random
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from dltutorial.errors import CourseError
from dltutorial.launch import wire

OWN_FILES = tuple(str(Path(__file__).with_name(name)) for name in ("rank.py", "resident.py"))
_CHANNEL = "DLTUTORIAL_RANK_CHANNEL"  # "pid:fd", so that a child of a rank does not take it for its own


@dataclass(frozen=True)
class Setting:
    """All a rank has to know besides the function.

    Attributes:
        rank, world_size: place among the ranks; all are on this machine.
        port: of the store, on 127.0.0.1.
        backend: gloo or nccl.
        group_timeout_s: after which a collective gives up by itself; longer than the launch.
        limit_bytes: largest value that may be returned.
        env, cwd, path: the caller's environment variables, working folder and ``sys.path``.
    """

    rank: int
    world_size: int
    port: int
    backend: str
    group_timeout_s: float
    limit_bytes: int
    env: dict[str, str]
    cwd: str
    path: list[str]


def progress(done: float, total: float) -> None:
    """Move the bar under the caller's cell or command: ``done`` of ``total``. Only rank 0 moves it.

    Outside a launch nothing happens, so code that reports its progress runs anywhere.
    """
    if os.environ.get("RANK") == "0" and (own := own_channel()) is not None:
        with own as channel:
            wire.send(channel, wire.PROGRESS, json.dumps([float(done), float(total)]).encode())


def own_channel() -> socket.socket | None:
    """Another handle of this rank's channel to its caller; None outside a rank."""
    pid, _, fd = os.environ.get(_CHANNEL, "").partition(":")
    return socket.socket(fileno=os.dup(int(fd))) if pid == str(os.getpid()) else None


def main(control_fd: int, output_fd: int, stack_fd: int, listen_fd: int | None = None) -> None:
    """Be one rank from the first message to the end of the process."""
    _redirect(output_fd)
    faulthandler.enable()  # a crash prints its stack into the rank's output
    from dltutorial.launch.forkserver import WHERE_SIGNAL

    faulthandler.register(WHERE_SIGNAL, file=stack_fd, all_threads=False)
    channel = socket.socket(fileno=control_fd)
    try:
        setting = Setting(**json.loads(wire.receive(channel)[1]))
        call = wire.receive(channel)[1]
        _settle(setting, control_fd)
        store = _join(setting, listen_fd)
        kind, payload = wire.RESULT, _run(call, setting.limit_bytes)
    except BaseException as error:
        kind, payload, store = wire.ERROR, json.dumps(describe(error)).encode(), None
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(OSError, EOFError):
        wire.send(channel, kind, payload)
        wire.receive(channel)  # returns when the caller closes it: all ranks are done
    del store
    os._exit(0)


def _redirect(output_fd: int) -> None:
    """Standard output and error go to one pipe, in the order in which they were written; there is no input."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, number in ((nothing, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(fd, number)
    os.close(nothing)
    os.close(output_fd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- lives as long as the process
    sys.stdout, sys.stderr = (
        open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        for number in (1, 2)
    )


def _settle(setting: Setting, control_fd: int) -> None:
    """Take over the caller's surroundings and this rank's share of the cores."""
    os.environ.clear()
    os.environ.update(setting.env)
    os.environ[_CHANNEL] = f"{os.getpid()}:{control_fd}"
    os.chdir(setting.cwd)
    sys.path[:] = setting.path
    tempfile.tempdir = None  # found again from this environment
    import numpy as np

    from dltutorial import machine

    random.seed()  # else all ranks go on with the server's state
    np.random.seed()  # noqa: NPY002
    os.environ["OMP_NUM_THREADS"] = str(machine.use_cores())


def _join(setting: Setting, listen_fd: int | None) -> Any:
    """Make the process group; returns the store, which lives as long as the rank."""
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=setting.group_timeout_s)
    # The caller has opened the port and rank 0 goes on with it: nobody can take it in between.
    store = dist.TCPStore(
        "127.0.0.1",
        setting.port,
        setting.world_size,
        is_master=setting.rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listen_fd,
    )
    make_group(setting.backend, store, setting.rank, setting.world_size, setting.group_timeout_s)
    return store


def make_group(backend: str, store: Any, rank: int, world_size: int, timeout_s: float) -> None:
    """Make the process group of all ranks; with nccl the rank's GPU is the current one from here on."""
    import torch
    import torch.distributed as dist

    device = None
    if backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout_s),
        device_id=device,
    )


def _run(call: bytearray, limit_bytes: int) -> bytes:
    import cloudpickle

    function, args, kwargs = cloudpickle.loads(call)
    return packed(function(*args, **kwargs), "the function returned something", limit_bytes, cloudpickle.dumps)


def packed(value: Any, what: str, limit_bytes: int, dumps: Callable[[Any], bytes]) -> bytes:
    """Pickle a value that goes to or comes from a rank.

    Raises:
        CourseError: it cannot be pickled, or is too large.
    """
    try:
        data = dumps(value)
    except Exception as error:
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise CourseError(f"{what} that cannot be sent ({told}); use numbers, arrays, tensors, plain objects") from None
    if len(data) > limit_bytes:
        raise CourseError(
            f"{what} of {len(data) / 2**20:.0f} MiB, more than the {limit_bytes / 2**20:.0f} MiB that a launch sends; "
            "save it to a file and send the path"
        )
    return data


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: its kind and message, and the frames and headline of all it came from, in order."""
    chain: list[dict[str, Any]] = []
    link = ""
    current: BaseException | None = error
    while current is not None and len(chain) < 10:
        only = "".join(traceback.format_exception_only(current)).rstrip()
        chain.insert(0, {"frames": _frames(current.__traceback__), "headline": only, "link": link})
        if current.__cause__ is not None:
            link, current = "which caused", current.__cause__
        else:
            link, current = "while that was handled", None if current.__suppress_context__ else current.__context__
    return {
        "kind": type(error).__name__,
        "message": str(error.msg or "") if isinstance(error, SyntaxError) else str(error),
        "from_course": isinstance(error, CourseError),
        "chain": chain,
    }


def _frames(tb: TracebackType | None) -> list[tuple[str, int, str]]:
    """(file, line, function) of every frame, those of this module and of the one that runs cells left out."""
    frames = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(tb, limit=100)]
    return [frame for frame in frames if frame[0] not in OWN_FILES]


def as_json(setting: Setting) -> bytes:
    """What the other end turns into the same setting again."""
    return json.dumps(asdict(setting)).encode()
