"""What the check adds to samples.py: it takes notes of a script's training, and strikes at a given moment.

In: the folder for the notes and the blow, by the environment. Out: a file of notes for each rank, line by line: each
training pass of the network with its samples, dtypes and a probe of the weights; which signals are handled; each call
of ``torch.save``; whether the process group was there still at the end. The learner's script imports it, in a folder
where nothing of the course is: so this file imports nothing of it, either.
"""

import atexit
import json
import multiprocessing
import multiprocessing.connection
import os
import resource
import select
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported after init_process_group, it keeps gloo's threads alive until Python ends

RANK = int(os.environ.get("RANK", 0))
WARNINGS = (signal.SIGTERM, signal.SIGUSR1)
PATIENCE_S = 20.0  # for a signal that torchrun hands on


def probe(weights: torch.Tensor) -> list[float]:
    """Four numbers that tell one state of the weights, a row, from another."""
    generator = torch.Generator().manual_seed(1)
    return [float(torch.randn(len(weights), generator=generator, dtype=torch.double) @ weights) for _ in range(4)]


def watch(network: type) -> None:
    """Take notes of this process from now on.

    ``CAPSTONE_NOTES`` names their folder. ``CAPSTONE_BLOW`` is "RANK PASS WHAT": in its PASS-th training pass that rank
    (all, if it is -1) sends itself the signal WHAT; or "torchrun", sends its parent SIGTERM and waits until that has
    been handed on; or "writing", is killed in the midst of the next file that is half as large as a checkpoint.
    """
    notes = Path(os.environ["CAPSTONE_NOTES"])
    rank, at, what = os.environ.get("CAPSTONE_BLOW", "0 0 none").split()
    forward, save, passes = network.forward, torch.save, []

    def note(**known: Any) -> None:
        with open(notes / f"rank-{RANK}.jsonl", "a") as file:
            file.write(json.dumps(known) + "\n")

    def watched(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = forward(self, x)
        if torch.is_grad_enabled() and self.training:
            if not passes:
                save(self.state_dict(), notes / f"begin-{RANK}.pt")
                note(what="begin", handles=[s.name for s in WARNINGS if callable(signal.getsignal(s))])
            passes.append(True)
            note(
                what="pass",
                samples=[round(number) for number in x[:, 0].tolist()],
                dtypes=[str(y.dtype), str(next(self.parameters()).dtype)],
                probe=probe(torch.cat([p.detach().double().flatten().cpu() for p in self.parameters()])),
                time_s=time.monotonic(),
            )
            if int(rank) in (RANK, -1) and len(passes) == int(at):
                strike(what, notes)
        return y

    def noted_save(state: Any, file: Any, *more: Any, **options: Any) -> None:
        name = getattr(file, "name", file)
        if isinstance(name, (str, os.PathLike)):  # no buffer in memory
            note(what="save", file=str(Path(name).resolve()))
        save(state, file, *more, **options)

    network.forward, torch.save = watched, noted_save  # type: ignore[attr-defined]
    atexit.register(lambda: note(what="end", group=dist.is_initialized(), time_s=time.monotonic()))


def strike(what: str, notes: Path) -> None:
    """The blow."""
    if what == "torchrun":
        workers = [one.sentinel for one in multiprocessing.active_children()]  # it reaches a rank's processes, too
        came, goes = os.pipe()
        os.set_blocking(goes, False)
        signal.set_wakeup_fd(goes)
        os.kill(os.getppid(), signal.SIGTERM)
        select.select([came], [], [], PATIENCE_S)
        signal.set_wakeup_fd(-1)
        if workers:  # one that dies of it is not to be overtaken by the training's end
            multiprocessing.connection.wait(workers, 2.0)
    elif what == "writing":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        size = (notes / f"begin-{RANK}.pt").stat().st_size  # the weights alone; a checkpoint holds as much again
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    else:
        os.kill(os.getpid(), getattr(signal, what))
