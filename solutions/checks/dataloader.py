"""Checks of chapter 03's second exercise: the options of torch's ``DataLoader``.

The loader reads small data sets whose samples contain the number of the process that read them.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect

TIMEOUT_S = 60.0  # for a batch from a worker, on a busy machine


class _Noted(Dataset):
    """Sample i is (i, number of the process that read it)."""

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
        hint = "Return torch's DataLoader itself. The training loop iterates over it."
        raise Wrong("a torch.utils.data.DataLoader", type(loader).__name__, hint)
    loader.timeout = TIMEOUT_S if loader.num_workers else 0  # type: ignore[assignment]
    return loader


def _epoch(loader: DataLoader) -> tuple[list[list[int]], set[int]]:
    """Return the samples of each batch, and the processes that read them."""
    batches = [batch.tolist() for batch in loader]
    return [[i for i, _ in batch] for batch in batches], {pid for batch in batches for _, pid in batch}


def _every_sample(fn: Callable) -> None:
    """Batches of the requested size, each sample once in an epoch"""
    batches, _ = _epoch(_made(fn, 24, 6, 0))
    expect(
        [len(batch) for batch in batches],
        [6] * 4,
        "24 samples are four batches of 6: pass the batch size.",
    )
    seen = sorted(i for batch in batches for i in batch)
    expect(seen, list(range(24)), "An epoch uses each sample once: shuffle, do not draw with replacement.")


def _new_order(fn: Callable) -> None:
    """A new order in every epoch"""
    loader = _made(fn, 64, 8, 0)
    first, second = ([i for batch in _epoch(loader)[0] for i in batch] for _ in range(2))
    if first == list(range(64)):
        raise Wrong("the samples in random order", "in the order of the file", "Training wants them shuffled.")
    if first == second:
        raise Wrong("another order in the second epoch", "the same order", "Do not fix the order or seed it again.")


def _whole_batches(fn: Callable) -> None:
    """The samples that do not fill the last batch are left out"""
    batches, _ = _epoch(_made(fn, 27, 8, 0))
    hint = (
        "27 samples are three batches of 8, and 3 samples remain. Do not use them: leave them out, "
        "because a step with 3 samples would count as much as a step with 8."
    )
    expect([len(batch) for batch in batches], [8, 8, 8], hint)


def _in_workers(fn: Callable) -> None:
    """The requested number of workers read, and not the main process"""
    loader = _made(fn, 32, 4, 2)
    expect(loader.num_workers, 2, "The number of workers is an argument: hand it on to DataLoader.")
    _, processes = _epoch(loader)
    if os.getpid() in processes:
        raise Wrong(
            "samples read by workers", "samples read by the main process", "num_workers is the number of processes."
        )
    _, again = _epoch(loader)
    if processes != again:
        hint = "New workers were started for the second epoch. With real data this can take seconds in each epoch."
        raise Wrong("the same workers in the second epoch", "other workers", hint)


def _knobs(fn: Callable) -> None:
    """Three batches ahead, and pinned memory for a GPU"""
    loader = _made(fn, 8, 4, 1)
    hint = "Each worker loads three batches ahead. The option is prefetch_factor."
    expect(loader.prefetch_factor, 3, hint)
    hint = "Pinned memory is for a GPU. Use it if there is a GPU, and only there (torch.cuda.is_available())."
    expect(bool(loader.pin_memory), torch.cuda.is_available(), hint)


_HINTS = (
    "DataLoader needs seven arguments besides the data set. Each of them is a short expression.",
    "What does DataLoader do with prefetch_factor and persistent_workers if there are no workers?",
    "The reference page of torch.utils.data explains each option: shuffle, drop_last, pin_memory, …",
)
EXERCISE = Exercise(
    name="dataloader",
    chapter="03",
    cases=(_every_sample, _new_order, _whole_batches, _in_workers, _knobs),
    hints=_HINTS,
    deadline_s=180.0,
)
