"""Processes that train a ``TinyRun`` and really die, for the checks of chapter 10's exercise.

The input is the learner's function, which trains a run and writes checkpoints, and the moment at which its process
dies. The output is a log file with one line for each update, for each file that gets its final name, for each removed
checkpoint, and for each exception in the learner's code. ``read_log`` makes a ``Process`` of it.

A process dies by SIGKILL, or while it writes a file. In the second case the operating system ends the process, because
the file has reached a limit of its size and the process does not catch the signal.

Source: https://man7.org/linux/man-pages/man2/setrlimit.2.html
"""

import hashlib
import io
import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import dltutorial
from dltutorial.course.checks.tiny_run import TinyRun

PARTS = ("model", "optimizer", "scheduler", "order", "random")
# A learner writes no code in these folders: this folder, the course, Python and installed packages.
_OTHERS = (str(Path(__file__).parent), str(Path(dltutorial.__file__).parent), *set(sysconfig.get_paths().values()))
_TAIL_BYTES = 64  # the end of a checkpoint that is written by a call of its own


@dataclass(frozen=True)
class Kill:
    """When a process dies.

    Attributes:
        at_step: The number of updates. Without another attribute, the process dies when it asks for the next update.
        at_rename: After that update, the process dies before the next file gets its final name.
        at_share: After that update, the process dies when a file has this share of the size of the files before it.
    """

    at_step: int | None = None
    at_rename: bool = False
    at_share: float | None = None


@dataclass
class Process:
    """What one process did.

    Attributes:
        initial: The updates made and the digests of the parts at the first update; None if there was no update.
        losses: The loss of each update, by its number.
        ended_by: The signal or the name of the exception that ended the process, or an empty string.
        message: The message of the exception.
        renames: For each file that got its final name how it was written: "whole"; "unsynced"; "unflushed" if the sync
            came before all bytes were passed to the operating system; "elsewhere" if it was in another folder.
        n_remaining: How many checkpoints remained after each removal of a checkpoint.
        caught: The last exception that was raised inside the learner's function.
    """

    initial: tuple[int, dict[str, str]] | None = None
    losses: dict[int, float] = field(default_factory=dict)
    ended_by: str = ""
    message: str = ""
    renames: list[str] = field(default_factory=list)
    n_remaining: list[int] = field(default_factory=list)
    caught: str = ""


def read_log(log: Path) -> Process:
    """Return what a process wrote into its log file, which may not exist."""
    process = Process()
    if not log.exists():
        return process
    for line in log.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        words = rest.split(" ")
        if kind == "before" and process.initial is None:
            process.initial = int(words[0]), dict(zip(PARTS, words[1:], strict=True))
        elif kind == "loss":
            process.losses[int(words[0])] = float.fromhex(words[1])
        elif kind == "rename":
            process.renames.append(words[0])
        elif kind == "remaining":
            process.n_remaining.append(int(words[0]))
        elif kind == "caught":
            process.caught = rest
    return process


class _Watcher:
    """Logs what the learner's function does in this process, and ends the process at the given moment."""

    def __init__(self, folder: Path, log: Path, kill: Kill) -> None:
        self.folder = folder
        self.kill = kill
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._is_armed = False  # whether the updates before the kill are made
        self._synced_bytes: dict[tuple[int, int], int] = {}  # of each file at its last sync, by device and inode
        self._named: set[Path] = set()  # files with a final name

    def log(self, *words: object) -> None:
        """Write one line without a buffer, so that a kill loses nothing."""
        os.write(self._log, (" ".join(map(str, words)) + "\n").encode())

    def install(self) -> None:
        """Watch files, syncs, renames and exceptions of this process from now on."""
        fsync, save = os.fsync, torch.save

        def log_and_sync(handle: Any) -> None:
            fsync(handle)
            status = os.fstat(handle)
            self._synced_bytes[status.st_dev, status.st_ino] = status.st_size

        def save_without_flush(state: Any, file: Any, *args: Any, **options: Any) -> None:
            """Save as torch.save does, but without the flush at its end, which no documentation promises."""
            if not hasattr(file, "write"):
                save(state, file, *args, **options)
                return
            buffer = io.BytesIO()
            save(state, buffer, *args, **options)
            file.write(buffer.getvalue()[:-_TAIL_BYTES])
            file.write(buffer.getvalue()[-_TAIL_BYTES:])

        os.fsync = log_and_sync  # type: ignore[assignment]
        torch.save = save_without_flush  # type: ignore[assignment]
        sys.addaudithook(self._on_audit_event)
        sys.settrace(self._trace)

    def before_update(self, run: TinyRun) -> None:
        """Log the state of the run, and die if this is the moment."""
        self.log("before", run.step, *digests(run).values())
        if run.step == self.kill.at_step:
            if self.kill.at_share is None and not self.kill.at_rename:
                _die()
            self._is_armed = True

    def after_update(self, run: TinyRun, loss: float) -> None:
        """Log the loss. If the process is to die while it writes, limit the size of its files from now on."""
        if self._is_armed and self.kill.at_share is not None:
            sizes_bytes = [path.stat().st_size for path in self.folder.rglob("*") if path.is_file()]
            limit_bytes = max(1, int(self.kill.at_share * max(sizes_bytes, default=10_000)))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            hard_limit_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard_limit_bytes))
        self.log("loss", run.step, loss.hex())

    def _on_audit_event(self, event: str, args: tuple) -> None:
        """Watch renames and removals, of which Python tells an audit hook."""
        if event == "os.rename":
            if self._is_armed and self.kill.at_rename:
                _die()
            source, name = (Path(os.fsdecode(path)) for path in args[:2])
            if source.exists():
                self.log("rename", self._how_written(source))
                self._named.add(name.resolve())
        elif event == "os.remove":
            removed = Path(os.fsdecode(args[0])).resolve()
            if removed in self._named:
                self._named.remove(removed)
                self.log("remaining", len(self._named))

    def _how_written(self, source: Path) -> str:
        """Return how a file, or the files of a folder, were written: see ``Process.renames``."""
        if self.folder.resolve() not in source.resolve().parents:
            return "elsewhere"
        files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
        for file in files:
            status = file.stat()
            synced_bytes = self._synced_bytes.get((status.st_dev, status.st_ino))
            if synced_bytes is None:
                return "unsynced"
            if synced_bytes != status.st_size:
                return "unflushed"
        return "whole"

    def _trace(self, frame: Any, event: str, arg: Any) -> Any:
        """Log exceptions in the learner's frames."""
        if event == "exception" and not issubclass(arg[0], (StopIteration, NotImplementedError)):
            self.log("caught", f"{arg[0].__name__}: {arg[1]}".partition("\n")[0][:120])
        is_learners = not frame.f_code.co_filename.startswith((*_OTHERS, "<frozen"))
        return self._trace if is_learners else None


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train_until_killed(fn: Callable, folder: Path, every: int, log: Path, kill: Kill) -> None:
    """Run the learner's function in this process until it ends or the process dies.

    Args:
        fn: The learner's function.
        folder: The folder of the checkpoints.
        every: The number of updates between two checkpoints.
        log: The log file.
        kill: When the process dies.
    """
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    watcher = _Watcher(folder, log, kill)

    class WatchedRun(TinyRun):
        def update(self) -> float:
            watcher.before_update(self)
            loss = super().update()
            watcher.after_update(self, loss)
            return loss

    watcher.install()
    fn(WatchedRun(), folder, every)


def digests(run: Any) -> dict[str, str]:
    """Return a short text for the state of each part. Equal texts mean equal states."""
    states = {name: getattr(run, name).state_dict() for name in PARTS if name != "random"}
    states["random"] = torch.get_rng_state()
    return {name: _digest(state) for name, state in states.items()}


def _digest(state: Any) -> str:
    """Return the digest of nested containers, tensors and numbers."""
    if isinstance(state, dict):
        text = repr([(str(key), _digest(value)) for key, value in state.items()]).encode()
    elif isinstance(state, (list, tuple)):
        text = repr([_digest(value) for value in state]).encode()
    elif isinstance(state, torch.Tensor):
        text = repr((state.shape, state.dtype)).encode() + state.contiguous().numpy().tobytes()
    else:
        text = repr(state).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def train_without_kill() -> tuple[dict[int, dict[str, str]], dict[int, float]]:
    """Return the digests of the parts after each number of updates, and the loss of each update."""
    torch.set_num_threads(1)
    run = TinyRun()
    parts = {}
    losses = {}
    for number in range(1, run.steps + 1):
        parts[run.step] = digests(run)
        losses[number] = run.update()
    parts[run.step] = digests(run)
    return parts, losses
