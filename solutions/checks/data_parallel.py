"""Checks of the second part of chapter 09's exercise: a training script with torch's own parts.

The answer runs on two real ranks, on the CPU. Looked at: which samples each rank reads and when, in which forward
passes DDP will send, and the weights, beside one process that trains on what both ranks have read.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect_close
from dltutorial.launch import RankFailed, RanksHang, launch

_RANKS, _SAMPLES, _EPOCHS, _BATCH, _RATE = 2, 24, 2, 8, 0.1
PATIENCE_S = 20.0  # for ranks that share busy cores


class Numbers(Dataset):
    """24 samples; notes which ones are read."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x, self.y = (torch.randn(_SAMPLES, n, generator=generator) for n in (3, 2))
        self.read: list[int] = []

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < _SAMPLES:
            raise IndexError(index)
        self.read.append(int(index))
        return self.x[index], self.y[index]


def make_model(seed: int) -> nn.Module:
    """A small network, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def on_rank(fn: Callable, pieces: int) -> dict[str, Any]:
    """Run the answer on this rank: what it read, in which forward passes DDP was to send, what it returned."""
    data, sends, forward = Numbers(), [], DistributedDataParallel.forward

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        sends.append(self.require_backward_grad_sync)
        return forward(self, *args, **options)

    DistributedDataParallel.forward = noted
    try:
        weights = fn(data, functools.partial(make_model, 1 + dist.get_rank()), _EPOCHS, _BATCH, pieces)
    finally:
        DistributedDataParallel.forward = forward
    if isinstance(weights, dict):
        weights = {name: value.detach().clone() for name, value in weights.items()}
    return {"read": data.read, "sends": sends, "weights": weights}


def _reports(fn: Callable, pieces: int) -> list[dict[str, Any]]:
    try:
        found = launch(on_rank, _RANKS, fn, pieces, timeout_s=PATIENCE_S, backend="gloo")
    except RanksHang as hang:
        hint = "One rank takes more steps than the other, or calls something that the other does not."
        raise Wrong("both ranks end", str(hang).split(";")[0], hint) from None
    except RankFailed as failed:
        if failed.kind == "NotImplementedError":
            raise NotImplementedError from None
        where = [line.strip() for line in str(failed).splitlines() if line.startswith("    ")]
        got = f"{failed.kind} on rank {failed.rank}: {failed.message}" + (f", at: {where[-1]}" if where else "")
        raise Wrong("no error", got) from None
    names = list(make_model(1).state_dict())
    for report in found:
        weights = report["weights"]
        if not isinstance(weights, dict):
            raise Wrong("a state_dict", weights, "" if weights is None else "Return the model's state_dict().")
        if list(weights) != names:
            hint = "Names that begin with module. are those of the wrapper: take the state_dict of what is inside it."
            raise Wrong(f"weights named {names[0]}, …", list(weights)[:1], hint)
    return found


def _reads_each_sample_once(fn: Callable) -> None:
    """In an epoch the ranks read each sample once, and in another order in the next"""
    found = [report["read"] for report in _reports(fn, 1)]
    for rank, read in enumerate(found):
        if len(read) == _EPOCHS * _SAMPLES:
            hint = "Every rank reads everything. A DistributedSampler gives each rank its own part."
            raise Wrong(f"{_SAMPLES // _RANKS} samples of each rank an epoch", f"{_SAMPLES} on rank {rank}", hint)
        if len(read) != _EPOCHS * _SAMPLES // _RANKS:
            raise Wrong(f"{_EPOCHS * _SAMPLES // _RANKS} reads on rank {rank}", len(read))
    half = _SAMPLES // _RANKS
    first, second = ([read[epoch * half : (epoch + 1) * half] for read in found] for epoch in range(2))
    seen = [index for part in first for index in part]
    if sorted(seen) != list(range(_SAMPLES)):
        hint = "Some samples are read by both ranks, others by none: both must cut one common order."
        raise Wrong("each sample once in an epoch", f"{len(set(seen))} of {_SAMPLES} samples", hint)
    if first == second:
        hint = "Each epoch has the order of the first one: tell the sampler, sampler.set_epoch(epoch)."
        raise Wrong("another order in the second epoch", "the same order", hint)


def _sends_once_an_update(fn: Callable, pieces: int = 2) -> None:
    """DDP sends once in an update, in the last of its pieces"""
    n_updates = _EPOCHS * _SAMPLES // _BATCH
    for report in _reports(fn, pieces):
        sends = report["sends"]
        if not sends:
            hint = "Nothing is averaged: wrap the model in DistributedDataParallel, and call the wrapper."
            raise Wrong("forward passes through DistributedDataParallel", "none", hint)
        if len(sends) != n_updates * pieces:
            hint = "batch counts the samples of all ranks in one update: divide it by the ranks, and by the pieces."
            raise Wrong(f"{n_updates * pieces} forward passes", len(sends), hint)
        if all(sends):
            hint = "All pieces send. Inside model.no_sync() none does; the forward pass has to be inside, too."
            raise Wrong(f"{n_updates} of {len(sends)} that send", len(sends), hint)
        if sends != ([False] * (pieces - 1) + [True]) * n_updates:
            raise Wrong("the last piece of each update sends", sends[: 2 * pieces], "Which piece is the last one?")


def alone(found: list[dict[str, Any]], pieces: int, mistake: str = "") -> torch.Tensor:
    """The weights of one process that trains on what both ranks have read; with a well-known mistake, if named."""
    model, data = make_model(1), Numbers()
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    share = _BATCH // _RANKS
    for begin in range(0, len(found[0]["read"]), share):
        indices = [index for report in found for index in report["read"][begin : begin + share]]
        loss = F.mse_loss(model(data.x[indices]), data.y[indices])
        (loss * (pieces if mistake == "pieces" else 1)).backward()
        optimizer.step()
        if mistake != "zero":
            optimizer.zero_grad()
    return _row(model.state_dict())


def _row(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in weights.values()])


def _trains_as_one(fn: Callable) -> None:
    """Both ranks end with the weights of one process, in one piece and in two"""
    for pieces in (1, 2):
        found = _reports(fn, pieces)
        wanted = alone(found, pieces)
        mistakes = [
            (alone(found, pieces, "zero"), "Gradients of earlier updates stay: zero_grad() after each step."),
            (alone(found, pieces, "pieces"), "The pieces add up to a sum: divide each one's loss by pieces."),
        ]
        for report in found:
            expect_close(_row(report["weights"]), wanted, mistakes=mistakes[: 1 + (pieces > 1)], atol=1e-5)


EXERCISE = Exercise(
    name="data_parallel",
    chapter="09",
    cases=(_reads_each_sample_once, _sends_once_an_update, _trains_as_one),
    hints=(
        "Which rank reads which samples? What changes from epoch to epoch?",
        "How many samples does one backward pass of one rank see, of `batch` in an update of all?",
        "ddp.py of the chapter does all of it. Compare line by line.",
    ),
    deadline_s=180.0,
)
