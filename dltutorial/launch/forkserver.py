"""The fork server: a process that has torch imported, has never computed, and becomes a new rank on request.

In: a socket to the caller and the caller's pid. Out: ranks within hundredths of a second, and their exit codes. A
caller that has computed must not fork itself: the threads of its torch would be missing in the child, which waits for
them for ever. This process has one thread and no CUDA, so it may.

Who ends with whom: a rank's own children with the rank (its process group is killed), the ranks with the server
(``PR_SET_PDEATHSIG``), the server with its caller (the socket closes; its parent is asked for twice a second too).

Source: https://man7.org/linux/man-pages/man2/pr_set_pdeathsig.2const.html
"""

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable

from dltutorial.launch import wire

# torch._dynamo is imported by the first optimizer: seconds for each rank if it is not here.
_PACKAGES = ("numpy", "cloudpickle", "torch", "torch.distributed", "torch._dynamo", "dltutorial.launch.resident")
_POLL_MS = 500
_END_S = 5.0
_N_FDS = 4  # control, output, stacks; rank 0 gets the store's listening socket too
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
WHERE_SIGNAL = signal.SIGUSR2  # a rank answers it with its stack


def main(channel: socket.socket, owner_pid: int) -> None:
    """Preload, say so, serve until the caller is gone."""
    try:
        preload()
    except BaseException as error:
        wire.send(channel, wire.BROKEN, f"{type(error).__name__}: {error}".encode())
        return
    wire.send(channel, wire.READY)
    serve(channel, owner_pid)


def preload() -> None:
    """Import what every rank needs; nothing that computes, so that no thread is left that a fork would lose."""
    for name in _PACKAGES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, the pages that all ranks share


def serve(channel: socket.socket, owner_pid: int) -> None:
    """Start, signal and bury ranks until the caller closes the socket or dies."""
    if sys.platform == "linux":  # whatever a rank leaves behind becomes a child of this process, which buries it
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake_r, wake_w = os.pipe()
    for end in (wake_r, wake_w):
        os.set_blocking(end, False)
    signal.signal(WHERE_SIGNAL, signal.SIG_IGN)  # until a rank is able to answer
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(wake_r, select.POLLIN)
    alive: set[int] = set()
    with contextlib.suppress(OSError):  # the caller is gone
        while os.getppid() == owner_pid:
            ready = {fd for fd, _ in poll.poll(_POLL_MS)}
            if channel.fileno() in ready and not _obey(channel, alive, (wake_r, wake_w)):
                break
            with contextlib.suppress(BlockingIOError):
                os.read(wake_r, 4096)
            for pid, code in bury(alive):
                wire.send(channel, wire.ENDED, f"{pid} {code}".encode())
    _kill(alive)
    until_s = time.monotonic() + _END_S
    while alive and time.monotonic() < until_s:
        bury(alive)
        time.sleep(0.005)


def _obey(channel: socket.socket, alive: set[int], own_fds: Iterable[int]) -> bool:
    """Do what the caller's next byte asks for; False when the caller is gone."""
    order, fds, _, _ = socket.recv_fds(channel, 1, _N_FDS)
    if order == wire.START:
        pid = _fork(channel, fds, own_fds)
        alive.add(pid)
        wire.send(channel, wire.STARTED, str(pid).encode())
    elif order == wire.KILL:
        _kill(alive)
    elif order == wire.WHERE:
        for pid in alive:
            os.kill(pid, WHERE_SIGNAL)
    return bool(order)


def _fork(channel: socket.socket, fds: list[int], own_fds: Iterable[int]) -> int:
    server_pid, pid = os.getpid(), os.fork()
    if pid:
        for fd in fds:
            os.close(fd)
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()  # Ctrl-C in a terminal is for the caller, which ends the ranks
        die_with_parent(signal.SIGKILL)
        if os.getppid() == server_pid:
            channel.close()
            for fd in own_fds:
                os.close(fd)
            from dltutorial.launch import rank

            rank.main(*fds)
    finally:
        os._exit(1)


def die_with_parent(number: int) -> None:
    """Have the system send this process a signal when its parent ends (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def bury(alive: set[int]) -> list[tuple[int, int]]:
    """Collect the ranks that have ended, with what is left of their process groups: (pid, exit code) of each."""
    ended = []
    with contextlib.suppress(ChildProcessError):  # there are none at all
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            pid = found.si_pid
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # not yet collected, so the number is still this rank's
            _, status = os.waitpid(pid, 0)
            if pid in alive:
                alive.remove(pid)
                ended.append((pid, os.waitstatus_to_exitcode(status)))
    return ended


def _kill(alive: set[int]) -> None:
    """Kill all ranks; one that has not yet got its own process group is killed alone."""
    for pid in alive:
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    # The module is imported by its name, so that nothing of it lives in __main__, where learners' functions do.
    from dltutorial.launch import forkserver

    forkserver.main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
