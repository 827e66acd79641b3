"""A pocket cluster: a real Slurm on this machine, for its user alone, up in a second and gone without a trace.

In: a number of nodes. Out: munged, slurmctld and as many slurmd, on loopback, as the current user, in a folder of
their own under the course's cache. Whoever has ``SLURM_CONF`` set to the folder's ``slurm.conf`` works with it:

    cluster = up(nodes=2)
    subprocess.run(["srun", "-N", "2", "hostname"], env=os.environ | cluster.env)
    down()

Needs Debian's packages slurm-wlm and munge or their like; tried with Slurm 22.05. Sources:
https://slurm.schedmd.com/programmer_guide.html, "multiple slurmd", and https://slurm.schedmd.com/slurm.conf.html
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.launch import pocket_daemons as daemons
from dltutorial.launch import pocket_processes as processes
from dltutorial.launch.pocket_daemons import Cluster, states

__all__ = ["INSTALL", "Cluster", "down", "lose_node", "mend_node", "missing", "names", "states", "status", "up"]

MAX_NODES = 64
_PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "squeue", "scancel", "sbatch", "srun")
INSTALL = "on Debian or Ubuntu: apt-get install --no-install-recommends slurm-wlm munge"


def missing() -> str | None:
    """The first of Slurm's and munge's programs that is not here, if any."""
    return next((name for name in _PROGRAMS if not daemons.which(name)), None)


def up(nodes: int = 2, name: str = "pocket") -> Cluster:
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
            _clear(_place(name))  # what a killed cluster left
            return _start(name, nodes)
    if len(found.nodes) != nodes:
        raise CourseError(
            f"the pocket cluster {name} is up with {len(found.nodes)} nodes, not {nodes}; "
            f"end it first: dltutorial pocket down --name {name}"
        )
    return found


def down(name: str = "pocket") -> bool:
    """End a cluster with its jobs, at once, and remove its folder; whether there was anything to end."""
    with _locked():
        return _clear(_place(name))


def status(name: str = "pocket") -> Cluster | None:
    """The cluster of this name, running or killed; None if there is none."""
    place = _place(name)
    try:
        nodes = tuple(json.loads((place / "cluster.json").read_text())["nodes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    cluster = Cluster(name, place.resolve(), nodes)
    return replace(cluster, answers=bool(processes.of(cluster.folder, "controller")))


def names() -> list[str]:
    """The clusters of this user on this machine, running or killed."""
    return sorted(file.parent.name for file in _home().glob("*/cluster.json"))


def lose_node(cluster: Cluster, node: str) -> None:
    """Let a node fail like one without power: all its processes stop in the middle, none says goodbye.

    Raises:
        CourseError: there is no such node.
    """
    processes.freeze(processes.of(cluster.folder, _known(cluster, node)))


def mend_node(cluster: Cluster, node: str) -> None:
    """Let a lost node come back as after a restart: what ran on it is gone, its daemon is new.

    Raises:
        CourseError: there is no such node, or its daemon does not start.
    """
    processes.kill(cluster.folder, _known(cluster, node))
    daemons.spawn(cluster, node, "slurmd", "-N", node)


def _start(name: str, nodes: int) -> Cluster:
    """Start it, once more if another program has taken a port between our look and Slurm's start."""
    for is_last in (False, True):
        try:
            cluster = daemons.prepare(_place(name), name, tuple(f"n{i}" for i in range(nodes)))
            daemons.spawn(cluster, "munge", "munged", *daemons.munge_options(cluster.folder))
            daemons.spawn(cluster, "controller", "slurmctld", "-i")
            for node in cluster.nodes:
                daemons.spawn(cluster, node, "slurmd", "-N", node)
            daemons.wait(cluster)
            return cluster
        except BaseException as error:  # an interrupt, too: nothing half started stays
            _clear(_place(name))
            if is_last or not isinstance(error, CourseError):
                raise
    raise AssertionError


def _clear(place: Path) -> bool:
    """End every process of a cluster and remove its files; whether there was anything."""
    if not place.is_symlink() and not place.exists():
        return False
    folder = place.resolve()
    processes.kill(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if place.is_symlink():
        place.unlink()
    return True


def _known(cluster: Cluster, node: str) -> str:
    if node not in cluster.nodes:
        raise CourseError(f"the pocket cluster has no node {node!r}; it has {', '.join(cluster.nodes)}")
    return node


def _home() -> Path:
    """The folder of this user's clusters on this machine; the same home may be on others."""
    return paths.cache_dir().absolute() / "pocket" / daemons.host()


def _place(name: str) -> Path:
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
