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
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import filelock
import psutil

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.launch import pocket_daemons as daemons
from dltutorial.launch.pocket_daemons import PocketCluster, states

__all__ = ["INSTALL", "PocketCluster", "command", "down", "missing", "names", "own", "states", "status", "up"]

MAX_NODES = 64
INSTALL = "on Debian or Ubuntu: apt-get install --no-install-recommends slurm-wlm munge"
_HALF_MADE = re.compile(r"state/|n\d+/")  # what it has before its key
_FILES = re.compile(  # all that a cluster ever writes, folders with a slash: in Slurm's own, the names that Slurm gives
    r"slurm\.conf/?|\.slurm\.conf\.\w+\.partial|(.+/)?(core(\.\d+)?|\.nfs\w+)"
    r"|(munge|controller|slurmctld|n\d+)\.(key|log|out|pid|seed|socket(\.lock)?)|n\d+/(job\d+/(slurm_script)?)?"
    r"|state/(hash\.\d+/(job\.\d+/(script|environment)?)?)?|(state|n\d+)/(clustername|heartbeat|dbd"
    r"|\w+_(state|usage|tres|lite|ran|base|whole|\d+))(\.(\d+|old|new|xml|messages))*"
)
_OWN = re.compile(r".*-of-(\d+)")  # of a process, and ends with it
_PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "squeue", "scancel", "sbatch", "srun")


def missing() -> str | None:
    """The first of Slurm's and munge's programs that is not here, if any."""
    return next((name for name in _PROGRAMS if not daemons.which(name)), None)


def up(nodes: int = 2, name: str = "pocket") -> PocketCluster:
    """Start a cluster, or return the one of this name, mended. CourseError: no Slurm, other nodes, does not start."""
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= MAX_NODES:
        raise CourseError(f"nodes={nodes!r}: a pocket cluster has 1 to {MAX_NODES} nodes")
    if lacking := missing():
        raise CourseError(f"Slurm is not installed here (no {lacking}); {INSTALL}")
    with _locked():
        found = status(name)
        if found is None or (found.faults and (len(found.nodes) != nodes or not daemons.processes(found.folder))):
            _clear(_folder(name))  # what a killed cluster left
            return _start(name, nodes)
        if found.faults:
            return daemons.mend(replace(found, faults=()))
    if len(found.nodes) != nodes:
        is_up = f"the pocket cluster {name} is up with {len(found.nodes)} nodes, not {nodes}"
        raise CourseError(f"{is_up}; end it first: dltutorial pocket down --name {name}")
    return found


def own(name: str, nodes: int = 2) -> PocketCluster | None:
    """A cluster of this process's own, which ends with it; None where Slurm is not installed or does not start."""
    if missing():
        return None
    end_left()
    mine = f"{name}-of-{os.getpid()}"  # no name that somebody gives to a cluster by chance
    try:
        atexit.register(down, (cluster := up(nodes, mine)).name)
        return cluster
    except CourseError as error:
        print(f"no cluster: {error}", file=sys.stderr)
        return None


def end_left() -> None:
    """End the clusters of ``own`` whose process was killed."""
    for name in names():
        if (owner := _OWN.fullmatch(name)) and not psutil.pid_exists(int(owner[1])):
            with contextlib.suppress(CourseError, OSError, psutil.Error):  # somebody keeps a file there
                daemons.refuse_elsewhere(_folder(name), is_seen=True)  # where that number is another's
                down(name)


def down(name: str = "pocket") -> bool:
    """Cancel a cluster's jobs, end it within seconds, remove its folder; whether there was anything to end."""
    with _locked():
        return _clear(_folder(name))


def status(name: str = "pocket") -> PocketCluster | None:
    """The cluster of this name, whole or not; None if there is none. CourseError: it is another container's."""
    daemons.refuse_elsewhere(_folder(name))
    conf = Path(os.path.realpath(_folder(name))) / "slurm.conf"  # resolve() raises an error if a link goes round
    with contextlib.suppress(OSError):
        text = conf.read_text(errors="replace") if conf.is_file() else ""
        if found := re.search(r"^NodeName=(n\d+(?:,n\d+)*) ", text, re.MULTILINE):
            cluster = PocketCluster(name, conf.parent, tuple(found[1].split(",")))
            return replace(cluster, faults=tuple(" ".join(fault) for fault in daemons.faults(cluster).items()))
    damaged = PocketCluster(name, conf.parent, (), ("its slurm.conf cannot be read, or names no nodes",))
    return damaged if os.path.lexists(conf) else None


def names() -> list[str]:
    """The clusters of this user on this machine, running or killed."""
    return sorted(file.parent.name for file in _home().glob("*/slurm.conf"))


def command(action: str, nodes: int, name: str) -> int:
    """``dltutorial pocket up|down|status``; returns the exit status: of ``status``, 0 if the cluster is whole.

    What a shell is to evaluate goes to standard output, what a person is to read to standard error: so it is with
    ``eval "$(dltutorial pocket up)"``. CourseError: as ``up``, or such a name is not for people.
    """
    if action == "down":
        _say(f"the cluster {name} has ended" if down(name) else f"there was no cluster {name}")
        return 0
    if action == "up" and _OWN.fullmatch(name):
        raise CourseError(f"{name} is a name of clusters that end with a process; choose another --name")
    begun_s = time.monotonic()
    cluster = up(nodes, name) if action == "up" else status(name)
    if cluster is None:
        start = f"start it: dltutorial pocket up --name {name}"
        _say(f"there is no cluster {name}; " + (f"there is: {', '.join(others)}" if (others := names()) else start))
        return 1
    if cluster.faults:
        again = f"dltutorial pocket up --nodes {len(cluster.nodes) or nodes} --name {name}"
        _say(f"the cluster {name} is not whole: {', '.join(cluster.faults)}; mend it: {again}")
        return 1
    _say(" · ".join(f"{node} {state}" for node, state in states(cluster).items()))
    print(f"export SLURM_CONF={shlex.quote(cluster.env['SLURM_CONF'])}")
    if action == "up":
        _say(f"{nodes} node{'s' * (nodes > 1)} up, after {time.monotonic() - begun_s:.2f} s")
        first = f"source slurm/sites/pocket.sh; sbatch -N {nodes} slurm/train.sbatch"
        by_hand = 'paste the line above, or start with: eval "$(dltutorial pocket up)"; then try: srun -N 1 hostname'
        _say(by_hand if sys.stdout.isatty() else f"next: {first}; at last: dltutorial pocket down")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _start(name: str, nodes: int, tries: int = 5) -> PocketCluster:
    try:
        return daemons.start(_folder(name), name, nodes)
    except BaseException as error:  # an interrupt, too: nothing half started stays
        _clear(_folder(name))
        if "in use" in str(error) and tries > 1:
            return _start(name, nodes, tries - 1)
        raise


def _clear(folder: Path) -> bool:
    """End every process of a cluster, remove its files; whether there was anything. CourseError: it is no cluster."""
    place = Path(os.path.realpath(folder))
    if not os.path.lexists(folder) and not daemons.processes(place):
        return False
    daemons.refuse_elsewhere(folder)
    daemons.kill(place)
    daemons.end_own_step(place)
    every = place.rglob("*") if place.is_dir() else [place] * place.exists()
    files = [f"{f.relative_to(place)}{'/' * (f.is_dir() and not f.is_symlink())}" for f in every]
    if "munge.key" not in files and not all(_HALF_MADE.fullmatch(file) for file in files):
        raise CourseError(f"{folder} is no pocket cluster's and stays as it is; choose another --name")
    if other := next((file.strip("/") for file in sorted(files) if not _FILES.fullmatch(file)), None):
        raise CourseError(f"{folder} stays: {other!r} in it is no pocket cluster's; move that away, then try again")
    if folder.is_dir() and (place == folder.parent.resolve() / folder.name or place.name.startswith(daemons.SHORT)):
        shutil.rmtree(place, ignore_errors=True)
    folder.unlink(missing_ok=True)  # a link, or what else has taken its place
    return True


def _home() -> Path:
    """The folder of this user's clusters on this machine; the same home may be on others."""
    return paths.cache_dir().absolute() / "pocket" / daemons.host()


def _folder(name: str) -> Path:
    return paths.inside(_home(), name)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One call at a time starts or ends clusters; where their folder cannot be written, it is told."""
    try:
        _home().mkdir(parents=True, exist_ok=True, mode=0o700)
        with filelock.FileLock(_home() / ".lock"):
            yield
    except OSError as error:
        told = f"{_home()} cannot hold a pocket cluster ({error.strerror}); make room there, or set XDG_CACHE_HOME"
        raise CourseError(told) from error
