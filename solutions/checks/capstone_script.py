"""Start the learner's script of the capstone on two or three ranks, inject faults, and collect what its ranks did.

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
N_THREE = 3  # ranks of the starts that have unequal shares
BATCH_OF_THREE = 8  # the shares are 3, 3 and 2 samples, and 2, 1 and 1 in the last batch of an epoch
N_UPDATES_OF_THREE = math.ceil(N_SAMPLES / BATCH_OF_THREE)
N_EPOCHS_OF_THREE = 3
_TIMEOUT_S = 50.0  # the option --timeout, if a case does not test it
_MAX_PRINTED_BYTES = 2**27
_HERE = Path(__file__).parent
_UNFINISHED_STATES = ("", "PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
_SHORT_TIMEOUTS_S = (5.0, 20.0)  # with a stopped rank; the second if the ranks do not meet in the first
_ERROR = re.compile(r"(?:\[rank\d+\]: ?)?((?!Exception raised from)[\w.]*(?:Error|Exception|Interrupt)\b.*)")
_FRAME = re.compile(r'(?:\[rank\d+\]: ?)?\s*File "[^"]*\bcapstone\.py", line (\d+)(?:, in (\S+))?')
_ABORTS = (-signal.SIGABRT, -signal.SIGSEGV)


class Fault(NamedTuple):
    """What happens to a rank, or to all ranks if the rank is -1, in its training pass of this number.

    Attributes:
        rank: The rank.
        training_pass: The number of the training pass, from 1 on.
        kind: The name of a signal; "torchrun" for SIGTERM to torchrun; "writing" for a kill while a file is written; or
            "rename" for a kill before a new file is renamed.
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
        updates: The updates of each rank.
        statuses: The exit status of each process, torchrun's or the ranks'; None if it did not end in time.
        out: All that was printed.
        took_s: The seconds until the last process ended.
        saves: The rank, the file and the number of updates before it, for each call of torch.save.
        handled_signals: The names of the warning signals that each rank handles.
        group_at_end: For each rank that came to the end of the script, whether its process group still existed.
    """

    updates: dict[int, list[Update]]
    statuses: list[int | None] = field(default_factory=list)
    out: str = ""
    took_s: float = 0.0
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
        """The first error that a rank printed, or else the last line of all that was printed."""
        lines = [line.strip() for line in self.out.splitlines() if line.strip()]
        errors = [match[1] for match in map(_ERROR.match, lines) if match and "ChildFailedError" not in match[1]]
        if errors:
            return errors[0][:200]
        return lines[-1][:200] if lines else "nothing was printed"

    @property
    def trace(self) -> str:
        """The lines of the learner's script in the first traceback, with number and source; empty without an error."""
        frames: list[str] = []
        lines = self.out.splitlines()
        for number, line in enumerate(lines):
            frame = _FRAME.match(line)
            if frame:
                source = "".join(lines[number + 1 : number + 2])
                source = re.sub(r"^\[rank\d+\]:", "", source).strip()
                frames.append(f"line {frame[1]}, in {frame[2] or 'the file'}:  {source}")
            elif frames and _ERROR.match(line):
                break
        return "\n".join(frames[-5:])

    @property
    def files_of_several_ranks(self) -> set[str]:
        """The files that were written by more than one rank."""
        ranks_of_file: dict[str, set[int]] = {}
        for rank, file, _ in self.saves:
            ranks_of_file.setdefault(file, set()).add(rank)
        return {file for file, ranks in ranks_of_file.items() if len(ranks) > 1}

    def batch(self, number: int) -> list[int]:
        """Return the samples of all ranks in the update of this number of this start; empty if there was none."""
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

        If one of gloo's threads still releases a tensor while Python ends, the process aborts
        (https://github.com/pytorch/pytorch/issues/190489). The script is not the cause.
        """
        if self.group_at_end != dict.fromkeys(self.updates, False):
            return False
        statuses = {status for status in self.statuses if status}
        if statuses == {1}:  # torchrun's own status; it prints the status of each rank that failed
            statuses = {int(status) for status in re.findall(r"exitcode\s*: (-?\d+)", self.out)}
        return bool(statuses) and statuses <= set(_ABORTS)


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
        self,
        name: str,
        fault: Fault | None = None,
        *,
        torchrun: bool = False,
        timeout_s: float = _TIMEOUT_S,
        n_ranks: int = 2,
    ) -> Run:
        """Start the script on two or three ranks, and wait until they end.

        Args:
            name: The folder that the script writes into.
            fault: What happens to a rank.
            torchrun: Whether torchrun starts the ranks. Otherwise each rank is a process of its own.
            timeout_s: The script's option --timeout.
            n_ranks: The number of ranks. Three ranks have another batch and other epochs than two.

        Returns:
            What the ranks did.
        """
        notes = self._make_notes_folder()
        environment = _environment() | {"CAPSTONE_NOTES": str(notes)}
        if fault:
            environment["CAPSTONE_FAULT"] = " ".join(map(str, fault))
        out = self.folder / f"{notes.name}.out"
        options = _options(N_EPOCHS, timeout_s)
        if n_ranks == N_THREE:
            options = _options(N_EPOCHS_OF_THREE, timeout_s, BATCH_OF_THREE)
        arguments = ["capstone.py", name, *options]
        begin_s = time.monotonic()
        processes: list[subprocess.Popen] = []
        try:
            with open(out, "w") as file:
                how: dict[str, Any] = {"stdout": file, "stderr": file, "stdin": subprocess.DEVNULL}
                for command, variables in _commands(arguments, torchrun, n_ranks):
                    how |= {"cwd": self.folder, "env": environment | variables, "start_new_session": True}
                    processes.append(subprocess.Popen(command, **how))
            awaited = list(processes)
            if fault and fault.kind == "SIGSTOP":
                awaited.pop(fault.rank)
            self._wait(awaited, out)
            run = _new_run(n_ranks)
            run.statuses = [process.poll() for process in awaited]
            run.took_s = time.monotonic() - begin_s
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
        run = _new_run()
        if out.exists():
            run.out = out.read_text(encoding="utf-8", errors="replace")
        run.read_notes(notes)
        return state, run

    @functools.cached_property
    def undisturbed(self) -> Run:
        """The first run, without a fault."""
        return self("undisturbed", torchrun=True)

    @property
    def begin(self) -> Path:
        """The file with rank 0's weights before the first update of the first run."""
        return self.folder / "notes-1" / "begin-0.pt"

    @functools.cached_property
    def three(self) -> Run:
        """A run of three ranks that ends when the checkpoint of its second epoch is to be renamed."""
        return self("three", Fault(-1, 2 * N_UPDATES_OF_THREE, "rename"), n_ranks=N_THREE)

    @functools.cached_property
    def warned(self) -> Run:
        """Another run of two ranks. In the middle of its second epoch, rank 1 gets SIGUSR1."""
        return self("killed", Fault(1, N_UPDATES + 2, "SIGUSR1"))

    @property
    def pass_of_sigterm(self) -> int:
        """The training pass after the warned run in which torchrun gets SIGTERM: the last one of the second epoch."""
        return 2 * N_UPDATES - self.warned.n_updates[0]

    @functools.cached_property
    def terminated(self) -> Run:
        """The start after the warned run."""
        return self("killed", Fault(0, self.pass_of_sigterm, "torchrun"), torchrun=True)

    @property
    def n_done(self) -> int:
        """The number of updates after the start that got SIGTERM."""
        return self.warned.n_updates[0] + self.terminated.n_updates[0]

    @functools.cached_property
    def stopped(self) -> Run:
        """The next start. In its second training pass, rank 1 is stopped and gives no answer."""
        assert self.n_done  # the starts before this one
        for timeout_s in _SHORT_TIMEOUTS_S:
            run = self("killed", Fault(1, 2, "SIGSTOP"), timeout_s=timeout_s)
            if all(run.updates.values()) or not re.search(r"[Tt]imed out|[Tt]imeout", run.last_error):
                break
        return run

    def _make_notes_folder(self) -> Path:
        self._n_starts += 1
        notes = self.folder / f"notes-{self._n_starts}"
        notes.mkdir()
        return notes


def _new_run(n_ranks: int = 2) -> Run:
    return Run({rank: [] for rank in range(n_ranks)})


def _options(n_epochs: int, timeout_s: float, batch: int = BATCH) -> list[str]:
    return f"--epochs {n_epochs} --batch {batch} --rate {RATE} --timeout {timeout_s:g}".split()


def _environment() -> dict[str, str]:
    """Return variables without those of this process's own Slurm job, ranks and course."""
    own = ("SLURM_", "TORCHELASTIC", "PYTHONPATH", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    environment |= {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return environment | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def _commands(arguments: list[str], torchrun: bool, n_ranks: int) -> list[tuple[list[str], dict[str, str]]]:
    """Return the command of each process and its variables: torchrun's command, or one for each rank."""
    if torchrun:
        options = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_ranks}"]
        return [([sys.executable, *options, *arguments], {})]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0"}
    shared |= {"WORLD_SIZE": str(n_ranks), "LOCAL_WORLD_SIZE": str(n_ranks)}
    command = [sys.executable, *arguments]
    return [(command, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(n_ranks)]


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
