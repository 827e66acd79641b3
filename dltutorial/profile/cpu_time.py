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
    total_s += sum(queued_s for _, queued_s in _threads(os.getpid()))
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the child has just ended
            computed_s = sum(child.cpu_times()[:2])
            total_s += computed_s + sum(queued_s for _, queued_s in _threads(child.pid))
    return total_s


def thread_wanted_s() -> float:
    """CPU seconds that the calling thread has wanted."""
    seconds = _read(Path("/proc/thread-self/schedstat"))
    if seconds is None:
        return time.thread_time()
    return sum(seconds)


def _threads(pid: int) -> list[tuple[float, float]]:
    """Seconds computed and queued of each living thread of a process. The list is empty where Linux is missing."""
    readings = [_read(file) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return [reading for reading in readings if reading is not None]


def _read(file: Path) -> tuple[float, float] | None:
    """Seconds computed and queued from a file of the Linux scheduler; None if there is no such file."""
    try:
        computed_ns, queued_ns, *_ = map(int, file.read_text().split())
    except (OSError, ValueError):
        return None
    return computed_ns / 1e9, queued_ns / 1e9
