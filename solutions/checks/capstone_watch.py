"""Watch one process of the capstone from inside, and inject the fault that the check asks for.

The input is two environment variables. ``CAPSTONE_NOTES`` names the folder for the notes. ``CAPSTONE_FAULT`` is "RANK
PASS KIND" (see ``Fault`` in ``capstone_script.py``). The output is a file with one line for each training pass, each
call of ``torch.save``, and the end of the script. The learner's script imports this file in a folder where the course
may not be installed, so this file does not import the course. It does not import ``torch.distributed.nn`` either. This
import before ``init_process_group`` would change how a script ends: if its DDP model exists longer than the process
group, gloo's threads and the script could wait for each other.

Source: https://docs.python.org/3/library/signal.html
"""

import atexit
import json
import multiprocessing
import multiprocessing.connection
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

RANK = int(os.environ.get("RANK", 0))
WARNINGS = (signal.SIGTERM, signal.SIGUSR1)
PATIENCE_S = 20.0  # for a signal that torchrun passes on


def probe(weights_N: torch.Tensor) -> list[float]:
    """Return four random projections of the weights, which differ between different weights."""
    generator = torch.Generator().manual_seed(1)
    return [float(torch.randn(len(weights_N), generator=generator, dtype=torch.double) @ weights_N) for _ in range(4)]


def watch(network: type) -> None:
    """Write notes about this process from now on, and inject the fault.

    Args:
        network: The class of the network whose training passes count.
    """
    notes = Path(os.environ["CAPSTONE_NOTES"])
    fault_rank, fault_pass, fault_kind = os.environ.get("CAPSTONE_FAULT", "0 0 none").split()
    forward = network.forward  # type: ignore[attr-defined]
    save = torch.save
    saved: list[str] = []  # names of the files that torch.save wrote after the injection
    n_passes = 0

    def note(**values: Any) -> None:
        with open(notes / f"rank-{RANK}.jsonl", "a") as file:
            file.write(json.dumps(values) + "\n")

    def watched_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        nonlocal n_passes
        y = forward(self, x)
        if not (torch.is_grad_enabled() and self.training):
            return y
        if n_passes == 0:
            save(self.state_dict(), notes / f"begin-{RANK}.pt")
            note(what="begin", handles=[s.name for s in WARNINGS if callable(signal.getsignal(s))])
        n_passes += 1
        note(
            what="pass",
            samples=[round(number) for number in x[:, 0].tolist()],
            dtypes=[str(y.dtype), str(next(self.parameters()).dtype)],
            probe=probe(torch.cat([p.detach().double().flatten().cpu() for p in self.parameters()])),
            time_s=time.monotonic(),
        )
        if int(fault_rank) in (RANK, -1) and n_passes == int(fault_pass):
            saved.clear()
            inject(fault_kind, notes, saved)
        return y

    def watched_save(state: Any, file: Any, *more: Any, **options: Any) -> None:
        name = getattr(file, "name", file)
        if isinstance(name, (str, os.PathLike)):  # a buffer in memory has no name
            note(what="save", file=str(Path(name).resolve()))
            saved.append(str(Path(name).resolve()))
        save(state, file, *more, **options)

    network.forward = watched_forward  # type: ignore[attr-defined]
    torch.save = watched_save  # type: ignore[assignment]
    atexit.register(lambda: note(what="end", group=dist.is_initialized()))


def inject(kind: str, notes: Path, saved: list[str]) -> None:
    """Inject a fault into this process. ``saved`` gets the names of the files that torch.save writes from now on."""
    if kind == "torchrun":
        _terminate_torchrun()
    elif kind == "rename":
        _die_before_rename(saved)
    elif kind == "writing":
        _limit_next_file(notes)
    else:
        os.kill(os.getpid(), getattr(signal, kind))


def _terminate_torchrun() -> None:
    """Send SIGTERM to torchrun, and wait until torchrun has passed the signal on to this rank."""
    workers = [process.sentinel for process in multiprocessing.active_children()]  # they get the signal, too
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    os.kill(os.getppid(), signal.SIGTERM)
    select.select([read_end], [], [], PATIENCE_S)
    signal.set_wakeup_fd(-1)
    if workers:  # the training must not end before a worker that dies of the signal
        multiprocessing.connection.wait(workers, 2.0)


def _limit_next_file(notes: Path) -> None:
    """Let the operating system kill this process as soon as a file is larger than half of the weights."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    weights_bytes = (notes / f"begin-{RANK}.pt").stat().st_size  # a checkpoint is larger
    hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (weights_bytes // 2, hard_limit))


def _die_before_rename(saved: list[str]) -> None:
    """Let this process kill itself before it renames a new file. A file of an earlier checkpoint may be renamed."""

    def on_event(event: str, arguments: tuple) -> None:
        if event == "os.rename" and (not saved or str(Path(os.fsdecode(arguments[0])).resolve()) in saved):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(on_event)
