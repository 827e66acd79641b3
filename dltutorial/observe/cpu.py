"""How much processor work goes on: this process and the worker processes it started.

In: nothing. Out: CPU seconds wanted so far: computing, or ready to compute but waiting for a core that others hold.
Divided by the seconds on the clock, the difference of two readings is the number of cores that were wanted. Sleeping,
and waiting for a disk, a lock or a device, does not count.

Source: https://docs.kernel.org/scheduler/sched-stats.html, /proc/<pid>/task/<tid>/schedstat.
"""

import time
from pathlib import Path

import psutil


def wanted_s() -> float:
    """CPU seconds wanted so far by all threads of this process and of its living children."""
    own = _of_process(psutil.Process().pid)
    if own is None:
        return time.process_time() + sum(map(_computed_s, _children()))
    return own + sum(_of_process(child.pid) or 0.0 for child in _children())


def thread_wanted_s() -> float:
    """CPU seconds wanted so far by the thread that asks."""
    found = _of_thread(Path("/proc/thread-self/schedstat"))
    return time.thread_time() if found is None else found


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


def _of_process(pid: int) -> float | None:
    """None where the system keeps no such account, or the process has ended."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return None
    found = [seconds for task in tasks if (seconds := _of_thread(task / "schedstat")) is not None]
    return sum(found) if found else None


def _of_thread(file: Path) -> float | None:
    """Seconds on a core plus seconds waiting for one; None if there is no such thread or account."""
    try:
        computing_ns, waiting_ns, *_ = map(int, file.read_text().split())
    except (OSError, ValueError):
        return None
    return (computing_ns + waiting_ns) / 1e9
