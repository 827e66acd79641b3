"""How much processor work goes on: this process and the worker processes it started.

In: nothing. Out: CPU seconds so far: computed, and *queued*, that is ready to compute but waiting for a core that
others hold; both together are *wanted*. Divided by the seconds on the clock, the difference of two readings is the
number of cores that were wanted. Sleeping, and waiting for a disk, a lock or a device, does not count.

Source: https://docs.kernel.org/scheduler/sched-stats.html, /proc/<pid>/task/<tid>/schedstat.
"""

import contextlib
import os
import time
from pathlib import Path

import psutil


def wanted_s() -> float:
    """CPU seconds wanted so far by this process and its children; of children that have ended, those computed."""
    ended, own = os.times(), of_threads(os.getpid())
    total_s = time.process_time() + (own[1] if own else 0.0) + ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            total_s += sum(of_threads(child.pid) or child.cpu_times()[:2])
    return total_s


def thread_wanted_s() -> float:
    """CPU seconds wanted so far by the thread that asks."""
    found = _read(Path("/proc/thread-self/schedstat"))
    return sum(found) if found else time.thread_time()


def of_threads(pid: int) -> tuple[float, float] | None:
    """Seconds that a process's living threads computed, and queued; None where that cannot be told."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return None
    found = [seconds for task in tasks if (seconds := _read(task / "schedstat"))]
    return (sum(computed for computed, _ in found), sum(queued for _, queued in found)) if found else None


def _read(file: Path) -> tuple[float, float] | None:
    try:
        computed_ns, queued_ns, *_ = map(int, file.read_text().split())
    except (OSError, ValueError):
        return None
    return computed_ns / 1e9, queued_ns / 1e9
