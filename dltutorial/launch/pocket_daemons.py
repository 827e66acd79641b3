"""What a pocket cluster is made of: its folder with key and configuration, and the daemons that run in it.

In: a folder, a name, the names of nodes. Out: munged, slurmctld and one slurmd for each node, as this user, on the
loopback. ``slurm/pocket/slurm.conf`` is the template, and says why each setting is as it is.
"""

import contextlib
import json
import os
import pwd
import secrets
import shlex
import shutil
import socket
import string
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dltutorial import machine, paths
from dltutorial.errors import CourseError
from dltutorial.launch import pocket_processes as processes

_SYSTEM = "/usr/sbin:/usr/local/sbin:/sbin"  # where daemons live; often not in an ordinary user's PATH
_START_S, _ANSWER_S = 60.0, 15.0  # on busy cores; else it takes one
_LONGEST_BYTES = 60  # of the folder: the name of a Unix socket in it must stay below 108
_FIRST_JOBS = range(1000, 19000)


@dataclass(frozen=True)
class Cluster:
    """A pocket cluster that is running, or what is left of one that was killed.

    Attributes:
        name: of the cluster; one user can have several.
        folder: holds all its files.
        nodes: names of its nodes.
        answers: its controller is alive.
    """

    name: str
    folder: Path
    nodes: tuple[str, ...]
    answers: bool = True

    @property
    def env(self) -> dict[str, str]:
        """The variable that leads Slurm's commands to this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    @property
    def export(self) -> str:
        """The same for a shell: ``eval "$(dltutorial pocket up)"``."""
        return f"export SLURM_CONF={shlex.quote(self.env['SLURM_CONF'])}"


def states(cluster: Cluster) -> dict[str, str]:
    """What Slurm says of each node: idle, mixed, allocated, down, …; a star means that the node is silent.

    Nothing if the controller does not answer.
    """
    try:
        done = subprocess.run(
            [which("sinfo") or "sinfo", "--noheader", "--Node", "--format=%N %T"],
            env=os.environ | cluster.env, capture_output=True, text=True, timeout=_ANSWER_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(line.split() for line in done.stdout.splitlines())


def prepare(place: Path, name: str, nodes: tuple[str, ...]) -> Cluster:
    """Make the folder: key, configuration, places for the daemons' state.

    Raises:
        CourseError: it cannot be written, or the user has no name.
    """
    if len(os.fsencode(place.resolve())) > _LONGEST_BYTES:  # then a link in its place leads to a short one
        place.symlink_to(tempfile.mkdtemp(prefix="pocket-"))
    else:
        place.mkdir(mode=0o700)
    cluster = Cluster(name, place.resolve(), nodes)
    for part in ("state", *nodes):
        (cluster.folder / part).mkdir(mode=0o700)
    (cluster.folder / "munge.key").touch(mode=0o600)
    (cluster.folder / "munge.key").write_bytes(secrets.token_bytes(128))
    paths.write_text(cluster.folder / "slurm.conf", _configuration(cluster))
    paths.write_text(cluster.folder / "cluster.json", json.dumps({"nodes": nodes}))
    return cluster


def _configuration(cluster: Cluster) -> str:
    template = (paths.course_folder("slurm") / "slurm" / "pocket" / "slurm.conf").read_text(encoding="utf-8")
    controller_port, *node_ports = _free_ports(1 + len(cluster.nodes))
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container that runs under a number
        raise CourseError(f"user {os.getuid()} has no name, which Slurm needs; give it one in /etc/passwd") from None
    return string.Template(template).substitute(
        name=f"pocket-{cluster.name}".lower(),
        host=host(),
        user=user,
        folder=cluster.folder,
        controller_port=controller_port,
        node_ports=",".join(map(str, node_ports)),
        nodes=",".join(cluster.nodes),
        cores=max(4, machine.cores()),
        memory_mb=(machine.memory_bytes()[0] or 2**30) // 2**20,
        first_job=secrets.choice(_FIRST_JOBS),
    )


def _free_ports(n: int) -> list[int]:
    with contextlib.ExitStack() as stack:  # all open at once, so that no two are the same
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [each.getsockname()[1] for each in found]


def munge_options(folder: Path) -> list[str]:
    """All its files in the cluster's folder; --force since nobody else may enter that, which munged finds odd."""
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    return ["--force", "--num-threads=1", *(f"--{option}={folder / 'munge'}.{end}" for option, end in files.items())]


def spawn(cluster: Cluster, role: str, program: str, *arguments: str) -> None:
    """Start a daemon; it goes to the background by itself.

    Raises:
        CourseError: it does not.
    """
    env = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    env |= {"PATH": f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM}", **cluster.env}
    env |= processes.marker(cluster.folder, role)
    said = cluster.folder / f"{role}.out"
    try:
        with open(said, "w") as out:
            subprocess.run(
                [which(program) or program, *arguments], env=env, cwd=cluster.folder, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, timeout=_START_S, check=True, start_new_session=True,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        why = _blamed(said.read_text(errors="replace")) or str(error)
        raise CourseError(f"{program} does not start: {why}; mend that, then dltutorial pocket up") from error


def wait(cluster: Cluster) -> None:
    """Until all nodes are idle.

    Raises:
        CourseError: they are not in time.
    """
    until_s = time.monotonic() + _START_S
    while (seen := states(cluster)).keys() != set(cluster.nodes) or set(seen.values()) != {"idle"}:
        if time.monotonic() > until_s:
            why = _blamed((cluster.folder / "slurmctld.log").read_text(errors="replace")) or "no answer"
            raise CourseError(f"the pocket cluster does not start: {why}; try again: dltutorial pocket up")
        time.sleep(0.05)


def _blamed(log: str) -> str:
    """The first line that a daemon itself calls an error, else its last."""
    lines = log.strip().splitlines()
    return next((line for line in lines if "fatal" in line or "error" in line), (lines or [""])[-1])


def host() -> str:
    """This machine's name as Slurm wants it."""
    return socket.gethostname().partition(".")[0]


def which(program: str) -> str | None:
    """Where a program is, the folders of daemons included."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM}")
