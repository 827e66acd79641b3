"""Start the learner's script of the capstone on two ranks, inject faults, and collect what its ranks did.

The input is the learner's file. It is copied into a folder of its own, beside a ``samples.py`` that also watches the
process (``capstone_watch``). The output of each start is a ``Run``: exit statuses, printed text, and the updates of
each rank. Everything runs on the CPU, with one thread on each rank.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import contextlib
import functools
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from dltutorial.course import scripts
from dltutorial.course.checks import Wrong
from dltutorial.launch.pocket import PocketCluster

N_EPOCHS = 4
N_SAMPLES = 76  # no multiple of the batch, so the last batch of an epoch is smaller
BATCH = 16  # samples of all ranks in one update
RATE = 0.08
N_UPDATES = math.ceil(N_SAMPLES / BATCH)  # of an epoch
N_JOB_EPOCHS = 2  # of the run as a Slurm job
_TIMEOUT_S = 50.0  # the option --timeout, if a case does not test it
_MAX_PRINTED_BYTES = 2**27
_HERE = Path(__file__).parent
_UNFINISHED_STATES = ("", "PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
_ENDS_WITHOUT_A_WORD = ("SIGSTOP", "SIGKILL")


class Fault(NamedTuple):
    """What happens to a rank, or to all ranks if the rank is -1, in its training pass of this number.

    Attributes:
        rank: The rank.
        training_pass: The number of the training pass, from 1 on.
        kind: The name of a signal; "torchrun" for SIGTERM to torchrun; or "writing", a kill while a file is written.
    """

    rank: int
    training_pass: int
    kind: str


@dataclass(frozen=True)
class Update:
    """What one rank did in one training pass.

    Attributes:
        samples: The numbers of its samples.
        dtypes: The dtype of the network's output and that of its weights.
        probe: Four numbers that differ between different weights.
        time_s: The time of the pass, by a clock that all processes share.
    """

    samples: list[int]
    dtypes: list[str]
    probe: list[float]
    time_s: float


@dataclass
class Run:
    """What the ranks of one start did.

    Attributes:
        statuses: The exit status of each process, torchrun's or the ranks'; None if it did not end in time.
        out: All that was printed.
        took_s: The seconds until the last process ended.
        updates: The updates of each rank.
        saves: The rank, the file and the number of updates before it, for each call of torch.save.
        handled_signals: The names of the warning signals that each rank handles.
        group_at_end: For each rank that came to the end of the script, whether its process group still existed.
    """

    statuses: list[int | None] = field(default_factory=list)
    out: str = ""
    took_s: float = 0.0
    updates: dict[int, list[Update]] = field(default_factory=lambda: {0: [], 1: []})
    saves: list[tuple[int, str, int]] = field(default_factory=list)
    handled_signals: dict[int, list[str]] = field(default_factory=dict)
    group_at_end: dict[int, bool] = field(default_factory=dict)

    @property
    def hangs(self) -> bool:
        """Whether a process did not end in time."""
        return None in self.statuses

    @property
    def n_updates(self) -> list[int]:
        """The number of updates of each rank."""
        return [len(updates) for updates in self.updates.values()]

    @property
    def last_error(self) -> str:
        """The first line of an error, or else the last line of all that was printed."""
        lines = [line.strip() for line in self.out.splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"(\[rank\d+\]: ?)?[\w.]*(Error|Exception|Interrupt)\b", line)]
        if errors:
            return errors[0][:200]
        return lines[-1][:200] if lines else "nothing was printed"

    @property
    def files_of_both_ranks(self) -> set[str]:
        """The files that were written by both ranks."""
        files = [{file for saving_rank, file, _ in self.saves if saving_rank == rank} for rank in (0, 1)]
        return files[0] & files[1]

    def batch(self, number: int) -> list[int]:
        """Return the samples of both ranks in the update of this number of this start; empty if there was none."""
        batch: list[int] = []
        for updates in self.updates.values():
            for update in updates[number : number + 1]:
                batch += update.samples
        return sorted(batch)

    def read_notes(self, notes: Path) -> None:
        """Add what the watcher of each rank has written."""
        for rank in self.updates:
            file = notes / f"rank-{rank}.jsonl"
            for line in file.read_text().splitlines() if file.exists() else []:
                with contextlib.suppress(ValueError):  # a kill may have cut the last line
                    self._add_note(rank, json.loads(line))
        if self._aborted_after_its_end():
            self.statuses = [0] * len(self.statuses)

    def _add_note(self, rank: int, note: dict[str, Any]) -> None:
        kind = note.pop("what")
        if kind == "pass":
            self.updates[rank].append(Update(**note))
        elif kind == "begin":
            self.handled_signals[rank] = note["handles"]
        elif kind == "save":
            self.saves.append((rank, note["file"], len(self.updates[rank])))
        else:
            self.group_at_end[rank] = note["group"]

    def _aborted_after_its_end(self) -> bool:
        """Return whether torch aborted a rank after the learner's script had come to its end.

        If one of gloo's threads still releases a tensor while Python ends, the process aborts with SIGABRT
        (https://github.com/pytorch/pytorch/issues/190489). The script is not the cause.
        """
        if self.group_at_end != {0: False, 1: False}:
            return False
        statuses = {status for status in self.statuses if status}
        if statuses == {1}:  # torchrun's own status; it prints the status of each rank that failed
            statuses = {int(status) for status in re.findall(r"exitcode\s*: (-?\d+)", self.out)}
        return statuses == {-signal.SIGABRT} and "terminate called without an active exception" in self.out


class Script:
    """The learner's script in a folder of its own. A call starts the script once more.

    Attributes:
        folder: The folder.
        job: The learner's job script, which may not exist.
        patience_s: The seconds after which a start is given up.
    """

    def __init__(self, script: Path, folder: Path, patience_s: float) -> None:
        """Copy the learner's files into the folder, beside a ``samples.py`` that watches the process."""
        self.folder = folder
        self.job = script.with_name("capstone.sbatch")
        self.patience_s = patience_s
        self._n_starts = 0
        written = scripts.written(_HERE.parent / "capstone.ipynb")["samples.py"]
        watched = f"{written}\n\nimport capstone_watch  # of the check\n\ncapstone_watch.watch(Network)\n"
        (folder / "samples.py").write_text(watched, encoding="utf-8")
        shutil.copy(_HERE / "capstone_watch.py", folder)
        shutil.copy(script, folder / "capstone.py")
        if self.job.is_file():
            shutil.copy(self.job, folder / self.job.name)

    def __call__(
        self, name: str, fault: Fault | None = None, *, torchrun: bool = True, timeout_s: float = _TIMEOUT_S
    ) -> Run:
        """Start the script on two ranks, and wait until they end.

        Args:
            name: The folder that the script writes into.
            fault: What happens to a rank.
            torchrun: Whether torchrun starts the ranks. Otherwise each rank is a process of its own.
            timeout_s: The script's option --timeout.

        Returns:
            What the ranks did.
        """
        notes = self._make_notes_folder()
        environment = _environment() | {"CAPSTONE_NOTES": str(notes)}
        if fault:
            environment["CAPSTONE_FAULT"] = " ".join(map(str, fault))
        out = self.folder / f"{notes.name}.out"
        arguments = ["capstone.py", name, *_options(N_EPOCHS, timeout_s)]
        begin_s = time.monotonic()
        processes: list[subprocess.Popen] = []
        try:
            with open(out, "w") as file:
                options: dict[str, Any] = {"stdout": file, "stderr": file, "stdin": subprocess.DEVNULL}
                for command, variables in _commands(arguments, torchrun):
                    options |= {"cwd": self.folder, "env": environment | variables, "start_new_session": True}
                    processes.append(subprocess.Popen(command, **options))
            awaited = list(processes)
            if fault and fault.kind in _ENDS_WITHOUT_A_WORD:
                awaited.pop(fault.rank)
            self._wait(awaited, out)
            run = Run([process.poll() for process in awaited], took_s=time.monotonic() - begin_s)
        finally:
            _kill_processes_with(notes)
            for process in processes:
                process.wait()
        run.out = out.read_text(encoding="utf-8", errors="replace")
        run.read_notes(notes)
        return run

    def _wait(self, processes: list[subprocess.Popen], out: Path) -> None:
        """Wait until all processes have ended, or for as long as the check has patience."""
        until_s = time.monotonic() + self.patience_s
        while any(process.poll() is None for process in processes):
            if time.monotonic() > until_s or out.stat().st_size > _MAX_PRINTED_BYTES:
                return
            time.sleep(0.02)

    def submit(self, name: str, cluster: PocketCluster) -> tuple[str, Run]:
        """Queue the job script, and wait until the job ends.

        Args:
            name: The folder that the script writes into.
            cluster: The cluster on which the job runs.

        Returns:
            The state in which the job ended, as Slurm names it, and what its ranks did.

        Raises:
            Wrong: Slurm does not accept the job script.
        """
        notes = self._make_notes_folder()
        out = self.folder / f"{notes.name}.out"
        environment = _environment() | cluster.env | {"CAPSTONE_NOTES": str(notes)}

        def slurm(*command: str) -> subprocess.CompletedProcess:
            options: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
            return subprocess.run(command, cwd=self.folder, env=environment, timeout=30, **options)

        sbatch = ["sbatch", "--parsable", "-o", out.name, "-e", out.name, "capstone.sbatch", name]
        queued = slurm(*sbatch, *_options(N_JOB_EPOCHS, _TIMEOUT_S))
        if queued.returncode:
            raise Wrong("a job that Slurm takes", queued.stderr.strip()[:200], "Submit it yourself: sbatch says why.")
        job = queued.stdout.strip()
        state = ""
        until_s = time.monotonic() + self.patience_s
        while state in _UNFINISHED_STATES and time.monotonic() < until_s:
            time.sleep(0.1)
            state = slurm("squeue", "-h", "--states=all", "-j", job, "-o", "%T").stdout.strip()
        slurm("scancel", job)
        run = Run()
        if out.exists():
            run.out = out.read_text(encoding="utf-8", errors="replace")
        run.read_notes(notes)
        return state, run

    @functools.cached_property
    def undisturbed(self) -> Run:
        """The first run, without a fault."""
        return self("undisturbed")

    @property
    def begin(self) -> Path:
        """The file with rank 0's weights before the first update of the undisturbed run."""
        return self.folder / "notes-1" / "begin-0.pt"

    @functools.cached_property
    def warned(self) -> Run:
        """Another run, in whose second epoch rank 1 gets SIGUSR1."""
        return self("killed", Fault(1, N_UPDATES + 2, "SIGUSR1"), torchrun=False)

    @property
    def pass_of_sigterm(self) -> int:
        """The training pass after the warned run in which torchrun gets SIGTERM: the second of the third epoch."""
        return 2 * N_UPDATES + 2 - self.warned.n_updates[0]

    @functools.cached_property
    def terminated(self) -> Run:
        """The start after the warned run."""
        return self("killed", Fault(0, self.pass_of_sigterm, "torchrun"))

    def _make_notes_folder(self) -> Path:
        self._n_starts += 1
        notes = self.folder / f"notes-{self._n_starts}"
        notes.mkdir()
        return notes


def _options(n_epochs: int, timeout_s: float) -> list[str]:
    return f"--epochs {n_epochs} --batch {BATCH} --rate {RATE} --timeout {timeout_s:g}".split()


def _environment() -> dict[str, str]:
    """Return variables without those of this process's own Slurm job, ranks and course."""
    own = ("SLURM_", "TORCHELASTIC", "PYTHONPATH", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    environment |= {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return environment | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def _commands(arguments: list[str], torchrun: bool) -> list[tuple[list[str], dict[str, str]]]:
    """Return the command of each process and its variables: torchrun's command, or one for each rank."""
    if torchrun:
        options = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        return [([sys.executable, *options, *arguments], {})]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, *arguments]
    return [(command, shared | {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0"}) for rank in ("0", "1")]


def _kill_processes_with(notes: Path) -> None:
    """Kill all processes of a start. They share a variable, also those that have left their session."""
    is_done = False
    while not is_done:
        is_done = True
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("CAPSTONE_NOTES") == str(notes):
                    process.kill()
                    is_done = False
