"""A pocket cluster: a real Slurm on this machine, for its user alone, up in a second and gone without a trace.

In: a number of nodes. Out: munged, slurmctld and as many slurmd, on loopback, as the current user, in a folder of
their own under the course's cache. Whoever has ``SLURM_CONF`` set to the folder's ``slurm.conf`` works with it:

    cluster = up(nodes=2)
    subprocess.run(["srun", "-N", "2", "hostname"], env=os.environ | cluster.env)
    down()

Needs Debian's packages slurm-wlm and munge or their like; tried with Slurm 22.05. Sources:
https://slurm.schedmd.com/programmer_guide.html, "multiple slurmd", and https://slurm.schedmd.com/slurm.conf.html
"""

import atexit
import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.launch import pocket_daemons as daemons
from dltutorial.launch.pocket_daemons import PocketCluster, states

__all__ = ["INSTALL", "PocketCluster", "command", "down", "missing", "names", "own", "states", "status", "up"]

MAX_NODES = 64
INSTALL = "on Debian or Ubuntu: apt-get install --no-install-recommends slurm-wlm munge"
_PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "squeue", "scancel", "sbatch", "srun")


def missing() -> str | None:
    """The first of Slurm's and munge's programs that is not here, if any."""
    return next((name for name in _PROGRAMS if not daemons.which(name)), None)


def up(nodes: int = 2, name: str = "pocket") -> PocketCluster:
    """Start a cluster, or return the one of this name if it runs with as many nodes.

    Raises:
        CourseError: Slurm is not installed, it runs with another number of nodes, or it does not start.
    """
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= MAX_NODES:
        raise CourseError(f"nodes={nodes!r}: a pocket cluster has 1 to {MAX_NODES} nodes")
    if lacking := missing():
        raise CourseError(f"Slurm is not installed here (no {lacking}); {INSTALL}")
    with _locked():
        found = status(name)
        if found is None or not found.answers:
            _clear(_folder(name))  # what a killed cluster left
            with contextlib.suppress(CourseError):  # as when another program takes a port before Slurm does
                return _start(name, nodes)
            return _start(name, nodes)
    if len(found.nodes) != nodes:
        raise CourseError(
            f"the pocket cluster {name} is up with {len(found.nodes)} nodes, not {nodes}; "
            f"end it first: dltutorial pocket down --name {name}"
        )
    return found


def own(name: str, nodes: int = 2) -> PocketCluster | None:
    """A cluster of this process's own, which ends with it; None where Slurm is not installed or does not start."""
    if missing():
        return None
    for other in names():
        owner = re.fullmatch(rf"{re.escape(name)}-(\d+)", other)
        if owner and not psutil.pid_exists(int(owner[1])):  # of a notebook that was killed
            down(other)
    mine = f"{name}-{os.getpid()}"
    atexit.register(down, mine)
    try:
        return up(nodes, mine)
    except CourseError as error:
        print(f"no cluster: {error}", file=sys.stderr)
        return None


def down(name: str = "pocket") -> bool:
    """End a cluster with its jobs, at once, and remove its folder; whether there was anything to end."""
    with _locked():
        return _clear(_folder(name))


def status(name: str = "pocket") -> PocketCluster | None:
    """The cluster of this name, running or killed; None if there is none."""
    try:
        nodes = tuple(json.loads((_folder(name) / "cluster.json").read_text())["nodes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    cluster = PocketCluster(name, _folder(name).resolve(), nodes)
    return replace(cluster, answers=bool(daemons.processes(cluster.folder, "controller")))


def names() -> list[str]:
    """The clusters of this user on this machine, running or killed."""
    return sorted(file.parent.name for file in _home().glob("*/cluster.json"))


def command(action: str, nodes: int, name: str) -> int:
    """``dltutorial pocket up|down|status``; returns the exit status: of ``status``, 0 if the cluster is up.

    What a shell is to evaluate goes to standard output, what a person is to read to standard error, so that
    ``eval "$(dltutorial pocket up)"`` shows the one and runs the other.

    Raises:
        CourseError: as ``up``.
    """
    if action == "down":
        _say(f"the cluster {name} has ended" if down(name) else f"there was no cluster {name}")
        return 0
    begun_s = time.monotonic()
    cluster = up(nodes, name) if action == "up" else status(name)
    if cluster is None:
        others = ", ".join(names())
        _say(f"there is no cluster {name}; " + (f"there is: {others}" if others else "start it: dltutorial pocket up"))
        return 1
    if not cluster.answers:
        _say(f"the cluster {name} was killed; dltutorial pocket up starts it anew, pocket down removes what is left")
        return 1
    _say(" · ".join(f"{node} {state}" for node, state in states(cluster).items()))
    print(f"export SLURM_CONF={shlex.quote(cluster.env['SLURM_CONF'])}")
    if action == "up":
        _say(f"{nodes} nodes are up, after {time.monotonic() - begun_s:.2f} s")
        if sys.stdout.isatty():
            _say('paste the line above, or start with: eval "$(dltutorial pocket up)"; then try: srun -N 1 hostname')
        else:
            _say("next: source slurm/sites/pocket.sh; sbatch -N 2 slurm/train.sbatch; at last: dltutorial pocket down")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _start(name: str, nodes: int) -> PocketCluster:
    try:
        return daemons.start(_folder(name), name, nodes)
    except BaseException:  # an interrupt, too: nothing half started stays
        _clear(_folder(name))
        raise


def _clear(folder: Path) -> bool:
    """End every process of a cluster and remove its files; whether there was anything."""
    if not folder.is_symlink() and not folder.exists():
        return False
    daemons.kill(folder.resolve())
    shutil.rmtree(folder.resolve(), ignore_errors=True)
    if folder.is_symlink():
        folder.unlink()
    return True


def _home() -> Path:
    """The folder of this user's clusters on this machine; the same home may be on others."""
    return paths.cache_dir().absolute() / "pocket" / daemons.host()


def _folder(name: str) -> Path:
    return paths.inside(_home(), name)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One call at a time starts or ends clusters."""
    _home().mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(_home(), os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some shared file systems cannot lock a folder
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
