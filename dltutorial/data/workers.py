"""torch's ``DataLoader`` with worker processes that survive the signals which stop a training run.

In: a data set, and the keys of each batch. Out: the batches.
"""

import atexit
import contextlib
import functools
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from dltutorial.data.formats import first_line
from dltutorial.errors import DataError


def worker_batches(
    dataset: Dataset, keys: Iterable[list], workers: int, collate: Callable | None = None, pin: bool = False
) -> Iterator[Any]:
    """Batches of ``dataset[key]``.

    Args:
        dataset: the samples, by key.
        keys: the keys of each batch.
        workers: number of processes that read; with 0 this process reads.
        collate: makes a batch of samples. The default is torch's.
        pin: give batches in pinned memory, which a GPU copies without waiting.

    Raises:
        DataError: A worker process died, for example because it was out of memory.
    """
    loader = DataLoader(
        dataset,
        batch_sampler=keys,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin,
        worker_init_fn=_ignore_stop_signals,
        generator=torch.Generator().manual_seed(0),  # so that the loader draws no number of the global generator
    )
    batches = iter(loader)
    end_workers = functools.partial(_end_workers, batches)
    atexit.register(end_workers)  # for a program that ends while it still holds the batches
    try:
        with workers_in_one_line():
            yield from batches
    finally:
        atexit.unregister(end_workers)
        end_workers()


def _ignore_stop_signals(_worker: int) -> None:
    """Ignore the signals that Slurm, torchrun or Ctrl-C send to all processes of a run.

    The training process needs its workers until the last step, after which it ends them.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def _end_workers(batches: Any) -> None:
    """End the worker processes. They are killed, because they ignore the SIGTERM that torch sends."""
    processes = getattr(batches, "_workers", [])
    if processes:
        batches._shutdown_workers()
    for process in processes:
        process.kill()


@contextlib.contextmanager
def workers_in_one_line() -> Iterator[None]:
    """Turn torch's error about a worker that died into one line. torch may raise it during a training step, too.

    Raises:
        DataError: A worker process died.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        why = first_line(error.__cause__ or error).rstrip(".")
        raise DataError(f"{why}; lower workers or the batch size, or give it more memory") from None
