"""Checks of chapter 21's exercise, second part: micro and macro F1 of what several ranks have.

The ranks are threads; ``all_reduce`` waits for all of them, counts numbers, and fails for all if one does not come.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect_close

_WAIT_S = 3.0
_MEAN = "A mean of the ranks' F1 is not the F1 of all: add up counts first."
_SWAPPED = "Micro adds up over classes first, macro means the classes' F1: you may have swapped them."
_COUNTS = "Add hits, false alarms and misses over ranks, once; then make both F1 of the sums."
_ABSENT = "A class that nobody has and nobody says counts in the macro mean, as 0: no NaN, and not left out."
_ALL = "Each rank calls all_reduce equally often, also one without samples."
_HERE = (
    "These are this rank's samples alone: add up over ranks. "
    "all_reduce changes its own argument in place; the sum of a copy is lost."
)
_NOTHING = "all_reduce returns nothing: it changes its argument."
_F1 = "With one rank already: F1 = 2 hits / (2 hits + false alarms + misses), "
_KINDS = {"micro": f"{_F1}of the sums over classes.", "macro": f"{_F1}class by class; then the plain mean."}
_FEW = "Send 3 × K counts, not samples."


class _Ranks:
    """So many ranks that can add up tensors."""

    def __init__(self, n: int) -> None:
        self.n, self.numbers, self.lost = n, [0] * n, False
        self._meet, self._given = threading.Barrier(n), [torch.empty(0)] * n

    def all_reduce(self, rank: int, tensor: Tensor) -> None:
        """The sum over ranks, in place."""
        self._given[rank] = tensor.clone()
        self.numbers[rank] += tensor.numel()
        self._wait()
        if len({(given.shape, given.dtype) for given in self._given}) > 1:
            raise ValueError("the ranks' tensors differ in shape or dtype")
        total = torch.stack(self._given).sum(0).to(tensor.dtype)
        self._wait()
        tensor.copy_(total)

    def _wait(self) -> None:
        try:
            self._meet.wait(_WAIT_S)
        except threading.BrokenBarrierError:
            self.lost = True
            raise RuntimeError("a rank waited for another one that did not come") from None

    def run(self, fn: Callable, parts: Sequence[tuple[Tensor, Tensor]]) -> list[Any]:
        """What each rank returns; the first error of any."""
        found: list[Any] = [None] * self.n
        errors: list[BaseException] = []

        def work(rank: int) -> None:
            try:
                found[rank] = fn(*parts[rank], lambda tensor: self.all_reduce(rank, tensor))
            except BaseException as error:
                errors.append(error)
                self._meet.abort()

        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(self.n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * _WAIT_S)
        own = [error for error in errors if "did not come" not in str(error)]
        if own or errors:
            error = (own or errors)[0]
            error.add_note(_NOTHING if "NoneType" in str(error) else _ALL)
            raise error
        return found


def _samples(n: int, n_classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    there = torch.rand(n, n_classes, generator=draw) < torch.logspace(-1.2, -0.3, n_classes)
    return there ^ (torch.rand(n, n_classes, generator=draw) < 0.15), there


def _right(said: Tensor, there: Tensor) -> tuple[float, float]:
    hits, false, missed = ((a & b).sum(0).double() for a, b in ((said, there), (said, ~there), (~said, there)))
    each = 2 * hits / (2 * hits + false + missed).clamp(min=1)
    return (2 * hits.sum() / (2 * hits + false + missed).sum().clamp(min=1)).item(), each.mean().item()


def _other_scores(said: Tensor, there: Tensor) -> dict[str, list[float]]:
    """Intersection over union; and the F1 of mean precision and mean recall."""
    hits, either = (said & there).sum(0).double(), (said | there).sum(0)
    precision, recall = ((hits / kind.sum(0).clamp(min=1)).mean() for kind in (said, there))
    both = 2 * precision * recall / (precision + recall)
    return {
        "micro": [(hits.sum() / either.sum()).item()],
        "macro": [(hits / either.clamp(min=1)).mean().item(), both.item()],
    }


def _play(fn: Callable, sizes: Sequence[int], seed: int = 0, alter: Callable = lambda said, there: None) -> _Ranks:
    said, there = _samples(sum(sizes), seed=seed)
    alter(said, there)
    parts = list(zip(said.split(list(sizes)), there.split(list(sizes)), strict=True))
    wanted, alone = _right(said, there), [_right(*part) for part in parts]
    mean = tuple(sum(each) / len(parts) for each in zip(*alone, strict=True))
    ranks, others = _Ranks(len(sizes)), _other_scores(said, there)
    given = [(a.clone(), b.clone()) for a, b in parts]
    for rank, got in enumerate(ranks.run(fn, given)):
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong("(micro, macro), two numbers", got, "Return both, micro first.")
        for name, one, right, of_mean, other in zip(("micro", "macro"), got, wanted, mean, wanted[::-1], strict=True):
            mistakes = [(other, _SWAPPED), *((score, _KINDS[name]) for score in others[name])]
            if len(sizes) > 1:
                mistakes += [(of_mean, _MEAN), (sum(a[name == "macro"] for a in alone), _MEAN)]
                mistakes += [(alone[rank][name == "macro"], _HERE)]
            try:
                expect_close(one, right, _COUNTS if len(sizes) > 1 else _KINDS[name], mistakes)
            except Wrong as wrong:
                wrong.expected = f"{name} F1 {right:.6f} on rank {rank} of {len(sizes)}"
                raise
    for (a, b), (c, d) in zip(given, parts, strict=True):
        if not (torch.equal(a, c) and torch.equal(b, d)):
            raise Wrong("the samples as they were", "changed ones", "Others may still need said_NK and there_NK.")
    return ranks


def _one(fn: Callable) -> None:
    """One rank alone: micro and macro"""
    _play(fn, [40])


def _two(fn: Callable) -> None:
    """Two ranks: the F1 of all"""
    _play(fn, [40, 40], seed=1)


def _unequal(fn: Callable) -> None:
    """Ranks with unequal numbers of samples"""
    _play(fn, [50, 3, 17], seed=2)


def _none(fn: Callable) -> None:
    """A rank without samples takes part"""
    _play(fn, [30, 0], seed=3)


def _absent(fn: Callable) -> None:
    """A class that is nowhere"""

    def alter(said: Tensor, there: Tensor) -> None:
        said[:, 1] = there[:, 1] = False

    try:
        _play(fn, [20, 20], seed=4, alter=alter)
    except Wrong as wrong:
        wrong.hint = _ABSENT
        raise


def _one_sided(fn: Callable) -> None:
    """A class that only one rank has"""

    def alter(said: Tensor, there: Tensor) -> None:
        there[:20, 0] = said[:20, 0] = False
        there[20:, 0] = True

    _play(fn, [20, 20], seed=5, alter=alter)


def _few(fn: Callable) -> None:
    """At most 3 × K numbers are sent"""
    ranks = _play(fn, [100, 100], seed=6)
    if max(ranks.numbers) > 15:
        raise Wrong("15 numbers: 3 counts of 5 classes", f"{max(ranks.numbers)} numbers", _FEW)


_HINTS = (
    "Which of these may be added up over ranks: F1, precision, hits?",
    "Micro and macro are made of the same sums; what differs is when you add over classes.",
    "What does a rank without samples send?",
)
_CODE = ("counts_3K = torch.stack([kind.sum(0) for kind in kinds])", "all_reduce(counts_3K)")
EXERCISE = Exercise(
    name="f1_over_ranks",
    chapter="21",
    cases=(_one, _two, _unequal, _none, _absent, _one_sided, _few),
    hints=_HINTS,
    code=_CODE,
)
