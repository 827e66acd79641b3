"""How many cores and how much memory this process may use, which is often less than the machine has.

In: the scheduler's affinity mask, control groups (versions 1 and 2), Slurm's variables. Out: cores, bytes.
``ROOT`` stands for ``/``, so that tests can bring their own ``/proc`` and ``/sys``.

Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max, memory.max) and ``cgroup-v1``.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from dltutorial.errors import CourseError

_UNLIMITED = 1 << 60  # version 1 writes "no limit" as a number near 2**63
ROOT = Path("/")


def cores() -> int:
    """Cores this process may use: the least of affinity mask, CPU quota and Slurm's share, at least 1.

    Raises:
        CourseError: Slurm's variables hold no number.
    """
    env, limits = os.environ, [affinity_cores(), *_cpu_quotas()]
    limits += [slurm_cores(env, name) for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE") if env.get(name)]
    return max(1, int(min(limits)))  # rounded down: a thread too many is throttled for part of each period


def affinity_cores() -> int:
    """Cores in this process's affinity mask; where there are no masks (macOS), the cores of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def slurm_cores(env: Mapping[str, str], name: str) -> int:
    """A positive number of cores from one of Slurm's variables. CourseError: it is no positive number."""
    if not env[name].isdecimal() or not 1 <= int(env[name][:10]) < 10**9:
        raise CourseError(f"{name}={env[name]!r} is not a number of cores; unset it, or start through srun")
    return int(env[name])


def memory_bytes() -> tuple[int, int]:
    """Memory this process may use: (total, available), in bytes."""
    import psutil

    here = psutil.virtual_memory()
    total, available = here.total, here.available
    for limit, used in _memory_limits():
        total, available = min(total, limit), min(available, max(0, limit - used))
    return total, available


def refuse_too_many(what: str, n: int) -> None:
    """Refuse more processes beside this one than its cores can serve. CourseError: with how many they can."""
    most = max(8, 4 * cores())
    if n > most:
        raise CourseError(f"{what} {n:,}: the {cores()} cores of this process serve {most} at most; take fewer")


def _cpu_quotas() -> Iterator[float]:
    """Quotas of this process's control groups and all their parents, in cores."""
    for folder in _cgroups("cpu"):
        words = _read(folder / "cpu.max").split()
        words = words or [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
        if len(words) == 2 and all(word.isdecimal() and int(word) > 0 for word in words):
            yield int(words[0]) / int(words[1])


def _memory_limits() -> Iterator[tuple[int, int]]:
    """(limit, in use), in bytes, of this process's control groups and all their parents."""
    for folder in _cgroups("memory"):
        for limit_name, used_name, file_cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _read(folder / limit_name), _read(folder / used_name)
            if limit.isdecimal() and used.isdecimal() and int(limit) < _UNLIMITED:
                # Cached file pages count as used, yet the kernel gives them back when memory is short.
                statistics = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
                yield int(limit), max(0, int(used) - int(statistics.get(file_cache, 0)))


def _cgroups(controller: str) -> Iterator[Path]:
    """Folders of this process's control groups for one controller, each followed by its parents."""
    for line in _read(ROOT / "proc/self/cgroup").splitlines():
        _, controllers, inner = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = ROOT / "sys/fs/cgroup" / controllers
        folder = mount / inner.lstrip("/")
        # In a container the path may be the host's; its parents up to the mount are still looked at.
        yield from (place for place in (folder, *folder.parents) if place.is_relative_to(mount))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
