"""Processes that train a ``TinyRun`` and really die: for chapter 10's exercise, whose answer has to survive that.

In: a function that trains a run and writes checkpoints, and the moment at which its process is to die. Out: a file of
notes, line by line: the state before each update, the loss after it, each file that took its name, and how much of it
had reached the disk; checkpoints that went; exceptions that the answer caught.

A process dies by SIGKILL, or in the midst of writing: then the system ends it, since a file has grown to a limit whose
signal is not caught.
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
# Files in which no learner writes: this folder, the course, Python, installed packages.
_NOT_THEIRS = (str(Path(__file__).parent), str(Path(dltutorial.__file__).parent), *set(sysconfig.get_paths().values()))


@dataclass(frozen=True)
class Kill:
    """When a process dies.

    Attributes:
        at_step: with nothing else, when so many updates are made and the next is asked for.
        at_rename: instead, after that update, before the next file takes its name.
        at_share: instead, after that update, when a file has this share of the size of those before it.
    """

    at_step: int | None = None
    at_rename: bool = False
    at_share: float | None = None


@dataclass
class Process:
    """What one process did.

    Attributes:
        began: updates made, and digests of the parts, when the first update was asked for; None if none was.
        losses: by the number of the update.
        ended: the signal that killed it, the name of an exception, or "".
        told: the exception's words.
        renames: files that took their name, and for each how it was written: "whole"; "unsynced"; "unflushed", the
            sync came before all bytes were with the system; "elsewhere", not in the folder of its name.
        fewest: checkpoints that stayed each time when one was removed.
        caught: the last exception that passed through the answer's own lines.
    """

    began: tuple[int, dict[str, str]] | None = None
    losses: dict[int, float] = field(default_factory=dict)
    ended: str = ""
    told: str = ""
    renames: list[str] = field(default_factory=list)
    fewest: list[int] = field(default_factory=list)
    caught: str = ""


def train_until_killed(fn: Callable, folder: Path, every: int, log: Path, kill: Kill) -> None:
    """What one process of the answer does; it is noted in a file, line by line."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    synced: dict[tuple[int, int], int] = {}  # bytes of each file when it was last synced
    named: set[Path] = set()

    def note(*words: object) -> None:
        os.write(out, (" ".join(map(str, words)) + "\n").encode())

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    class Watched(TinyRun):
        def update(self) -> float:
            note("before", self.step, *digests(self).values())
            if self.step == kill.at_step:
                if kill.at_share is None and not kill.at_rename:
                    die()
                armed.append(True)
            loss = super().update()
            if armed and kill.at_share is not None:
                size = max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=10_000)
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                limit = max(1, int(kill.at_share * size)), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
                resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            note("loss", self.step, loss.hex())
            return loss

    def fsync(handle: int, really: Callable = os.fsync) -> None:
        really(handle)
        found = os.fstat(handle)
        synced[found.st_dev, found.st_ino] = found.st_size

    def save(state: Any, file: Any, *more: Any, really: Callable = torch.save, **options: Any) -> None:
        """As torch.save, but without the flush at its end, which no documentation promises."""
        if not hasattr(file, "write"):
            return really(state, file, *more, **options)
        really(state, whole := io.BytesIO(), *more, **options)
        file.write(whole.getvalue()[:-64])
        file.write(whole.getvalue()[-64:])

    def how_written(source: Path) -> str:
        if folder.resolve() not in source.resolve().parents:
            return "elsewhere"
        for file in [source] if source.is_file() else filter(Path.is_file, source.rglob("*")):
            found = file.stat()
            on_disk = synced.get((found.st_dev, found.st_ino))
            if on_disk != found.st_size:
                return "unsynced" if on_disk is None else "unflushed"
        return "whole"

    def hear(event: str, args: tuple) -> None:
        if event == "os.rename":
            if armed and kill.at_rename:
                die()
            source, name = (Path(os.fsdecode(path)) for path in args[:2])
            if source.exists():
                note("rename", how_written(source))
                named.add(name.resolve())
        elif event == "os.remove" and (gone := Path(os.fsdecode(args[0])).resolve()) in named:
            named.remove(gone)
            note("left", len(named))

    def watch(frame: Any, event: str, arg: Any) -> Any:
        if event == "exception" and not issubclass(arg[0], (StopIteration, NotImplementedError)):
            note("caught", f"{arg[0].__name__}: {arg[1]}".partition("\n")[0][:120])
        return None if frame.f_code.co_filename.startswith((*_NOT_THEIRS, "<frozen")) else watch

    armed: list[bool] = []
    os.fsync, torch.save = fsync, save
    sys.addaudithook(hear)
    sys.settrace(watch)
    fn(Watched(), folder, every)


def digests(run: Any) -> dict[str, str]:
    """A short name for the state of each part; equal for equal states only."""
    states = {name: getattr(run, name).state_dict() for name in PARTS[:-1]} | {"random": torch.get_rng_state()}
    return {name: _digest(state) for name, state in states.items()}


def _digest(state: Any) -> str:
    """Of nested containers, tensors and numbers. Functions have no state of their own."""
    if isinstance(state, dict):
        text = repr([(str(key), _digest(value)) for key, value in state.items() if key != "lr_lambdas"]).encode()
    elif isinstance(state, (list, tuple)):
        text = repr([_digest(value) for value in state]).encode()
    elif isinstance(state, torch.Tensor):
        text = repr((state.shape, state.dtype)).encode() + state.contiguous().numpy().tobytes()
    else:
        text = repr(state).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def never_stopped() -> tuple[dict[int, dict[str, str]], dict[int, float]]:
    """Digests of the parts after each number of updates, and the losses."""
    torch.set_num_threads(1)
    run, parts, losses = TinyRun(), {}, {}
    for number in range(1, run.steps + 1):
        parts[run.step] = digests(run)
        losses[number] = run.update()
    return parts | {run.step: digests(run)}, losses
