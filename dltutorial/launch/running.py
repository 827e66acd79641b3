"""The ranks of one launch, from their start to the end of the last: one loop that listens to all of them.

In: a fork server, a pickled call. Out: pickled values by rank, or one exception once every rank has ended. The loop
runs in the caller's thread, so what ranks print lands in the caller's cell and an interrupt ends it.
"""

import contextlib
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from dltutorial.errors import CourseError
from dltutorial.launch import failures, server, wire
from dltutorial.launch.output import Output
from dltutorial.launch.rank import Setting, as_json

_EFFECT_GRACE_S = 2.0  # the same after an error that only says that another rank is gone
_END_S = 10.0  # for the system to end processes that are told to


class Running:
    """The ranks of one launch, from their start to the end of the last."""

    GRACE_S = 0.3  # after an error, for others that may tell more

    def __init__(self, ranks_of: server.Server, world_size: int, timeout_s: float):
        self._server, self._world_size, self._timeout_s = ranks_of, world_size, timeout_s
        self._ranks: list[server.Rank] = []
        self._alive: dict[int, int] = {}  # pid: rank
        self._values: dict[int, bytearray] = {}
        self._failures: dict[int, failures.Failure] = {}
        self._stacks: dict[int, bytes] = {}
        self._output = Output(world_size)
        self._readers = [wire.Reader() for _ in range(world_size)]
        self._selector = selectors.DefaultSelector()
        self._deadline_s = float("inf")  # until the ranks run

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._selector.close()
        for rank in self._ranks:
            rank.close()

    def start(self, call: bytes, backend: str, limit_bytes: int) -> None:
        """Start all ranks and tell them what to do."""
        self._selector.register(self._server.channel, selectors.EVENT_READ, self._hear_server)
        with _open_port(self._world_size + 8) as listener:
            port = listener.getsockname()[1]
            for number in range(self._world_size):
                self._add(number, self._server.start(listener if number == 0 else None))
        for number, rank in enumerate(self._ranks):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; its exit code says of what
                wire.send(rank.control, wire.SETTING, as_json(self._setting(number, port, backend, limit_bytes)))
                wire.send(rank.control, wire.CALL, call)
        self._deadline_s = time.monotonic() + self._timeout_s

    def results(self) -> list[bytearray]:
        """Listen until every rank has returned, one has failed, or the deadline has passed.

        Raises:
            RankFailed, RanksHang: as ``launch``.
        """
        while self._pending() and self._listen(self._until_s()):
            pass
        waiting = self._pending()
        if waiting and not self._failures:
            self._ask_where(waiting)
        failed = dict(self._failures)
        self._end(kill=bool(waiting or failed))
        if failed:
            raise failures.as_exception(failed.values(), self._world_size)
        if waiting:
            raise failures.hang(self._timeout_s, self._stacks_of(waiting), self._world_size)
        return [self._values[n] for n in range(self._world_size)]

    def _pending(self) -> list[int]:
        """Ranks that have neither returned nor failed."""
        return [n for n in range(self._world_size) if n not in self._values and n not in self._failures]

    def _stacks_of(self, ranks: Iterable[int]) -> dict[int, str]:
        return {n: self._stacks.get(n, b"").decode(errors="replace") for n in ranks}

    def _add(self, number: int, rank: server.Rank) -> None:
        self._ranks.append(rank)
        self._alive[rank.pid] = number
        os.set_blocking(rank.output_fd, False)
        for source, hear in (
            (rank.control, lambda: self._hear_rank(number)),
            (rank.output_fd, lambda: self._hear_output(number)),
            (rank.stack_fd, lambda: self._hear_stack(number)),
        ):
            self._selector.register(source, selectors.EVENT_READ, hear)

    def _setting(self, number: int, port: int, backend: str, limit_bytes: int) -> Setting:
        size, env = str(self._world_size), dict(os.environ)
        env |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        env |= {"GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        loopback = "lo" if sys.platform == "linux" else "lo0"  # no name of this machine has to be resolved
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            env.setdefault(name, loopback)
        group_timeout_s = self._timeout_s + 60  # the launch ends before a collective gives up
        return Setting(
            number,
            self._world_size,
            port,
            backend,
            group_timeout_s,
            limit_bytes,
            env,
            str(Path.cwd()),
            list(map(str, sys.path)),
        )

    def _until_s(self) -> float:
        if not self._failures:
            return self._deadline_s
        first_s = min(failure.at_s for failure in self._failures.values())
        only_effects = all(failure.is_effect for failure in self._failures.values())
        return min(self._deadline_s, first_s + (_EFFECT_GRACE_S if only_effects else self.GRACE_S))

    def _listen(self, until_s: float) -> bool:
        """Handle what comes next; False when ``until_s`` has passed."""
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return False
        for key, _ in self._selector.select(left_s):
            key.data()
        return True

    def _hear_rank(self, number: int) -> None:
        try:
            data = self._ranks[number].control.recv(2**20)
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(self._ranks[number].control)
        for kind, payload in self._readers[number].feed(data):
            self._take(number, kind, payload)

    def _take(self, number: int, kind: bytes, payload: bytearray) -> None:
        """One message of a rank."""
        if kind == wire.RESULT:
            self._values[number] = payload
        elif kind == wire.ERROR:
            self._failures[number] = failures.from_error(number, time.monotonic(), json.loads(payload))
        elif kind == wire.PROGRESS:
            self._output.progress(*json.loads(payload))

    def _hear_output(self, number: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if data := os.read(self._ranks[number].output_fd, 2**16):
                self._output.feed(number, data)
            else:
                self._selector.unregister(self._ranks[number].output_fd)

    def _hear_stack(self, number: int) -> None:
        if data := os.read(self._ranks[number].stack_fd, 2**16):
            self._stacks[number] = self._stacks.get(number, b"") + data
        else:
            self._selector.unregister(self._ranks[number].stack_fd)

    def _hear_server(self) -> None:
        for pid, code in self._server.ended():
            number = self._alive.pop(pid)
            if number not in self._failures:
                self._failures[number] = failures.from_exit(number, time.monotonic(), code)

    def _ask_where(self, waiting: list[int]) -> None:
        """Give every rank a second to write its stack; the signal handler does so even inside C++ code."""
        self._server.ask_where()
        until_s = time.monotonic() + 1.0
        while not all(b"\n" in self._stacks.get(n, b"") for n in waiting) and self._listen(until_s):
            pass
        until_s = time.monotonic() + 0.1  # the stack comes in many small writes
        while self._listen(until_s):
            pass

    def _end(self, kill: bool) -> None:
        """End all ranks, wait until the system has buried them, print their last words."""
        if kill:
            self._server.kill_ranks()
        for rank in self._ranks:
            with contextlib.suppress(KeyError):
                self._selector.unregister(rank.control)
            with contextlib.suppress(OSError):
                rank.control.shutdown(socket.SHUT_RDWR)
        until_s = time.monotonic() + _END_S
        while self._alive and self._listen(until_s):
            pass
        if self._alive:
            raise CourseError(f"ranks {sorted(self._alive.values())} do not end; restart the kernel")
        for number in range(self._world_size):
            self._drain(number)
        self._output.close()

    def _drain(self, number: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._ranks[number].output_fd, 2**16):
                self._output.feed(number, data)


def _open_port(backlog: int) -> socket.socket:
    """A listening socket on a port that the system chooses: no port that is in use can be in the way.

    Raises:
        CourseError: there is none left.
    """
    try:
        return socket.create_server(("127.0.0.1", 0), backlog=backlog)
    except OSError as error:
        raise CourseError(
            f"no port of 127.0.0.1 is free for the ranks to meet ({error.strerror}); end programs that hold many"
        ) from error
