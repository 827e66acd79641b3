"""The life of a rank that stays: it runs one cell after another in one namespace, until its caller goes.

In: cells, through the rank's channel. Out: for each its variables that were asked for, then what its last expression
shows, or its error. The namespace is ``__main__``, as in a kernel, and starts with ``rank`` and ``world_size``.

A thread of its own listens to the channel, so that a rank can be interrupted while it computes. One that waits for
others inside a collective hears no interrupt: there the connections to the other ranks are cut, the collective fails,
and all ranks make a new group. The old one is kept and never ended: a DDP model that refers to it would hang.
"""

import ast
import contextlib
import json
import linecache
import os
import queue
import signal
import socket
import stat
import sys
import threading
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, Never

from dltutorial.errors import CourseError
from dltutorial.launch import rank, wire

_LONGEST_TEXT = 20_000  # characters of a shown value


@dataclass(frozen=True)
class Cell:
    """What to run: ``file`` is its name in tracebacks, ``get`` the variables to give back."""

    source: str
    file: str
    get: tuple[str, ...] = ()


def stay(limit_bytes: int, group_timeout_s: float) -> Never:
    """Be a resident; the function that is launched on every rank."""
    Resident(limit_bytes, group_timeout_s).live()


class Resident:
    """One rank between and during cells."""

    def __init__(self, limit_bytes: int, group_timeout_s: float):
        self._limit_bytes, self._group_timeout_s = limit_bytes, group_timeout_s
        self._channel = rank.own_channel()
        self._orders: queue.SimpleQueue[wire.Message] = queue.SimpleQueue()
        self._in_cell = False
        self._old_groups: list[Any] = []
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        self._namespace = main.__dict__
        names = ("RANK", "WORLD_SIZE", "MASTER_PORT")  # read once: a cell may play with them
        self._rank, self._world_size, self._port = (int(os.environ[name]) for name in names)
        self._namespace |= {"rank": self._rank, "world_size": self._world_size}

    def live(self) -> Never:
        """Say that the rank is ready, then obey."""
        signal.signal(signal.SIGINT, self._interrupted)
        threading.Thread(target=self._listen, daemon=True).start()
        kind, answer = wire.RESULT, b"{}"
        while True:
            wire.send(self._channel, kind, answer)
            kind, answer = self._obey(*self._orders.get())

    def _listen(self) -> None:
        """Pass on what is to be done, do at once what cannot wait; when the caller is gone, so is the rank."""
        try:
            while True:
                order, payload = wire.receive(self._channel)
                if order == wire.CUT:
                    cut_connections(self._port)
                if order in (wire.CUT, wire.INTERRUPT):
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                else:
                    self._orders.put((order, payload))
        except (OSError, EOFError):
            os._exit(0)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._in_cell:
            self._in_cell = False  # a second one must not disturb the report of the first
            raise KeyboardInterrupt

    def _obey(self, order: bytes, payload: bytearray) -> wire.Message:
        """Do what the main thread has to do; returns the answer, an error of the cell included."""
        import torch.distributed as dist

        shown = got = None
        try:
            self._in_cell = True
            if order == wire.VALUES:
                import cloudpickle

                self._namespace.update(cloudpickle.loads(payload))
            elif order == wire.CELL:
                shown, got = self._run(Cell(**json.loads(payload)))
            self._in_cell = False
            if got is not None:
                wire.send(self._channel, wire.GOT, got)
            if order == wire.REJOIN:
                self._rejoin(**json.loads(payload))
            return wire.RESULT, json.dumps({"shown": shown, "has_group": dist.is_initialized()}).encode()
        except BaseException as error:
            self._in_cell = False
            return wire.ERROR, json.dumps(rank.describe(error)).encode()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # a cell may have closed it
                    stream.flush()

    def _run(self, cell: Cell) -> tuple[dict[str, str] | None, bytes | None]:
        """Execute the cell; returns its last value as ``MIME type: text``, and the variables asked for, packed."""
        linecache.cache[cell.file] = (len(cell.source), None, cell.source.splitlines(keepends=True), cell.file)
        tree = compile(cell.source, cell.file, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, cell.file, "exec", dont_inherit=True), self._namespace)
        shown = got = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), cell.file, "eval", dont_inherit=True), self._namespace)
            shown = None if value is None or cell.source.rstrip().endswith(";") else as_bundle(value)
        if cell.get:
            import cloudpickle

            what = f"{', '.join(cell.get)} is or holds something"
            values = {name: self._value(name) for name in cell.get}
            got = rank.packed(values, what, self._limit_bytes, cloudpickle.dumps)
        return shown, got

    def _value(self, name: str) -> Any:
        if name not in self._namespace:
            raise CourseError(f"there is no variable {name!r} to get")
        return self._namespace[name]

    def _rejoin(self, backend: str, name: str) -> None:
        """Leave the process group, if it is still there, and make another one with all ranks."""
        import torch.distributed as dist

        cut_connections(self._port)
        if dist.is_initialized():
            self._old_groups.append(dist.group.WORLD)
            dist.destroy_process_group()
        store = dist.TCPStore("127.0.0.1", self._port, self._world_size, is_master=False, wait_for_workers=False)
        rank.make_group(backend, dist.PrefixStore(name, store), self._rank, self._world_size, self._group_timeout_s)


def as_bundle(value: Any) -> dict[str, str]:
    """What a kernel would show of a value: plain text, and HTML where the value knows how."""
    bundle: dict[str, Any] = {"text/plain": repr(value)}
    if (make := getattr(type(value), "_repr_mimebundle_", None)) is not None:
        bundle |= make(value) or {}
    elif (make := getattr(type(value), "_repr_html_", None)) is not None:
        bundle["text/html"] = make(value)
    if len(text := bundle["text/plain"]) > _LONGEST_TEXT:
        bundle["text/plain"] = f"{text[:_LONGEST_TEXT]} … ({len(text):,} characters)"
    return {kind: bundle[kind] for kind in ("text/plain", "text/html") if isinstance(bundle.get(kind), str)}


def cut_connections(store_port: int) -> None:
    """End this process's TCP connections to other ranks of this machine; those to the store stay."""
    for fd in map(int, os.listdir("/dev/fd")):  # noqa: PTH208 -- of numbers, not of paths
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            own = socket.socket(fileno=os.dup(fd))
        except OSError:  # closed meanwhile
            continue
        with own:
            try:
                (here, port, *_), (there, other, *_) = own.getsockname(), own.getpeername()
            except (OSError, ValueError):  # a listening one, or one of another family
                continue
            if here == there and store_port not in (port, other):
                own.shutdown(socket.SHUT_RDWR)
