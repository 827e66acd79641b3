"""How much processor work goes on: this process and the worker processes it started.

In: nothing. Out: CPU seconds wanted so far: computing, or ready to compute but waiting for a core that others hold.
Divided by the seconds on the clock, the difference of two readings is the number of cores that were wanted. Sleeping,
and waiting for a disk, a lock or a device, does not count.

Source: https://docs.kernel.org/scheduler/sched-stats.html, /proc/<pid>/task/<tid>/schedstat.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

import psutil


class _Account(NamedTuple):
    """Seconds on a core, and seconds ready but without one."""

    computed_s: float
    queued_s: float


def wanted_s() -> float:
    """CPU seconds wanted so far by this process and its children; of children that have ended, those computed."""
    ended = os.times()
    own_queued_s = sum(account.queued_s for account in _threads(os.getpid()))
    living_s = sum(sum(sum(account) for account in _threads(child.pid)) or _computed_s(child) for child in _children())
    return time.process_time() + own_queued_s + living_s + ended.children_user + ended.children_system


def thread_wanted_s() -> float:
    """CPU seconds wanted so far by the thread that asks."""
    account = _read(Path("/proc/thread-self/schedstat"))
    return time.thread_time() if account is None else sum(account)


def _children() -> list[psutil.Process]:
    try:
        return psutil.Process().children(recursive=True)
    except psutil.Error:
        return []


def _computed_s(process: psutil.Process) -> float:
    try:
        used = process.cpu_times()
    except psutil.Error:  # it has just ended
        return 0.0
    return used.user + used.system


def _threads(pid: int) -> list[_Account]:
    """Of the living threads of a process; none where the system keeps no such account, or the process has ended."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    return [account for task in tasks if (account := _read(task / "schedstat")) is not None]


def _read(file: Path) -> _Account | None:
    """None if there is no such thread or account."""
    try:
        computed_ns, queued_ns, *_ = map(int, file.read_text().split())
    except (OSError, ValueError):
        return None
    return _Account(computed_ns / 1e9, queued_ns / 1e9)
