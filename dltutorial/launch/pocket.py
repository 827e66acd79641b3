"""A pocket cluster: a real Slurm on this machine, for its user alone. It starts in a second.

Input: the number of nodes, and a name.
Output: the daemons munged, slurmctld, and one slurmd for each node. They run as the current user and listen on the
loopback only. All their files are in a new temporary folder, ``pocket-<user>-<name>-<random>``. A program uses the
cluster if the variable ``SLURM_CONF`` names the file ``slurm.conf`` in this folder:

    cluster = up(nodes=2)
    subprocess.run(["srun", "-N", "2", "hostname"], env=os.environ | cluster.env)
    down()

If a cluster does not work, end it and start a new one. ``slurm/pocket/slurm.conf`` is the template of the
configuration, and explains each setting.

The cluster needs the Debian packages slurm-wlm and munge, or similar ones. It was tested with Slurm 22.05.
Sources: https://slurm.schedmd.com/programmer_guide.html, "multiple slurmd", and
https://slurm.schedmd.com/slurm.conf.html
"""

import atexit
import contextlib
import os
import pwd
import secrets
import shutil
import socket
import string
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from dltutorial import machine, paths
from dltutorial.errors import CourseError

INSTALL = "on Debian or Ubuntu: apt-get install --no-install-recommends slurm-wlm munge"
SYSTEM = "/usr/sbin:/usr/local/sbin:/sbin"  # folders of daemons, which are often not in the PATH of a user
START_S = 60.0  # on busy cores; otherwise the cluster starts in a second
ANSWER_S = 15.0
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
_WORKING_STATES = {"idle", "mixed", "allocated", "completing", "planned"}
_ROOT = Path("/tmp")  # the path of a Unix socket has at most 107 bytes
_PREFIX = f"pocket-{os.getuid()}-"
_DAEMON_VARIABLE = "DLTUTORIAL_POCKET_DAEMON"  # the daemons have it in their environment


@dataclass(frozen=True)
class PocketCluster:
    """A pocket cluster.

    Attributes:
        name: The name of the cluster.
        folder: The folder with all its files.
        nodes: The names of its nodes.
    """

    name: str
    folder: Path
    nodes: tuple[str, ...]

    @property
    def env(self) -> dict[str, str]:
        """The variable that leads Slurm's commands to this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}


def missing() -> str | None:
    """Return the first program of Slurm or munge that is not installed, or None."""
    for program in _PROGRAMS:
        if shutil.which(program, path=_search_path()) is None:
            return program
    return None


def up(nodes: int = 2, name: str = "pocket") -> PocketCluster:
    """Start a cluster. If a cluster of this name runs already, return it.

    Raises:
        CourseError: Slurm is not installed, the cluster does not start, or the cluster of this name has another number
            of nodes or does not work.
    """
    program = missing()
    if program is not None:
        raise CourseError(f"Slurm is not installed here (no {program}); {INSTALL}")
    existing = status(name)
    if existing is None:
        return _start(name, tuple(f"n{number}" for number in range(nodes)))
    if len(existing.nodes) != nodes or not is_working(existing):
        raise CourseError(
            f"there is a pocket cluster already, which has {len(existing.nodes)} nodes or does not work; end it first: "
            "dltutorial pocket down"
        )
    return existing


def down(name: str = "pocket") -> bool:
    """Kill the daemons and the jobs of a cluster, and remove its folder.

    Returns:
        Whether there was such a cluster.
    """
    cluster = status(name)
    if cluster is None:
        return False
    remaining = processes(cluster.folder)
    while remaining:  # a job may start processes until its last process has ended
        for process in remaining:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.05)
        remaining = processes(cluster.folder)
    shutil.rmtree(cluster.folder, ignore_errors=True)
    return True


def own(name: str, nodes: int = 2) -> PocketCluster | None:
    """Start a cluster that ends with this process.

    Returns:
        The cluster, or None if Slurm is not installed or does not start.
    """
    if missing():
        return None
    end_left()
    try:
        cluster = up(nodes, f"{name}-of-{os.getpid()}")
    except CourseError as error:
        print(f"no cluster: {error}", file=sys.stderr)
        return None
    atexit.register(down, cluster.name)
    return cluster


def end_left() -> None:
    """End the clusters of ``own`` whose process was killed, for example because its kernel was restarted."""
    for folder in _ROOT.glob(f"{_PREFIX}*-of-*"):
        name = folder.name.removeprefix(_PREFIX).rpartition("-")[0]
        if not psutil.pid_exists(int(name.rpartition("-")[2])):
            down(name)


def status(name: str = "pocket") -> PocketCluster | None:
    """Return the cluster of this name, whether it works or not, or None if there is no such cluster."""
    for folder in _ROOT.glob(f"{_PREFIX}{name}-????????"):
        nodes = sorted(path.name for path in folder.glob("n*") if path.is_dir())
        return PocketCluster(name, folder, tuple(nodes))
    return None


def states(cluster: PocketCluster) -> dict[str, str]:
    """Return Slurm's word for the state of each node, such as idle. It is empty if the controller does not answer."""
    command = ["sinfo", "--noheader", "--Node", "--format=%N %T"]
    env = os.environ | cluster.env | {"PATH": _search_path()}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except subprocess.SubprocessError:
        return {}
    return dict(line.split() for line in done.stdout.splitlines())


def is_working(cluster: PocketCluster) -> bool:
    """Return whether all nodes of the cluster can run jobs."""
    state_of_node = states(cluster)
    return all(state_of_node.get(node, "unknown").rstrip("+") in _WORKING_STATES for node in cluster.nodes)


def processes(folder: Path) -> list[psutil.Process]:
    """Return the daemons and the jobs of the cluster in a folder. A shell that only uses the cluster is neither."""
    configuration = f"SLURM_CONF={folder}/slurm.conf\0".encode()
    members = []
    for process in psutil.process_iter():
        try:
            # psutil would stop at the title that a daemon of a job step has written over the first variables.
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:  # the process has ended, or belongs to another user
            continue
        is_daemon = f"{_DAEMON_VARIABLE}=".encode() in environment
        is_of_job = b"SLURMD_NODENAME=" in environment
        if configuration in environment and (is_daemon or is_of_job):
            members.append(process)
    return members


def command(action: str, nodes: int) -> int:
    """Run ``dltutorial pocket up|down|status``.

    A line for the shell goes to standard output, as in ``eval "$(dltutorial pocket up)"``. Text for a person goes to
    standard error.

    Returns:
        The exit status. It is 1 if ``status`` finds no cluster, or one that does not work.
    """
    if action == "down":
        _report("the cluster has ended" if down() else "there was no cluster")
        return 0
    cluster = up(nodes) if action == "up" else status()
    if cluster is None or not is_working(cluster):
        _report("no cluster works; end what there is: dltutorial pocket down; then start it again")
        return 1
    _report(" · ".join(f"{node} {state}" for node, state in states(cluster).items()))
    print(f"export SLURM_CONF={cluster.env['SLURM_CONF']}")
    if action == "up":
        _report("start it by this line, and your shell uses the cluster:")
        _report('eval "$(dltutorial pocket up)"; then: srun -N 1 hostname; at the end: dltutorial pocket down')
    return 0


def _report(text: str) -> None:
    print(text, file=sys.stderr)


def _search_path() -> str:
    """Return the folders of programs, and those of daemons."""
    return f"{os.environ.get('PATH', os.defpath)}:{SYSTEM}"


def _start(name: str, nodes: tuple[str, ...]) -> PocketCluster:
    """Make the folder, start the daemons, and wait until all nodes can run jobs."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-", dir=_ROOT))
    cluster = PocketCluster(name, folder, nodes)
    try:
        for subfolder in ("state", *nodes):
            (folder / subfolder).mkdir()
        (folder / "munge.key").touch(mode=0o600)
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "slurm.conf").write_text(_configuration(cluster), encoding="utf-8")
        _start_daemon(
            cluster,
            "munged",
            "--force",  # otherwise munged refuses a folder that other users may not enter
            "--num-threads=1",
            f"--key-file={folder}/munge.key",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munge.pid",
            f"--log-file={folder}/munge.log",
            f"--seed-file={folder}/munge.seed",
        )
        _start_daemon(cluster, "slurmctld", "-i")
        for node in nodes:
            _start_daemon(cluster, "slurmd", "-N", node)
        _wait_until_working(cluster)
    except BaseException:  # an interrupt, too, must leave no daemons
        down(name)
        raise
    return cluster


def _configuration(cluster: PocketCluster) -> str:
    """Fill in the template of ``slurm.conf``."""
    template = (paths.course_folder("slurm") / "slurm" / "pocket" / "slurm.conf").read_text(encoding="utf-8")
    with contextlib.ExitStack() as stack:  # all ports are open at the same time, so no two are the same
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(1 + len(cluster.nodes))]
        controller_port, *node_ports = [server.getsockname()[1] for server in servers]
    return string.Template(template).substitute(
        name=f"pocket-{cluster.name}",
        host=socket.gethostname().partition(".")[0],
        user=pwd.getpwuid(os.getuid()).pw_name,
        folder=cluster.folder,
        controller_port=controller_port,
        node_ports=",".join(map(str, node_ports)),
        nodes=",".join(cluster.nodes),
        cores=max(4, machine.cores()),
        memory_mb=machine.memory_bytes()[0] // 2**20,
        first_job=secrets.choice(range(1000, 19000)),
    )


def _start_daemon(cluster: PocketCluster, program: str, *options: str) -> None:
    """Start a daemon, which goes to the background at once. It does not get the variables of this process."""
    env = {"PATH": _search_path(), "HOME": str(Path.home()), **cluster.env, _DAEMON_VARIABLE: "1"}
    with open(cluster.folder / f"{program}.out", "a") as output:
        done = subprocess.run([program, *options], env=env, stdout=output, stderr=output, timeout=START_S, check=False)
    if done.returncode:
        raise CourseError(f"{program} does not start: {_reason(cluster)}")


def _wait_until_working(cluster: PocketCluster) -> None:
    """Wait until all nodes can run jobs."""
    deadline_s = time.monotonic() + START_S
    while not is_working(cluster):
        if time.monotonic() > deadline_s:
            raise CourseError(f"the pocket cluster {cluster.name} does not start: {_reason(cluster)}")
        time.sleep(0.05)


def _reason(cluster: PocketCluster) -> str:
    """Return the last line of a log or an output that a daemon calls fatal or an error."""
    reason = "no error in its logs"
    for file in [*cluster.folder.glob("*.log"), *cluster.folder.glob("*.out")]:
        for line in file.read_text(errors="replace").splitlines():
            if "fatal" in line or "error" in line:
                reason = line
    return reason
