"""The processes of a pocket cluster: which they are, and how they end.

In: the cluster's folder, and a role (munge, controller, or a node's name). Out: the daemons that were started with the
mark of that folder, and the processes of its jobs with the step daemons above them. A shell or kernel that only *uses*
the cluster has no mark and was not started by a node, so it is left alone.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_MARK = "DLTUTORIAL_POCKET_DAEMON"
_END_S = 10.0
_STEP = re.compile(r"slurmstepd: \[(\d+)\.")
_GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def marker(folder: Path, role: str) -> dict[str, str]:
    """The variable that a daemon is started with."""
    return {_MARK: f"{folder}:{role}"}


def of(folder: Path, role: str | None = None) -> list[psutil.Process]:
    """The processes that run for one role, or all of the cluster; never this one or those it came from."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    jobs = set() if role else _jobs(folder)
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real != os.getuid():
                continue
            step = _STEP.match(" ".join(process.cmdline()))
            if step and step[1] in jobs:  # an ordinary user cannot see its environment
                found |= {process}
            elif not step and _belongs(process.environ(), folder, role):
                steps = [parent for parent in process.parents() if _STEP.match(" ".join(parent.cmdline()))]
                found |= {process, *process.children(recursive=True), *steps}
    return [process for process in found if process.pid not in own and _is_there(process)]


def freeze(processes: Iterable[psutil.Process]) -> None:
    """Stop processes where they are; they keep their connections and answer nothing."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.suspend()


def kill(folder: Path, role: str | None = None) -> None:
    """Kill them, and what they start meanwhile, until none is left."""
    until_s = time.monotonic() + _END_S
    while (left := of(folder, role)) and time.monotonic() < until_s:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)


def _jobs(folder: Path) -> set[str]:
    """Numbers of the jobs that have steps: each has a socket ``<node>/<node>_<job>.<step>``."""
    return {path.name.rpartition("_")[2].partition(".")[0] for path in folder.glob("*/*_*.*")}


def _belongs(env: dict[str, str], folder: Path, role: str | None) -> bool:
    mark, node = env.get(_MARK, ""), env.get("SLURMD_NODENAME")
    is_job = node is not None and env.get("SLURM_CONF") == str(folder / "slurm.conf")
    if role is None:
        return is_job or mark.startswith(f"{folder}:")
    return (is_job and node == role) or mark == f"{folder}:{role}"


def _is_there(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() not in _GONE
    return False
