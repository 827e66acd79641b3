"""The server behind the preloaded kernel: it imports the heavy packages once and forks a kernel for each request.

In: a private folder, in which it makes ``socket`` and a kernelspec, and the pid of its owner. Out: kernels that start
in a few hundredths of a second instead of seconds. One thread, no CUDA, so that a fork is safe. Linux only (pidfd).

Who dies with whom: a kernel with its client (a closed socket: the whole process group is killed), all kernels with
the server (``PR_SET_PDEATHSIG``), the server with its owner (its parent is asked for twice a second).

A request: four bytes of length with three file descriptors (0, 1, 2), then JSON with ``cwd``, ``env`` and ``argv`` of
the kernel. Then each byte from the client is a signal number; the only answer is the exit code, as text.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from dltutorial.launch.forkserver import die_with_parent

KERNEL_NAME = "dltutorial-preloaded"
# torch._dynamo is imported by the first optimizer.
_PACKAGES = ("numpy", "torch", "torch._dynamo", "matplotlib.pyplot", "ipykernel.kernelapp", "ipykernel.zmqshell")
_POLL_MS = 500
_INLINE = "module://matplotlib_inline.backend_inline"


class _Stop(BaseException):
    """SIGTERM came: the owner is done."""


@dataclass(frozen=True)
class Request:
    """What a kernel is to be started with."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    stdio: list[int]


@dataclass(frozen=True)
class Kernel:
    """A running kernel and the client that stands for it."""

    pid: int
    pidfd: int
    client: socket.socket

    def signal(self, number: int) -> None:
        """Send a signal to the kernel's process group, as Jupyter does; to the kernel alone before it has one."""
        with contextlib.suppress(ProcessLookupError):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                os.kill(self.pid, number)


def main(folder: Path, owner_pid: int) -> None:
    """Preload, say "ready", serve; a forked kernel comes back from ``serve`` and becomes one."""
    if sys.path and sys.path[0] in ("", str(Path.cwd())):  # put there by -m; a plain kernel does not have it
        del sys.path[0]
    preload()
    write_spec(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(16)
        print("ready", flush=True)
        request = serve(listener, owner_pid)
    if request is not None:
        become_kernel(request)


def preload() -> None:
    """Import what every chapter needs, and make sure that no thread is left that a fork would lose.

    Not preloaded: ipywidgets, which registers with the kernel when imported, and anything that starts CUDA.
    """
    os.environ["MPLBACKEND"] = _INLINE  # matplotlib reads it once; become_kernel() sets it again
    for name in _PACKAGES:
        importlib.import_module(name)
    import torch

    if torch.cuda.is_initialized():
        sys.exit("CUDA was initialised while preloading; use the plain kernel")
    if (pid := os.fork()) == 0:  # OpenBLAS ends its threads at the first fork
        os._exit(0)
    os.waitpid(pid, 0)
    if threading.active_count() != 1 or os_threads() != 1:
        sys.exit(f"{os_threads()} threads run after preloading, so a fork is not safe; use the plain kernel")
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, the shared pages


def os_threads() -> int:
    """Threads of this process, those of C libraries included."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Threads:")[2].split()[0])


def write_spec(folder: Path) -> None:
    """A kernelspec as ipykernel's own, except that a small client is started."""
    from ipykernel.kernelspec import get_kernel_dict

    spec = folder / "kernels" / KERNEL_NAME
    spec.mkdir(parents=True)
    command = [sys.executable, "-m", "dltutorial.course.kernel", str(folder / "socket"), "-f", "{connection_file}"]
    command.append("--HistoryManager.hist_file=:memory:")  # as nbclient asks of a plain kernel
    text = json.dumps({**get_kernel_dict(), "argv": command, "display_name": "Python 3 (preloaded)"})
    (spec / "kernel.json").write_text(text)


def serve(listener: socket.socket, owner_pid: int) -> Request | None:
    """Start, watch and end kernels until the owner is gone; returns a request only in a freshly forked kernel."""
    signal.signal(signal.SIGTERM, _stop)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    kernels: dict[int, Kernel] = {}  # by pidfd and by the client's descriptor
    with contextlib.suppress(_Stop):
        request = _loop(listener, poll, kernels, owner_pid)
        if request is not None:
            return request
    for kernel in {id(kernel): kernel for kernel in kernels.values()}.values():
        _end(kernel)
    return None


def _loop(listener: socket.socket, poll: select.poll, kernels: dict[int, Kernel], owner_pid: int) -> Request | None:
    while os.getppid() == owner_pid:
        for fd, _ in poll.poll(_POLL_MS):
            if fd == listener.fileno():
                request, kernel = _accept(listener, kernels)
                if request is not None:
                    return request
                for own in () if kernel is None else (kernel.pidfd, kernel.client.fileno()):
                    kernels[own] = kernel
                    poll.register(own, select.POLLIN)
            elif (kernel := kernels.get(fd)) is None:
                continue  # it ended earlier in this round
            elif fd == kernel.pidfd or not _obey(kernel):
                for own in (kernel.pidfd, kernel.client.fileno()):
                    poll.unregister(own)
                    del kernels[own]
                _end(kernel)
    return None


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stop


def _accept(listener: socket.socket, kernels: dict[int, Kernel]) -> tuple[Request | None, Kernel | None]:
    """Fork a kernel: ``(request, None)`` in the child, ``(None, kernel)`` in the server, two Nones for a bad client."""
    client, _ = listener.accept()
    try:
        client.settimeout(10)
        head, stdio, _, _ = socket.recv_fds(client, 4, 3)
        with client.makefile("rb") as stream:
            asked = json.loads(stream.read(int.from_bytes(head, "big")))
        request = Request(asked["argv"], asked["cwd"], asked["env"], stdio)
    except (OSError, ValueError, KeyError):
        client.close()
        return None, None
    server_pid, pid = os.getpid(), os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        die_with_parent(signal.SIGKILL)
        if os.getppid() != server_pid:
            os._exit(1)
        os.close(client.detach())
        for fd, kernel in kernels.items():
            os.close(fd)
            kernel.client.detach()
        return request, None
    for fd in stdio:
        os.close(fd)
    return None, Kernel(pid, os.pidfd_open(pid), client)


def _obey(kernel: Kernel) -> bool:
    """Pass the client's signals on; False when the client is gone."""
    try:
        numbers = kernel.client.recv(64)
    except OSError:
        return False
    for number in numbers:
        kernel.signal(number)
    return bool(numbers)


def _end(kernel: Kernel) -> None:
    """Kill what is left of a kernel's process group, and hand the kernel's exit code to its client."""
    kernel.signal(signal.SIGKILL)
    _, status = os.waitpid(kernel.pid, 0)
    with contextlib.suppress(OSError):
        kernel.client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    kernel.client.close()
    os.close(kernel.pidfd)


def become_kernel(request: Request) -> None:
    """Turn this freshly forked process into what ``python -m ipykernel_launcher`` would have been."""
    for number, fd in enumerate(request.stdio):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request.cwd)
    threads_before = os.environ.get("OMP_NUM_THREADS")
    os.environ.clear()
    os.environ.update(request.env)
    if pid_file := os.environ.get("DLTUTORIAL_KERNEL_PID_FILE"):  # for those who measure: it is not their child
        Path(pid_file).write_text(str(os.getpid()))
    import ipykernel_launcher
    import matplotlib
    import numpy as np
    from ipykernel.kernelapp import IPKernelApp

    sys.argv = [ipykernel_launcher.__file__, *request.argv]
    np.random.seed()  # noqa: NPY002 -- the old global generator would be the same in every kernel
    matplotlib.rcParams["backend"] = os.environ.get("MPLBACKEND") or _INLINE
    if (threads := os.environ.get("OMP_NUM_THREADS")) and threads != threads_before:
        import torch

        torch.set_num_threads(int(threads))  # its library read the variable when the server loaded it
    IPKernelApp.launch_instance([*request.argv, f"--IPKernelApp.parent_handle={os.getppid()}"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
