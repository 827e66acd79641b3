"""Where small training jobs of a chapter run: on a pocket cluster, or, where there is no Slurm, here by torchrun alone.

In: a name, options of ``dltutorial train``. Out: a run in the runs folder. Both places take the same calls, warn a job
by the same signal, and start again what ended after a warning; on the cluster ``train.sbatch`` and Slurm see to that.
The ranks compute on the CPU: the nodes of a pocket cluster are one machine.
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.launch import jobs, pocket, slurm

_CPU = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Cluster:
    """Jobs on a pocket cluster, by the scripts of ``slurm/``."""

    cluster: pocket.Cluster

    def train(
        self, name: str, *options: str, nodes: int = 2, launcher: str = "torchrun", script: str = "train", **more: Any
    ) -> jobs.Job:
        """Queue a training run with one rank on each node."""
        env = {"RUN_NAME": name, "DLTUTORIAL_RANKS_PER_NODE": "1", "DLTUTORIAL_LAUNCHER": launcher}
        return jobs.submit(script, *options, nodes=nodes, site="pocket", env=self.cluster.env | env, **more)

    def warn(self, job: jobs.Job) -> None:
        """Send what Slurm sends before a job's time is over."""
        jobs.warn(job)

    def wait(self, job: jobs.Job, timeout_s: float = 120.0) -> int:
        """Return when the job has ended well; how often it was queued again.

        Raises:
            CourseError: it ended otherwise, or has not ended in time.
        """
        return jobs.wait(job, timeout_s).restarts

    def is_over(self, job: jobs.Job) -> bool:
        """Whether it will not run again."""
        return jobs.state(job).is_over

    def output(self, job: jobs.Job) -> str:
        """All that it has written."""
        return job.output.read_text(errors="replace")

    def srun(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command on the nodes, outside any job."""
        env = slurm.surroundings(self.cluster.env)
        return subprocess.run(["srun", *words], env=env, capture_output=True, text=True, timeout=60, check=False)

    def close(self) -> None:
        """End the cluster."""
        atexit.unregister(self.close)
        pocket.down(self.cluster.name)


@dataclass
class Process:
    """A run started here."""

    name: str
    command: list[str]
    env: Mapping[str, str]
    running: "subprocess.Popen[bytes]"
    output: Path


class Here:
    """The same ranks without Slurm: one torchrun on this machine."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def train(self, name: str, *options: str, nodes: int = 2, **_: Any) -> Process:
        """Start a training run with as many ranks as there would be nodes."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nodes}"]
        command = [*torchrun, "-m", "dltutorial", "train", "--name", name, "--resume", *options]
        handle, file = tempfile.mkstemp(prefix="train-", suffix=".out")
        os.close(handle)
        env = os.environ | _CPU
        process = Process(name, command, env, _start(command, env, Path(file)), Path(file))
        self._started.append(process)
        return process

    def warn(self, process: Process) -> None:
        """Send the ranks the signal that Slurm sends before a job's time is over."""
        for rank in psutil.Process(process.running.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                rank.send_signal(signal.SIGUSR1)

    def wait(self, process: Process, timeout_s: float = 120.0) -> int:
        """Return when the run is finished; how often it was started again.

        Raises:
            CourseError: it failed, or has not ended in time.
        """
        until_s, restarts = time.monotonic() + timeout_s, 0
        while True:
            try:
                process.running.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise CourseError(f"the run {process.name} has not ended within {timeout_s:g} s") from None
            status = _status(process.name)
            if status == "finished":
                return restarts
            if status != "interrupted":
                lines = process.output.read_text(errors="replace").strip().splitlines()
                raise CourseError(f"the run {process.name} is {status}: {(lines or ['no word'])[-1]}")
            restarts += 1
            process.running = _start(process.command, process.env, process.output)

    def is_over(self, process: Process) -> bool:
        """Whether it has ended."""
        return process.running.poll() is not None

    def output(self, process: Process) -> str:
        """All that it has written."""
        return process.output.read_text(errors="replace")

    def close(self) -> None:
        """End what still runs, and remove what it wrote beside its run."""
        for process in self._started:
            if process.running.poll() is None:
                process.running.terminate()
                process.running.wait()
            process.output.unlink(missing_ok=True)


def place(name: str, nodes: int = 2) -> Cluster | Here:
    """A pocket cluster of this process's own where Slurm is installed and starts; otherwise this machine."""
    if pocket.missing():
        return Here()
    for other in pocket.names():
        owner = re.fullmatch(rf"{re.escape(name)}-(\d+)", other)
        if owner and not psutil.pid_exists(int(owner[1])):  # of a notebook that was killed
            pocket.down(other)
    try:
        found = Cluster(pocket.up(nodes, f"{name}-{os.getpid()}"))
        atexit.register(found.close)  # of a notebook that was left in the middle
        return found
    except CourseError as error:
        print(f"no cluster: {error}", file=sys.stderr)
        return Here()


def _start(command: list[str], env: Mapping[str, str], file: Path) -> "subprocess.Popen[bytes]":
    """torchrun would die of SIGUSR1, so the shell before it has it ignored; a rank that trains listens all the same."""
    with open(file, "ab") as out:
        shell = ["bash", "-c", 'trap "" USR1; exec "$@"', "ranks", *command]
        return subprocess.Popen(shell, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def _status(name: str) -> str:
    """Of a run in the runs folder, as it says itself."""
    return json.loads((paths.inside(paths.runs_dir(), name) / "status.json").read_text())["status"]
