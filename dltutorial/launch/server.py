"""The caller's end of the fork server: start it once, ask it for ranks, end it.

In: nothing but ``sys.path`` and the environment. Out: ranks (``Rank``) and their exit codes. The server is a child
of this process in a session of its own, so Ctrl-C does not reach it; it ends when this process does.
"""

import atexit
import contextlib
import functools
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.launch import wire

_START_S = 120.0  # a cold disk and busy cores may need most of it


@dataclass(frozen=True)
class Rank:
    """The caller's ends of what ties it to one rank."""

    pid: int
    control: socket.socket
    output_fd: int
    stack_fd: int

    def close(self) -> None:
        """Let go of everything."""
        self.control.close()
        for fd in (self.output_fd, self.stack_fd):
            os.close(fd)


class Server:
    """A fork server that is starting, running or gone. One launch at a time holds ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner_pid = os.getpid()
        self.channel, theirs = socket.socketpair()
        self._reader = wire.Reader()
        self._messages: list[wire.Message] = []
        self._is_ready = False
        command = [sys.executable, "-P", "-m", "dltutorial.launch.forkserver", str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                [*command, str(os.getpid())],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self.stop)

    def wait_until_ready(self) -> None:
        """Return once torch is imported there.

        Raises:
            CourseError: it did not start.
        """
        if self._is_ready:
            return
        kind, payload = self._next(_START_S)
        if kind != wire.READY:
            raise CourseError(f"the rank server did not start: {payload.decode()}; does `import torch` work?")
        self._is_ready = True

    def start(self, listener: socket.socket | None) -> Rank:
        """Fork a rank; the first one of a launch takes the store's listening socket along."""
        control, theirs = socket.socketpair()
        pipes = [os.pipe(), os.pipe()]
        fds = [theirs.fileno(), *(write for _, write in pipes), *([listener.fileno()] if listener else [])]
        try:
            socket.send_fds(self.channel, [wire.START], fds)
        finally:
            theirs.close()
            for _, write in pipes:
                os.close(write)
        kind, payload = self._next(_START_S)
        if kind != wire.STARTED:
            raise CourseError("the rank server is out of step; run again")
        return Rank(int(payload), control, *(read for read, _ in pipes))

    def kill_ranks(self) -> None:
        """Kill every rank that is alive, with its process group."""
        with contextlib.suppress(OSError):
            self.channel.sendall(wire.KILL)

    def ask_where(self) -> None:
        """Have every rank that is alive write its stack."""
        with contextlib.suppress(OSError):
            self.channel.sendall(wire.WHERE)

    def ended(self) -> list[tuple[int, int]]:
        """What the server says now, when its channel is readable: (pid, exit code) of ranks that have ended."""
        self._receive()
        found = [tuple(map(int, text.split())) for kind, text in self._messages if kind == wire.ENDED]
        self._messages.clear()
        return found

    def is_alive(self) -> bool:
        """Whether it can be asked for ranks."""
        return self.process.poll() is None and self.channel.fileno() >= 0

    def stop(self) -> None:
        """End the server and with it all its ranks; a copy of this object in a forked child does nothing."""
        if os.getpid() != self.owner_pid:
            return
        atexit.unregister(self.stop)
        self.channel.close()
        try:
            self.process.wait(5 if self._is_ready else 0.5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _next(self, wait_s: float) -> wire.Message:
        until_s = time.monotonic() + wait_s
        while not self._messages:
            self.channel.settimeout(max(0.01, until_s - time.monotonic()))
            try:
                self._receive()
            except TimeoutError:
                raise CourseError(f"the rank server did not answer within {wait_s:g} s; is the machine busy?") from None
            finally:
                self.channel.settimeout(None)
        return self._messages.pop(0)

    def _receive(self) -> None:
        data = self.channel.recv(65536)
        if not data:
            code = self.process.wait()
            raise CourseError(f"the rank server ended with exit code {code}; run again, it is started anew")
        self._messages += self._reader.feed(data)


def current() -> Server:
    """This process's server, started if there is none."""
    server = _of_process(os.getpid())
    if not server.is_alive():
        server.stop()
        _of_process.cache_clear()
        server = _of_process(os.getpid())
    return server


def take() -> Server:
    """This process's server, for one who keeps ranks: no launch uses it any more, the next one starts another."""
    server = current()
    _of_process.cache_clear()
    return server


@functools.cache
def _of_process(pid: int) -> Server:
    """One server for each process: a forked child must not talk to its parent's."""
    return Server()


def _environment() -> dict[str, str]:
    """The caller's, with what has to be known before torch is loaded."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # ranks share cores: a thread that waits gives its core away
    env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(paths.cache_dir() / "compiled"))  # torch makes one when imported
    env["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a look for GPUs must not start CUDA, which no fork survives
    return env
