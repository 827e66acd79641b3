"""Processes that train a ``TinyRun`` and really die: for chapter 10's exercise, whose answer has to survive that.

In: a function that trains a run and writes checkpoints, and the moment at which its process is to die. Out: a file of
notes, line by line: the state before each update, the loss after it, each file that took its name.

A process dies by SIGKILL, or in the midst of writing: then the system ends it, since a file has grown to a limit whose
signal is not caught.
"""

import hashlib
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dltutorial.course.checks.tiny_run import TinyRun

PARTS = ("model", "optimizer", "scheduler", "order", "random")


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
        renames, unsynced: files that took their name; those of them without a sync before.
    """

    began: tuple[int, dict[str, str]] | None = None
    losses: dict[int, float] = field(default_factory=dict)
    ended: str = ""
    told: str = ""
    renames: int = 0
    unsynced: int = 0


def train_until_killed(fn: Callable, folder: Path, every: int, log: Path, kill: Kill) -> None:
    """What one process of the answer does; it is noted in a file, line by line."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    synced = []

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
        synced.append(handle)

    def hear(event: str, _args: tuple) -> None:
        if event == "os.rename":
            if armed and kill.at_rename:
                die()
            note("rename", len(synced))
            synced.clear()

    armed: list[bool] = []
    os.fsync = fsync
    sys.addaudithook(hear)
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
