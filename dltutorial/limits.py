"""How many cores and how much memory this process may use. The cores are often fewer than the machine has.

In: the affinity mask and the quotas of the operating system, Slurm's variables. Out: cores, bytes.
"""

import os

from dltutorial.errors import CourseError


def cores() -> int:
    """Cores that this process may use: joblib's count, which respects masks and quotas, or Slurm's share if smaller."""
    import joblib

    counts = [joblib.cpu_count()]
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        if os.environ.get(name):
            counts.append(int(os.environ[name]))
    return max(1, min(counts))


def affinity_cores() -> int:
    """Cores in this process's affinity mask. Where there are no masks (macOS), the cores of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> tuple[int, int]:
    """Memory of this machine: (total, available), in bytes."""
    import psutil

    memory = psutil.virtual_memory()
    return memory.total, memory.available


def refuse_too_many(what: str, n: int) -> None:
    """Refuse more processes beside this one than its cores can serve.

    Raises:
        CourseError: There are more; the message says how many the cores can serve.
    """
    most = max(8, 4 * cores())
    if n > most:
        raise CourseError(f"{what} {n:,}: the {cores()} cores of this process serve {most} at most; take fewer")
