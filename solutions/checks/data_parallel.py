"""Checks of the second part of chapter 09's exercise: a training script with torch's DistributedDataParallel.

The answer runs on two ranks. The checks compare the samples that each rank reads in each epoch, the forward passes
after which DDP communicates, and the weights after training. The expected weights are those of one process that trains
on the samples of both ranks.

Source: Li et al. 2020, arXiv:2006.15704
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.rank_harness import Mistakes, expect_close_on_ranks, run_on_ranks

_WORLD_SIZE = 2
_SAMPLES = 24
_SAMPLES_OF_RANK = _SAMPLES // _WORLD_SIZE
_EPOCHS = 2
_BATCH = 8  # samples of all ranks in one update
_UPDATES = _EPOCHS * _SAMPLES // _BATCH
_LEARNING_RATE = 0.1
_DIFFERENT_STEPS = "One rank takes more steps than the other, or calls something that the other does not."
_WRAPPER = "Names that begin with module. are those of the wrapper: take the state_dict of what is inside it."
_NO_SAMPLER = "Every rank reads everything. A DistributedSampler gives each rank its own part."
_TWO_ORDERS = "Some samples are read by both ranks, others by none: both must cut one common order."
_SAME_ORDER = "Each epoch has the order of the first one: tell the sampler, sampler.set_epoch(epoch)."
_TOO_LATE = "Call set_epoch() before the loop over the loader begins. With workers, a later call has no effect."
_NO_DDP = "Nothing is averaged: wrap the model in DistributedDataParallel, and call the wrapper."
_BATCH_SIZE = "batch counts the samples of all ranks in one update: divide it by the ranks, and by the pieces."
_ALL_SEND = "All pieces send. Inside model.no_sync() none does; the forward pass has to be inside, too."
_NOT_ZEROED = "Gradients of earlier updates stay: zero_grad() after each step."
_NOT_DIVIDED = "The pieces add up to a sum: divide each one's loss by pieces."


class RecordingDataset(Dataset):
    """A data set of 24 samples that records which samples are read.

    Attributes:
        indices: The indices of the samples, in the order in which they were read.
    """

    def __init__(self) -> None:
        """Draw the samples from a fixed seed."""
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(_SAMPLES, 3, generator=generator)
        self.y = torch.randn(_SAMPLES, 2, generator=generator)
        self.indices: list[int] = []

    def __len__(self) -> int:
        """Return the number of samples."""
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return input and target of a sample."""
        if not 0 <= index < _SAMPLES:
            raise IndexError(index)
        self.indices.append(int(index))
        return self.x[index], self.y[index]


@dataclass
class Report:
    """What the answer did on one rank.

    Attributes:
        indices: The samples that it read.
        synchronises: For each forward pass of DDP, whether the backward pass after it would communicate.
        epochs: For each loop over a DataLoader, the seed and the epoch of its DistributedSampler when it began.
        weights: What it returned.
    """

    indices: list[int]
    synchronises: list[bool]
    epochs: list[tuple[int, int]]
    weights: Any


def make_model(seed: int) -> nn.Module:
    """Return a small network. The same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


@contextmanager
def _record_forward_passes() -> Iterator[list[bool]]:
    """Record for each forward pass of DDP inside the block whether the backward pass after it communicates."""
    synchronises: list[bool] = []
    forward = DistributedDataParallel.forward

    def record_and_forward(self: Any, *args: Any, **options: Any) -> Any:
        synchronises.append(self.require_backward_grad_sync)
        return forward(self, *args, **options)

    with mock.patch.object(DistributedDataParallel, "forward", record_and_forward):
        yield synchronises


@contextmanager
def _record_epochs() -> Iterator[list[tuple[int, int]]]:
    """Record the seed and the epoch of the sampler whenever a loop over a DataLoader begins inside the block."""
    epochs: list[tuple[int, int]] = []
    begin = DataLoader.__iter__

    def record_and_begin(self: Any) -> Any:
        if isinstance(self.sampler, DistributedSampler):
            epochs.append((self.sampler.seed, self.sampler.epoch))
        return begin(self)

    with mock.patch.object(DataLoader, "__iter__", record_and_begin):
        yield epochs


def train_on_rank(fn: Callable, pieces: int) -> Report:
    """Run the answer on this rank, where the model has other initial weights than on other ranks."""
    data = RecordingDataset()
    make_own_model = functools.partial(make_model, 1 + dist.get_rank())
    with _record_forward_passes() as synchronises, _record_epochs() as epochs:
        weights = fn(data, make_own_model, _EPOCHS, _BATCH, pieces)
    if isinstance(weights, dict):
        weights = {name: value.detach().clone() for name, value in weights.items()}
    return Report(data.indices, synchronises, epochs, weights)


def _run(fn: Callable, pieces: int) -> list[Report]:
    """Return the reports of all ranks, whose weights have the names of the model's parameters."""
    reports = run_on_ranks(train_on_rank, _WORLD_SIZE, fn, pieces, hang_hint=_DIFFERENT_STEPS)
    names = list(make_model(1).state_dict())
    for report in reports:
        weights = report.weights
        if not isinstance(weights, dict):
            raise Wrong("a state_dict", weights, "" if weights is None else "Return the model's state_dict().")
        if list(weights) != names:
            raise Wrong(f"weights named {names[0]}, …", list(weights)[:1], _WRAPPER)
    return reports


def _check_samples(fn: Callable) -> None:
    """In an epoch the ranks read each sample once, and in another order in the next"""
    reports = _run(fn, 1)
    on_ranks = [report.indices for report in reports]
    for rank, indices in enumerate(on_ranks):
        if len(indices) == _EPOCHS * _SAMPLES:
            raise Wrong(f"{_SAMPLES_OF_RANK} samples of each rank an epoch", f"{_SAMPLES} on rank {rank}", _NO_SAMPLER)
        if len(indices) != _EPOCHS * _SAMPLES_OF_RANK:
            raise Wrong(f"{_EPOCHS * _SAMPLES_OF_RANK} reads on rank {rank}", len(indices))
    first = [indices[:_SAMPLES_OF_RANK] for indices in on_ranks]
    second = [indices[_SAMPLES_OF_RANK:] for indices in on_ranks]
    of_all = [index for indices in first for index in indices]
    if sorted(of_all) != list(range(_SAMPLES)):
        raise Wrong("each sample once in an epoch", f"{len(set(of_all))} of {_SAMPLES} samples", _TWO_ORDERS)
    if first == second:
        raise Wrong("another order in the second epoch", "the same order", _SAME_ORDER)
    epochs = reports[0].epochs
    if len(epochs) > len(set(epochs)):
        raise Wrong("set_epoch() before each loop over the loader", "a loop that began with the old epoch", _TOO_LATE)


def _check_communication(fn: Callable) -> None:
    """DDP sends once in an update, in the last of its pieces"""
    pieces = 2
    for report in _run(fn, pieces):
        synchronises = report.synchronises
        if not synchronises:
            raise Wrong("forward passes through DistributedDataParallel", "none", _NO_DDP)
        if len(synchronises) != _UPDATES * pieces:
            raise Wrong(f"{_UPDATES * pieces} forward passes", len(synchronises), _BATCH_SIZE)
        if all(synchronises):
            raise Wrong(f"{_UPDATES} of {len(synchronises)} that send", len(synchronises), _ALL_SEND)
        if synchronises != ([False] * (pieces - 1) + [True]) * _UPDATES:
            raise Wrong(
                "the last piece of each update sends", synchronises[: 2 * pieces], "Which piece is the last one?"
            )


def train_in_one_process(reports: list[Report], loss_factor: float = 1.0, zero_gradients: bool = True) -> Tensor:
    """Return the weights of one process that trains on the samples of all ranks, in the order of their batches.

    Args:
        reports: The reports of all ranks.
        loss_factor: A factor of the loss, for the mistake that sums the losses of the pieces.
        zero_gradients: Whether gradients are set to zero after each update. It is a mistake not to do this.
    """
    model = make_model(1)
    data = RecordingDataset()
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    batch_of_rank = _BATCH // _WORLD_SIZE
    for begin in range(0, len(reports[0].indices), batch_of_rank):
        indices = [index for report in reports for index in report.indices[begin : begin + batch_of_rank]]
        loss = F.mse_loss(model(data.x[indices]), data.y[indices])
        (loss_factor * loss).backward()
        optimizer.step()
        if zero_gradients:
            optimizer.zero_grad()
    return _flat(model.state_dict())


def _flat(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.detach().flatten() for value in weights.values()])


def _check_weights(fn: Callable) -> None:
    """Both ranks end with the weights of one process, in one piece and in two"""
    for pieces in (1, 2):
        reports = _run(fn, pieces)
        expected = train_in_one_process(reports)
        mistakes: Mistakes = [(train_in_one_process(reports, zero_gradients=False), _NOT_ZEROED)]
        if pieces > 1:
            mistakes = [*mistakes, (train_in_one_process(reports, loss_factor=pieces), _NOT_DIVIDED)]
        weights = [_flat(report.weights) for report in reports]
        expect_close_on_ranks(weights, [expected] * _WORLD_SIZE, "", [mistakes] * _WORLD_SIZE, atol=1e-5)


EXERCISE = Exercise(
    name="data_parallel",
    chapter="09",
    cases=(_check_samples, _check_communication, _check_weights),
    hints=(
        "Which rank reads which samples? What changes from epoch to epoch?",
        "How many samples does one backward pass of one rank see, of `batch` in an update of all?",
        "ddp.py and section 8 of the chapter do all of it. Compare line by line.",
    ),
    deadline_s=180.0,
)
