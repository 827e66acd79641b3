"""What a pocket cluster is made of: its folder with key and configuration, and the daemons that run in it.

In: a folder, a name, a number of nodes. Out: munged, slurmctld and one slurmd for each node, as this user, on the
loopback. ``slurm/pocket/slurm.conf`` is the template, and says why each setting is as it is. The daemons are started
with a mark of the folder in their environment: so they and their jobs are found again. A shell or kernel that only
*uses* the cluster has no mark and was not started by a node, so it is left alone.
"""

import contextlib
import fcntl
import itertools
import os
import pwd
import re
import secrets
import shutil
import socket
import string
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from dltutorial import machine, paths
from dltutorial.errors import CourseError

SYSTEM = "/usr/sbin:/usr/local/sbin:/sbin"  # where daemons live; often not in an ordinary user's PATH
_START_S, _ANSWER_S, _END_S = 60.0, 15.0, 60.0  # on busy cores; else it takes one
_CANCEL_S = 10.0  # for cancelled jobs to end; KillWait is 5
SHORT = "dltutorial-pocket-"  # so begins the name of a folder that a link in a cluster's place leads to; then whose
_LONGEST_BYTES = 60  # of the folder: the name of a Unix socket in it must stay below 108
_SPACE = Path("/proc/self/ns/pid")  # its number is that of the container in which numbers of processes are these
_MARK = "DLTUTORIAL_POCKET_DAEMON"
_WAIT = {"srun", "sattach", "sbatch"}  # programs that wait for jobs; salloc waits for a command of its user's own
_STEP = re.compile(r"^slurmstepd: \[(\d+)\.")
# Its last words are on the way for a moment; and a process's number may be another's by then.
_AFTER = """while kill -0 $1; do sleep 0.1; done; sleep 1; shift
for pid; do grep -qE '^s(lurmstepd|run|attach|batch)$' /proc/$pid/comm && kill -9 $pid; done"""
_PROGRAMS = {"munge": "munged", "controller": "slurmctld"}  # by role; that of a node is slurmd
_DAEMONS = {*_PROGRAMS.values(), "slurmd"}
_FIT = {"idle", "mixed", "allocated", "completing", "planned", "reserved"}  # states of a node that takes or has jobs


@dataclass(frozen=True)
class PocketCluster:
    """A pocket cluster that is running, or what is left of one that was killed; ``folder`` holds all its files."""

    name: str
    folder: Path
    nodes: tuple[str, ...]
    faults: tuple[str, ...] = ()  # what of it is not as it must be, a phrase each

    @property
    def env(self) -> dict[str, str]:
        """The variable that leads Slurm's commands to this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}


def states(cluster: PocketCluster) -> dict[str, str]:
    """What Slurm says of each node: idle, down, …; a star: it is silent. Nothing if the controller does not answer."""
    said = _asked(cluster, "sinfo", "--noheader", "--Node", "--format=%N %T")
    return dict(line.split() for line in (said or "").splitlines())


def faults(cluster: PocketCluster) -> dict[str, str]:
    """What is not as it must be, by role: each daemon is looked for and asked, then Slurm is asked for each node."""
    roles = ("munge", "controller", *cluster.nodes)
    if wrong := dict.fromkeys(sorted({*roles} - _running(cluster.folder), key=roles.index), "does not run"):
        return wrong
    if _asked(cluster, "munge", "--no-input", f"--socket={cluster.folder / 'munge.socket'}") is None:
        return {"munge": "does not answer"}
    if not (seen := states(cluster)):
        return {"controller": "does not answer"}
    told = {node: seen.get(node, "unknown") for node in cluster.nodes}
    return {node: f"is {state}" for node, state in told.items() if state.rstrip("+") not in _FIT}


def start(folder: Path, name: str, n_nodes: int) -> PocketCluster:
    """Make the folder, start the daemons, wait until all nodes are idle. CourseError: something of it cannot be."""
    place = os.fsencode(folder.resolve())  # if Slurm cannot have it, a link in its place leads to a short one
    if len(place) > _LONGEST_BYTES or re.search(rb"[^\w./-]", place):
        folder.symlink_to(tempfile.mkdtemp(prefix=f"{SHORT}{_SPACE.stat().st_ino}-"))
    else:
        folder.mkdir(mode=0o700)
    cluster = PocketCluster(name, folder.resolve(), tuple(f"n{number}" for number in range(n_nodes)))
    for part in ("state", *cluster.nodes):
        (cluster.folder / part).mkdir(mode=0o700)
    (cluster.folder / "munge.key").touch(mode=0o600)
    (cluster.folder / "munge.key").write_bytes(secrets.token_bytes(128))
    paths.write_text(cluster.folder / "slurm.conf", _configuration(cluster))
    for role in ("munge", "controller", *cluster.nodes):
        spawn(cluster, role)
    return _settled(cluster)


def mend(cluster: PocketCluster) -> PocketCluster:
    """Start again what is not as it must be; jobs stay but on a node that starts again. CourseError: it cannot be."""
    for role in faults(cluster):
        if role in cluster.nodes:  # Slurm queues its jobs there anew or ends them, before it hears that they failed
            _asked(cluster, "scontrol", "update", f"NodeName={role}", "State=DOWN", "Reason=restarted")
        kill(cluster.folder, role)
        spawn(cluster, role)
    return _settled(cluster)


def spawn(cluster: PocketCluster, role: str) -> None:
    """Start the daemon of a role (munge, controller, a node's name), in the background. CourseError: it does not."""
    program = _PROGRAMS.get(role, "slurmd")
    arguments = ["-i"] if role == "controller" else ["-N", role]
    if role == "munge":  # all its files in this folder; --force since nobody else may enter that, which it finds odd
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={cluster.folder / role}.{end}" for option, end in files.items()]
        arguments = ["--force", "--num-threads=1", *options]
    env = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    env |= {"PATH": f"{os.environ.get('PATH', os.defpath)}:{SYSTEM}", **cluster.env, _MARK: f"{cluster.folder}:{role}"}
    how: dict = {"cwd": cluster.folder, "stdin": subprocess.DEVNULL, "timeout": _START_S, "start_new_session": True}
    try:
        with open(said := cluster.folder / f"{role}.out", "w") as out:
            subprocess.run([which(program) or program, *arguments], env=env, stdout=out, stderr=out, check=True, **how)
    except (OSError, subprocess.SubprocessError) as error:
        why = f"{program} does not start: {_blamed(said) or error}"
        raise CourseError(f"{why}; mend that, then dltutorial pocket up") from error


def processes(folder: Path, role: str | None = None) -> list[psutil.Process]:
    """The processes that run for one role, or all of the cluster; never this one or those it came from."""
    own = {psutil.Process(), *psutil.Process().parents()}
    jobs = {path.name.rpartition("_")[2].partition(".")[0] for path in folder.glob("*/*_*.*")}  # <node>_<job>.<step>
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real != os.getuid():
                continue
            if (role is None and _step(process) in jobs) or _belongs(_environment(process), folder, role):
                found |= {process, *process.children(recursive=True), *filter(_step, process.parents())}
    return [process for process in found - own if not _is_gone(process)]


def refuse_elsewhere(folder: Path, is_seen: bool = False) -> None:
    """CourseError: its daemons, which lock files, live in another container, unseen from here; ``is_seen``: or seen."""
    place, lock = Path(os.path.realpath(folder)), struct.Struct("hhqqi4x")  # type, 3 × where, process
    whose = re.match(rf"{SHORT}(\d+)-", place.name)  # each container may have such folders of its own
    there = whose is not None and int(whose[1]) != _SPACE.stat().st_ino and not place.exists()
    for file in (*place.glob("*.pid"), place / "munge.socket.lock"):
        with contextlib.suppress(OSError), open(os.open(file, os.O_WRONLY | os.O_NONBLOCK), "wb") as held:
            asked = fcntl.fcntl(held, fcntl.F_GETLK, lock.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
            there |= lock.unpack(asked)[0] != fcntl.F_UNLCK and lock.unpack(asked)[-1] <= 0  # no number of here
    seen = processes(place) if there or is_seen else []
    pids = [process.pid for process in seen if process.name() in _DAEMONS]
    inner = (re.search(r"^NSpid:\t\d+\t", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) for pid in pids)
    if (there and not seen) or (is_seen and any(inner)):  # with a number here, and another one there
        end = f"end it there: dltutorial pocket down --name {folder.name}; if that container is gone, rename {folder}"
        raise CourseError(f"a pocket cluster of another container is up in {folder}; {end}")


def kill(folder: Path, role: str | None = None) -> None:
    """Kill them all; a controller alone first writes down its jobs. CourseError: one does not end."""
    if role is None and not _belongs(dict(os.environ), folder, None):  # from inside a job it would end with that
        _cancel(folder)
    if role == "controller":
        for process in (asked := processes(folder, role)):
            with contextlib.suppress(psutil.Error):
                process.resume()  # whoever is stopped hears nothing
                process.terminate()
        psutil.wait_procs(asked, timeout=_END_S)
    until_s = time.monotonic() + _END_S
    while left := processes(folder, role):
        if time.monotonic() > until_s:
            raise CourseError(f"process {left[0].pid} of the pocket cluster does not end; end it, then try again")
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)


def end_own_step(folder: Path) -> None:
    """Once the job that this is part of has ended, kill its step daemon and who waits for it: they would for ever."""
    for child, parent in itertools.pairwise([psutil.Process(), *psutil.Process().parents()]):
        with contextlib.suppress(psutil.Error, OSError):
            if _step(parent) and _belongs(_environment(parent), folder, None):
                pids, null = [str(process.pid) for process in (parent, *_waiting(folder))], subprocess.DEVNULL
                after = ["sh", "-c", _AFTER, "sh", str(child.pid), *pids]
                subprocess.Popen(after, stdin=null, stdout=null, stderr=null, start_new_session=True)


def _waiting(folder: Path) -> list[psutil.Process]:
    every, conf = psutil.process_iter(["name", "environ"]), str(folder / "slurm.conf")
    return [p for p in every if p.info["name"] in _WAIT and (p.info["environ"] or {}).get("SLURM_CONF") == conf]


def _cancel(folder: Path) -> None:
    """Cancel all jobs, wait while they end. Kill then what still waits for one (srun): it would for ever."""
    cluster, until_s = PocketCluster("", folder, ()), time.monotonic() + _CANCEL_S
    asks = "SLURM_JOB_ID" not in os.environ and {"munge", "controller"} <= _running(folder)  # salloc's shell is hung up
    if asks and _asked(cluster, "scancel", f"--user={os.getuid()}") is not None:
        while (_waiting(folder) or _asked(cluster, "squeue", "--noheader")) and time.monotonic() < until_s:
            time.sleep(0.05)
    for process in _waiting(folder):
        with contextlib.suppress(psutil.Error):
            process.kill()


def host() -> str:
    """This machine's name as Slurm wants it."""
    return socket.gethostname().partition(".")[0]


def which(program: str) -> str | None:
    """Where a program is, the folders of daemons included."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM}")


def _configuration(cluster: PocketCluster) -> str:
    template = (paths.course_folder("slurm") / "slurm" / "pocket" / "slurm.conf").read_text(encoding="utf-8")
    with contextlib.ExitStack() as stack:  # free ports, all open at once, so that no two are the same
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(1 + len(cluster.nodes))]
        controller_port, *node_ports = [server.getsockname()[1] for server in servers]
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container that runs under a number
        raise CourseError(f"user {os.getuid()} has no name, which Slurm needs; give it one in /etc/passwd") from None
    return string.Template(template).substitute(
        name=f"pocket-{cluster.name}".lower(), host=host(), user=user, folder=cluster.folder,
        controller_port=controller_port, node_ports=",".join(map(str, node_ports)), nodes=",".join(cluster.nodes),
        cores=max(4, machine.cores()), memory_mb=(machine.memory_bytes()[0] or 2**30) // 2**20,
        first_job=secrets.choice(range(1000, 19000)),
    )  # fmt: skip


def _belongs(env: dict[str, str], folder: Path, role: str | None) -> bool:
    place, _, whose = env.get(_MARK, "").rpartition(":")
    node = env.get("SLURMD_NODENAME") if env.get("SLURM_CONF") == str(folder / "slurm.conf") else None
    return (node is not None and role in (None, node)) or (place == str(folder) and role in (None, whose))


def _step(process: psutil.Process) -> str | None:
    """Of a step daemon the number of its job."""
    return next(iter(_STEP.findall(" ".join(process.cmdline()))), None)


def _environment(process: psutil.Process) -> dict[str, str]:
    """All of it; psutil stops where a step daemon has written its title over the first part."""
    text = os.fsdecode(Path(f"/proc/{process.pid}/environ").read_bytes())
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def _is_gone(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return True


def _running(folder: Path) -> set[str]:
    """The roles whose daemon is there, and not stopped; as its own environment says, for numbers are used again."""
    marks = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.name() in _DAEMONS and process.status() != psutil.STATUS_STOPPED:
                marks.add(process.environ().get(_MARK, ""))
    return {mark.rpartition(":")[2] for mark in marks if mark.startswith(f"{folder}:")}


def _asked(cluster: PocketCluster, program: str, *arguments: str) -> str | None:
    """What a command of munge's or Slurm's says; None if it fails or gets no answer."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words, env = [which(program) or program, *arguments], os.environ | cluster.env
        done = subprocess.run(words, env=env, capture_output=True, errors="replace", timeout=_ANSWER_S, check=True)
        return done.stdout
    return None


def _settled(cluster: PocketCluster) -> PocketCluster:
    """The same cluster, once it is whole; an error if a daemon has ended, or the time is up."""
    until_s = time.monotonic() + _START_S
    times_gone = 0  # a daemon that is just leaving its starter's side is overlooked now and then
    while wrong := faults(cluster):
        role, fault = next(iter(wrong.items()))
        if re.search("drain|down", fault):
            _asked(cluster, "scontrol", "update", f"NodeName={role}", "State=RESUME")
        times_gone = times_gone + 1 if fault == "does not run" else 0
        if time.monotonic() > until_s or times_gone > 10:
            why = f"{role} {fault} ({_blamed(cluster.folder / f'{role}.log')})"
            again = f"dltutorial pocket down --name {cluster.name}, then up"
            raise CourseError(f"the pocket cluster {cluster.name} is not whole: {why}; start it anew: {again}")
        time.sleep(0.05)
    return cluster


def _blamed(log: Path) -> str:
    """The last line that a daemon itself calls fatal, else an error, else its last."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    return max(reversed(lines), key=lambda line: ("fatal" in line, "error" in line), default="")
