"""How much CPU time this process and its worker processes want.

Input: nothing.
Output: CPU seconds since the start of the process. They are the time that the process computed plus the time that it
was *queued*, that is, ready to compute while other processes held the cores. The difference of two readings, divided
by the elapsed time, is the number of cores that were wanted. Sleeping does not count, nor does waiting for a disk, a
lock or a device.

Source: https://docs.kernel.org/scheduler/sched-stats.html, /proc/<pid>/task/<tid>/schedstat.
"""

import contextlib
import os
import time
from pathlib import Path

import psutil


def wanted_s() -> float:
    """CPU seconds that this process and its children have wanted. Children that ended count without queued time."""
    ended_children = os.times()
    total_s = time.process_time() + ended_children.children_user + ended_children.children_system
    total_s += _queued_s(os.getpid())
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the child has just ended
            total_s += sum(child.cpu_times()[:2]) + _queued_s(child.pid)
    return total_s


def thread_wanted_s() -> float:
    """CPU seconds that the calling thread has wanted."""
    return time.thread_time() + _thread_queued_s(Path("/proc/thread-self"))


def _queued_s(pid: int) -> float:
    """Seconds that the living threads of a process were queued."""
    return sum(_thread_queued_s(folder) for folder in Path(f"/proc/{pid}/task").glob("*"))


def _thread_queued_s(folder: Path) -> float:
    """Seconds that a thread was queued, from a file of the Linux scheduler; 0 if there is no such file."""
    try:
        _, queued_ns, _ = (folder / "schedstat").read_text().split()
    except OSError:
        return 0.0
    return int(queued_ns) / 1e9
