"""Who runs the small training jobs of a chapter: a pocket cluster, or, where there is no Slurm, torchrun on its own.

In: a name, options of ``dltutorial train``. Out: a job, and a run in the runs folder. Both kinds of job are asked,
warned and waited for in the same way; what ended after a warning starts again, by ``train.sbatch`` and Slurm, or here.
The ranks compute on the CPU: the nodes of a pocket cluster are one machine.

Source: https://slurm.schedmd.com/squeue.html, "JOB STATE CODES"
"""

import atexit
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.launch import pocket

_CPU = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
# What ended after a warning is started again, and goes on.
_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1")
_ANSWER_S, _POLL_S = 60.0, 0.5
_GOING = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING"}
_GOING |= {"SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT"}


@dataclass(frozen=True)
class State:
    """How a job does: Slurm's word for it (UNKNOWN some minutes after its end), and why it waits or ended so."""

    word: str
    reason: str = ""
    restarts: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it will not run again."""
        return self.word not in _GOING


@dataclass(frozen=True)
class SlurmJob:
    """A job, or one task of a job array. ``env`` leads Slurm's commands to its cluster."""

    number: str  # such as 123 or 123_4
    output: Path
    env: Mapping[str, str]

    def state(self) -> State:
        """How it does now."""
        form = "--Format=State:|,ReasonList:|,RestartCnt:|"
        said = _run(["squeue", "--noheader", "--states=all", f"--jobs={self.number}", form], self.env)
        word, reason, restarts = (said.splitlines() or ["UNKNOWN||"])[0].split("|")[:3]
        return State(word, reason.strip("()"), int(restarts or 0))

    def wait(self, timeout_s: float = 120.0) -> State:
        """Return once it has ended well.

        Raises:
            CourseError: it has ended otherwise; or it has not ended in time, and is left as it is.
        """
        until_s = time.monotonic() + timeout_s
        while not (now := self.state()).is_over:
            if time.monotonic() > until_s:
                told = f"job {self.number} is still {now.word} ({now.reason}) after {timeout_s:g} s"
                raise CourseError(f"{told}; wait longer, or cancel it: scancel {self.number}")
            time.sleep(_POLL_S)
        if now.word != "COMPLETED":
            raise CourseError(f"job {self.number} ended as {now.word}: {_cause(self.output)}")
        return now

    def warn(self) -> None:
        """Send the signal that Slurm sends before a job's time is over (``#SBATCH --signal=B:USR1@…``)."""
        _run(["scancel", "--batch", "--signal=USR1", self.number], self.env)

    def cancel(self) -> None:
        """End it. Its ranks get SIGTERM first, and write a checkpoint if they can."""
        _run(["scancel", self.number], self.env)

    def tasks(self) -> list["SlurmJob"]:
        """The tasks of a job array; a job alone is its own only task."""
        said = _run(["squeue", "-h", "--states=all", "--array", f"--jobs={self.number}", "--format=%i"], self.env)
        numbers = sorted(set(said.split()), key=lambda number: int(number.rpartition("_")[2]))
        return [SlurmJob(n, Path(str(self.output).replace("%a", n.rpartition("_")[2])), self.env) for n in numbers]


def sbatch(
    script: str, *arguments: str, nodes: int = 1, env: Mapping[str, str], options: Sequence[str] = ()
) -> SlurmJob:
    """Queue ``slurm/<script>.sbatch`` on a pocket cluster, as in a shell: ``source pocket.sh; sbatch -N nodes …``.

    Args:
        script: train, scaling, profile or notebook; or the path of another script.
        *arguments: of the script.
        nodes: how many.
        env: variables on top of this process's own, with ``SLURM_CONF``.
        options: more of sbatch's, such as ``--time=10``.

    Raises:
        CourseError: Slurm does not take the job.
    """
    course, runs = paths.course_folder("slurm"), paths.runs_dir().absolute()
    file = Path(script) if script.endswith(".sbatch") else course / "slurm" / f"{script}.sbatch"
    (runs / "jobs").mkdir(parents=True, exist_ok=True)
    is_array = any(option.startswith(("-a", "--array")) for option in options)
    output = str(runs / "jobs" / f"{file.stem}-{'%A_%a' if is_array else '%j'}.out")
    words = ["sbatch", "--parsable", f"--nodes={nodes}", f"--output={output}", *options, str(file.absolute())]
    # The job starts in the course's folder; its runs go where this process looks for them.
    env = {"DLTUTORIAL_RUNS": str(runs), **env}
    in_site = ["bash", "-euc", 'source slurm/sites/pocket.sh >&2; exec "$@"', "sbatch", *words, *arguments]
    number = _run(in_site, env, course).strip().splitlines()[-1].partition(";")[0]
    return SlurmJob(number, Path(output.replace("%j", number).replace("%A", number)), env)


def _run(command: Sequence[str], env: Mapping[str, str], folder: Path | None = None) -> str:
    """What a command of Slurm's says.

    Raises:
        CourseError: it does not answer, or fails; in its own words.
    """
    try:
        done = subprocess.run(
            command, env=_surroundings(env), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_ANSWER_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CourseError(f"no answer from Slurm ({error}); dltutorial pocket status tells more") from error
    if done.returncode and "Invalid job id" not in done.stderr:
        raise CourseError(f"Slurm says: {(done.stderr.strip().splitlines() or ['nothing'])[-1]}")
    return done.stdout


def _surroundings(env: Mapping[str, str]) -> dict[str, str]:
    """This process's variables and ``env``; those of a job that this process is in would pass for wishes."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return {"DLTUTORIAL_PYTHON": sys.executable, **own, **env}


@dataclass(frozen=True)
class SlurmExecutor:
    """Jobs on a pocket cluster, by the scripts of ``slurm/``."""

    cluster: pocket.PocketCluster

    def train(
        self, name: str, *options: str, nodes: int = 2, launcher: str = "torchrun", script: str = "train", **more: Any
    ) -> SlurmJob:
        """Queue a training run with one rank on each node."""
        env = {"RUN_NAME": name, "DLTUTORIAL_RANKS_PER_NODE": "1", "DLTUTORIAL_LAUNCHER": launcher}
        return sbatch(script, *options, nodes=nodes, env=self.cluster.env | env, **more)

    def srun(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command on the nodes, outside any job."""
        env = _surroundings(self.cluster.env)
        return subprocess.run(["srun", *words], env=env, capture_output=True, text=True, timeout=60, check=False)

    def close(self) -> None:
        """End the cluster."""
        atexit.unregister(self.close)
        pocket.down(self.cluster.name)


class LocalJob:
    """A training run by one torchrun; ``output`` is the file that it writes to."""

    def __init__(self, name: str, options: tuple[str, ...], ranks: int) -> None:
        """Start it."""
        self._name = name
        # torchrun would die of SIGUSR1, so a shell has it ignored; a rank that trains listens to it all the same.
        command = ["bash", "-c", 'trap "" USR1; exec "$@"', "ranks", *_TORCHRUN, f"--nproc-per-node={ranks}"]
        command += ["-m", "dltutorial", "train", "--name", name, "--resume", *options]
        handle, file = tempfile.mkstemp(prefix="train-", suffix=".out")
        self.output = Path(file)
        with open(handle, "ab") as out:
            self._process = subprocess.Popen(
                command, env=os.environ | _CPU, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def state(self) -> State:
        """Whether it runs, or how it ended."""
        status = self._process.poll()
        return State("RUNNING" if status is None else "FAILED" if status else "COMPLETED")

    def warn(self) -> None:
        """Send the ranks the signal that Slurm sends before a job's time is over."""
        for rank in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                rank.send_signal(signal.SIGUSR1)

    def wait(self, timeout_s: float = 120.0) -> State:
        """Return when the run is finished.

        Raises:
            CourseError: it failed, or has not ended in time.
        """
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise CourseError(f"the run {self._name} has not ended within {timeout_s:g} s") from None
        if status:
            raise CourseError(f"the run {self._name} failed: {_cause(self.output)}")
        return State("COMPLETED", restarts=self.output.read_text(errors="replace").count("goes on after"))

    def cancel(self) -> None:
        """End it, and remove what it wrote beside its run."""
        self._process.terminate()
        self._process.wait()
        self.output.unlink(missing_ok=True)


class LocalExecutor:
    """The same ranks without Slurm."""

    def __init__(self) -> None:
        self._jobs: list[LocalJob] = []

    def train(self, name: str, *options: str, nodes: int = 2, **_: Any) -> LocalJob:
        """Start a training run with as many ranks as there would be nodes."""
        self._jobs.append(LocalJob(name, options, nodes))
        return self._jobs[-1]

    def close(self) -> None:
        """End what still runs."""
        for job in self._jobs:
            job.cancel()


def _cause(output: Path) -> str:
    """Why training failed: the course's own line in what it wrote, but none of a warning; else srun's first or any."""
    said = output.read_text(errors="replace") if output.exists() else ""
    for pattern in (r"^dltutorial: (?!asked to end)(.*)", r"^(srun: error: .*)", r"^(.*\S.*)\s*\Z"):
        if found := re.search(pattern, said, re.MULTILINE):
            return f"{found[1]}; its output is in {output}"
    return "it says nothing"


def start(name: str, nodes: int = 2) -> SlurmExecutor | LocalExecutor:
    """A pocket cluster of this process's own where Slurm is installed and starts; otherwise this machine."""
    if pocket.missing():
        return LocalExecutor()
    for other in pocket.names():
        owner = re.fullmatch(rf"{re.escape(name)}-(\d+)", other)
        if owner and not psutil.pid_exists(int(owner[1])):  # of a notebook that was killed
            pocket.down(other)
    try:
        found = SlurmExecutor(pocket.up(nodes, f"{name}-{os.getpid()}"))
    except CourseError as error:
        print(f"no cluster: {error}", file=sys.stderr)
        return LocalExecutor()
    atexit.register(found.close)  # of a notebook that was left in the middle
    return found


def progress(run: str) -> list[dict[str, Any]]:
    """What a training run has recorded so far: one dict for each record, with step, loss, scores, samples_per_s."""
    file = paths.inside(paths.runs_dir(), run) / "progress.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
