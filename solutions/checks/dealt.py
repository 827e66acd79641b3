"""Checks of chapter 17's exercise, first part: an optimizer whose tensors are dealt out, on two and three real ranks.

Looked at: the deal; the weights beside one process that averages all ranks' gradients; and the messages, as torch hands
them to its process group.
"""

import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect_close
from dltutorial.launch import RankFailed, RanksHang, launch

PATIENCE_S = 20.0  # for ranks that share busy cores
_SIZES, _FEW = (2, 6, 3, 5, 4), (3, 2)
_UNUSED = {(1, 1), (3, 1), (4, 1), (0, 0), (2, 0)}  # (tensor, rank): whoever owns it, here an owner, there another
_BY_NOBODY = (1, 1)  # (step, tensor): momentum moves it all the same
_STEPS, _RATE = 3, 0.1
_UNLIKE = "One rank sends or waits where the other does not: all must call the same, in the same order."
_STAND = "Some tensors stand still on all ranks: what an owner has updated must reach all others, from that owner."
# A frame of the learner's in the traceback of a rank: a cell, or what was compiled from a string.
_FRAME = re.compile(r'^  (?:Cell In|File "<(?!frozen)).*(line \d+, in [\w<>]+)(?:\n    (.*))?', re.MULTILINE)
COST = {"allreduce": 2, "allreduce_coalesced": 2}  # of a message, in its whole bytes; 1 for all others


class Wire(TorchDispatchMode):
    """The messages that torch hands to its process group: (kind, bytes of the whole)."""

    def __init__(self) -> None:
        """None so far."""
        super().__init__()
        self.sent: list[tuple[str, int]] = []

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note it, and let it go on."""
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if "c10d" in call.namespace and tensors:
            kind = call._opname.strip("_")
            whole = sum(t.nbytes for t in tensors) if kind == "alltoall" else max(t.nbytes for t in tensors)
            self.sent.append((kind, whole))
        return call(*args, **(kwargs or {}))


def ranks(function: Callable, n: int, patience_s: float, *given: Any) -> list[Any]:
    """What ``function`` returns on n ranks; what goes wrong there, in the words of a check."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*ranks share")
            return launch(function, n, *given, timeout_s=patience_s, backend="gloo")
    except RanksHang as hang:
        told, _, where = str(hang).partition("\n\n")
        raise Wrong("all ranks end", told.split(";")[0], _UNLIKE, where) from None
    except RankFailed as failed:
        if failed.kind == "NotImplementedError" and not failed.message:
            raise NotImplementedError from None
        got = f"{failed.kind} on rank {failed.rank}: {failed.message.strip()}"
        where = "\n".join(f"{place}:  {line}".rstrip(": ") for place, line in _FRAME.findall(str(failed))[-3:])
        # gloo ends a process whose messages do not fit those of the others
        raise Wrong("no error", got, _UNLIKE if failed.kind.startswith("SIG") else "", where) from None


def _weights(sizes: tuple[int, ...]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(n, generator=generator)) for n in sizes]


def _gradient(step: int, rank: int, index: int, size: int, unused: bool) -> torch.Tensor | None:
    if unused and ((index, rank) in _UNUSED or (step, index) == _BY_NOBODY):
        return None
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * step + 10 * rank + index))


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=_RATE, momentum=0.9)


def _on_rank(fn: Callable, sizes: tuple[int, ...], unused: bool) -> tuple[list[torch.Tensor], list[tuple[str, int]]]:
    """The weights after each step, and the messages of the last one."""
    parameters, rows = _weights(sizes), []
    frozen = nn.Parameter(torch.ones(4), requires_grad=False)
    optimizer = fn([*parameters, frozen], _sgd)
    for step in range(_STEPS):
        for index, p in enumerate(parameters):
            p.grad = _gradient(step, dist.get_rank(), index, p.numel(), unused)
        with Wire() as wire:
            optimizer.step()
        rows.append(torch.cat([p.detach() for p in parameters]).clone())
    return rows, wire.sent


def _one(n: int, sizes: tuple[int, ...], unused: bool, scale: float = 0.0) -> list[torch.Tensor]:
    """The weights after each step of one process: with the sum of gradients times ``scale``, or the mean of those."""
    parameters, rows = _weights(sizes), []
    optimizer = _sgd(parameters)
    for step in range(_STEPS):
        for index, p in enumerate(parameters):
            every = [_gradient(step, rank, index, p.numel(), unused) for rank in range(n)]
            there = torch.stack([g for g in every if g is not None] or [torch.zeros_like(p)])
            p.grad = scale * there.sum(0) if scale else there.mean(0)
        optimizer.step()
        rows.append(torch.cat([p.detach() for p in parameters]).clone())
    return rows


def _deals(fn: Callable) -> None:
    """Each tensor has one owner, and no rank has more than it must"""
    for sizes, n, most in (((6, 5, 4, 3, 2), 2, 11), ((2, 6, 3, 5, 4), 2, 11), ((1, 1, 1, 9, 3), 3, 9), ((4,), 2, 4),
                           ((6, 5, 4, 3, 2), 3, 8), ((10, 1, 1, 1, 1), 2, 10), ((3, 3, 3, 3), 2, 6)):  # fmt: skip
        owners = fn.deal(list(sizes), n)
        if not isinstance(owners, (list, tuple)) or len(owners) != len(sizes):
            hint = "" if owners is None else "One rank for each size, in the order of the sizes."
            raise Wrong(f"{len(sizes)} owners", owners, hint)
        if not all(isinstance(owner, int) and 0 <= owner < n for owner in owners):
            raise Wrong(f"ranks from 0 to {n - 1}", owners, "Owners are ranks: 0 to n - 1.")
        has = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(n)]
        if max(has) > most:
            hint = "A large tensor came late, to a rank that had much: the largest first, to the rank that has least."
            in_turn = sorted(range(len(sizes)), key=lambda index: -sizes[index])
            meant = [sum(sizes[i] for i, owner in zip(in_turn, owners, strict=True) if owner == r) for r in range(n)]
            if max(meant) <= most:
                hint = "These are the owners of the sorted sizes: give them in the order of the sizes that came in."
            raise Wrong(f"at most {most} numbers on a rank, for sizes {sizes}", has, hint)


def _trains_as_one(fn: Callable, n: int = 2, unused: bool = False, sizes: tuple[int, ...] = _SIZES) -> None:
    """Two ranks hold the weights of one process after each step"""
    found = ranks(_on_rank, n, PATIENCE_S, fn, sizes, unused)
    wanted, summed, of_those = (_one(n, sizes, unused, scale) for scale in (1 / n, 1.0, 0.0))
    start = torch.cat([p.detach() for p in _weights(sizes)])
    for step in range(_STEPS):
        rows = [steps[step] for steps, _ in found]
        if any(not torch.equal(rows[0], row) for row in rows) and torch.allclose(rows[0], start):
            raise Wrong("an update on all ranks", "rank 0 stands still", "Each rank updates what it owns.")
        if any(not torch.allclose(rows[0], row) for row in rows):
            hint = "The ranks' weights differ: what an owner has updated must reach all others, from that owner."
            raise Wrong("the same weights on all ranks", f"not so after step {step + 1}", hint)
        before = wanted[step - 1] if step else start
        still = [torch.equal(*pair) for pair in zip(rows[0].split(sizes), start.split(sizes), strict=True)]
        if any(still) and not all(still):
            raise Wrong("all tensors updated", f"{sum(still)} of {len(still)} are not", _STAND)
        mistakes = [
            (summed[step], "The gradients were added up, not averaged: divide by the number of ranks."),
            (before, "These are the weights before the update: send them after it."),
            (of_those[step], "None counts as zero: divide by the number of all ranks, not of those that have one."),
        ]
        hint = "Does each owner have the mean of all ranks' gradients, before its optimizer steps?"
        for row in rows:
            expect_close(row, wanted[step], hint, mistakes, rtol=1e-4, atol=1e-6)


def _three_ranks(fn: Callable) -> None:
    """Three ranks as well"""
    _trains_as_one(fn, 3)


def _more_ranks_than_tensors(fn: Callable) -> None:
    """Two tensors on three ranks: one owns nothing"""
    _trains_as_one(fn, 3, sizes=_FEW)


def _unused(fn: Callable) -> None:
    """A gradient that is None on one rank counts as zero there, and so it does if it is None on all"""
    _trains_as_one(fn, 2, True)


def _sends_little(fn: Callable) -> None:
    """A step sends each gradient to one, and each tensor from one"""
    whole = 4 * sum(_SIZES)
    for _, sent in ranks(_on_rank, 2, PATIENCE_S, fn, _SIZES, False):
        total = sum(COST.get(kind, 1) * n_bytes for kind, n_bytes in sent)
        if total > 2 * whole:
            hint = "Some message tells everyone what one rank needs."
            if any(kind.startswith("allreduce") for kind, _ in sent):
                hint = "An all-reduce tells all ranks the mean; the owner alone needs it: dist.reduce."
            raise Wrong(f"at most {2 * whole} bytes", f"{total}: {sorted({kind for kind, _ in sent})}", hint)


EXERCISE = Exercise(
    name="dealt",
    chapter="17",
    cases=(_deals, _trains_as_one, _sends_little, _three_ranks, _more_ranks_than_tensors, _unused),
    hints=(
        "Who needs the mean gradient of a tensor? Who needs the tensor, once it is updated?",
        "Do all ranks call the same collectives in the same order, also where one has no gradient?",
        "One receiver: dist.reduce. One sender: dist.broadcast. Both name the owner.",
    ),
    deadline_s=180.0,
)
