"""Checks of chapter 03's second exercise: torch's own ``DataLoader`` with its knobs right.

The loader is made from small data sets that note in which process each sample was read.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect

PATIENCE_S = 60.0  # for a batch out of a worker, on a busy machine


class _Noted(Dataset):
    """Sample i is (i, the process that read it)."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self.n:
            raise IndexError(index)
        return torch.tensor([index, os.getpid()])


def _made(fn: Callable, n: int, batch_size: int, workers: int) -> DataLoader:
    loader: Any = fn(_Noted(n), batch_size, workers)
    if not isinstance(loader, DataLoader):
        hint = "Return torch's DataLoader itself; who calls you goes through it."
        raise Wrong("a torch.utils.data.DataLoader", type(loader).__name__, hint)
    loader.timeout = PATIENCE_S if loader.num_workers else 0  # type: ignore[assignment]
    return loader


def _epoch(loader: DataLoader) -> tuple[list[list[int]], set[int]]:
    """The samples of each batch, and the processes that read them."""
    batches = [batch.tolist() for batch in loader]
    return [[i for i, _ in batch] for batch in batches], {pid for batch in batches for _, pid in batch}


def _every_sample(fn: Callable) -> None:
    """Batches of the size asked for, every sample once in an epoch"""
    batches, _ = _epoch(_made(fn, 24, 6, 0))
    expect([len(batch) for batch in batches], [6] * 4, "24 samples in batches of 6: give DataLoader the batch size.")
    seen = sorted(i for batch in batches for i in batch)
    expect(seen, list(range(24)), "In an epoch every sample comes once: shuffle, do not draw with replacement.")


def _new_order(fn: Callable) -> None:
    """A new order in every epoch"""
    loader = _made(fn, 64, 8, 0)
    first, second = ([i for batch in _epoch(loader)[0] for i in batch] for _ in range(2))
    if first == list(range(64)):
        raise Wrong("the samples in random order", "in the order of the file", "Training wants them shuffled.")
    if first == second:
        raise Wrong("another order in the second epoch", "the same again", "Do not fix the order, or seed it anew.")


def _whole_batches(fn: Callable) -> None:
    """The rest that fills no batch is left out"""
    batches, _ = _epoch(_made(fn, 27, 8, 0))
    hint = (
        "27 samples are three batches of 8, and 3 samples that fill none: leave them out (a step of 3 weighs as much)."
    )
    expect([len(batch) for batch in batches], [8, 8, 8], hint)


def _in_workers(fn: Callable) -> None:
    """So many workers read, not this process"""
    loader = _made(fn, 32, 4, 2)
    expect(loader.num_workers, 2, "The number of workers is given: hand it on.")
    _, processes = _epoch(loader)
    if os.getpid() in processes:
        raise Wrong("samples read by workers", "samples read here", "num_workers says how many processes read.")
    _, again = _epoch(loader)
    if processes != again:
        hint = "New workers were started for the second epoch. On a real data set that takes seconds, in every epoch."
        raise Wrong("the same workers in the second epoch", "others", hint)


def _knobs(fn: Callable) -> None:
    """Batches ahead, and memory that a GPU can copy from"""
    loader = _made(fn, 8, 4, 1)
    hint = "Three batches of every worker may wait: prefetch_factor."
    expect(loader.prefetch_factor, 3, hint)
    hint = "Pinned memory is for a GPU: pin it where there is one, and only there (torch.cuda.is_available())."
    expect(bool(loader.pin_memory), torch.cuda.is_available(), hint)


_HINTS = (
    "Seven arguments of DataLoader, none of them needs more than a short expression.",
    "What does DataLoader say to prefetch_factor and persistent_workers when there are no workers?",
    "The reference page of torch.utils.data names each knob: shuffle, drop_last, pin_memory, …",
)
EXERCISE = Exercise(
    name="dataloader",
    chapter="03",
    cases=(_every_sample, _new_order, _whole_batches, _in_workers, _knobs),
    hints=_HINTS,
    deadline_s=180.0,
)
