"""The preloaded kernel, as seen from outside: start its server, and the small client that stands for a kernel.

In: an environment for the server. Out: environment variables under which ``kernel_name=preload.KERNEL_NAME`` is an
ordinary Jupyter kernel that has torch already imported. What the server does is in ``preload``. Linux only.
"""

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from dltutorial.errors import CourseError

_LONGEST_SOCKET_PATH = 90  # bytes; the system's limit is 107


def available() -> bool:
    """Whether this system can preload: Linux, with pidfd."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


@contextlib.contextmanager
def preloaded(env: Mapping[str, str] = os.environ, start_s: float = 120.0) -> Iterator[dict[str, str]]:
    """A running server for the length of the block.

    Args:
        env: environment of the server. Thread counts (``OMP_NUM_THREADS``) are read here, not by the kernels.
        start_s: how long it may take to preload.

    Yields:
        The variables that make Jupyter find the kernel ``preload.KERNEL_NAME``.

    Raises:
        CourseError: the server did not start; the plain kernel works all the same.
    """
    if not available():
        raise CourseError("the preloaded kernel needs Linux; use --kernel plain")
    folder = Path(tempfile.mkdtemp(prefix="dlt-"))
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="dlt-", dir="/tmp"))
    try:
        with _server(folder, dict(env), start_s):
            paths = [str(folder), *filter(None, [env.get("JUPYTER_PATH")])]
            yield {"JUPYTER_PATH": os.pathsep.join(paths)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _server(folder: Path, env: dict[str, str], start_s: float) -> Iterator[None]:
    command = [sys.executable, "-m", "dltutorial.course.preload", str(folder), str(os.getpid())]
    with open(folder / "log", "wb+") as log:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        try:
            _wait_until_ready(process, folder / "log", start_s)
            yield
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def _wait_until_ready(process: subprocess.Popen, log: Path, start_s: float) -> None:
    until_s = time.monotonic() + start_s
    while time.monotonic() < until_s:
        readable, _, _ = select.select([process.stdout], [], [], 0.5)
        if readable:
            if process.stdout.readline() == b"ready\n":
                return
            break
    why = (log.read_text(errors="replace").strip().split("\n") or [""])[-1] or f"not ready after {start_s:g} s"
    raise CourseError(f"the preloaded kernel did not start: {why}; use --kernel plain")


def client(socket_path: str, *argv: str) -> int:
    """Ask for a kernel and stand for it: signals go there, its exit code comes back.

    Returns:
        The kernel's exit code, negative for the signal that ended it; 1 when the server is gone.
    """
    request = {"argv": list(argv), "cwd": str(Path.cwd()), "env": dict(os.environ)}
    payload = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(socket_path)
        socket.send_fds(server, [len(payload).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(payload)

        def forward(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(OSError):
                server.send(bytes([number]))

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, forward)
        return _wait(server, os.getppid())


def _wait(server: socket.socket, parent_pid: int) -> int:
    """The kernel's exit code; 1 when the server or our own parent is gone (leaving ends the kernel)."""
    server.settimeout(0.5)
    while os.getppid() == parent_pid:
        try:
            return int(server.recv(16) or b"1")
        except TimeoutError:
            continue
        except OSError:
            break
    return 1


def _leave(code: int) -> None:
    """End with the exit code, or by the signal, that ended the kernel."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _leave(client(*sys.argv[1:]))
