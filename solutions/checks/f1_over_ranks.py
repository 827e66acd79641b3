"""Checks of the second part of chapter 21's exercise: micro and macro F1 of the samples of several ranks.

The answer gets an ``all_reduce`` as its argument, so the ranks are threads of this process. This ``all_reduce`` waits
for all ranks and counts the numbers that each rank sends. If a rank does not call it, it fails for all ranks after a
few seconds. The checks compare both F1 of each rank with those of all samples, and the counts of numbers.

Legend: N samples, K classes.

Source: https://scikit-learn.org/stable/modules/model_evaluation.html#precision-recall-f-measure-metrics
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close

_K = 5
_WAIT_S = 3.0
_MEAN = "A mean of the ranks' F1 is not the F1 of all: add up counts first."
_SWAPPED = (
    "Micro F1 adds the counts of all classes first. Macro F1 is the mean of the F1 of the classes. "
    "You may have swapped them."
)
_COUNTS = "Add hits, false alarms and misses over the ranks once, and compute both F1 from these sums."
_ABSENT = "A class that nobody has and nobody says counts in the macro mean, as 0: no NaN, and not left out."
_EQUALLY_OFTEN = "Each rank must call all_reduce equally often, even if it has no samples."
_OWN_SAMPLES = (
    "This is the score of the samples of this rank only. Add the counts over the ranks. "
    "all_reduce changes its argument in place, so the sum of a copy is lost."
)
_RETURNS_NOTHING = "all_reduce returns nothing. It changes its argument."
_F1 = "F1 = 2 hits / (2 hits + false alarms + misses), "
_DEFINITIONS = {"micro": f"{_F1}from the sums over the classes.", "macro": f"{_F1}for each class, and then the mean."}
_TOO_MANY_NUMBERS = "Communicate 3 × K counts, and not the samples."


class _Samples(NamedTuple):
    """Predicted and true classes of some samples, each (N, K) and bool."""

    said_NK: Tensor
    there_NK: Tensor


class _Scores(NamedTuple):
    """Both F1 of some samples."""

    micro: float
    macro: float


class _MissingRankError(RuntimeError):
    """A rank waits in ``all_reduce`` for another rank that does not call it."""


class _ThreadRanks:
    """Ranks that are threads, with a sum over ranks.

    Attributes:
        numbers_sent: How many numbers each rank has given to ``all_reduce``.
    """

    def __init__(self, world_size: int) -> None:
        self.numbers_sent = [0] * world_size
        self._barrier = threading.Barrier(world_size)
        self._tensors = [torch.empty(0)] * world_size

    def all_reduce(self, rank: int, tensor: Tensor) -> None:
        """Replace the tensor by its sum over the ranks."""
        self._tensors[rank] = tensor.clone()
        self.numbers_sent[rank] += tensor.numel()
        self._wait()
        if len({(other.shape, other.dtype) for other in self._tensors}) > 1:
            raise ValueError("the ranks' tensors differ in shape or dtype")
        total = torch.stack(self._tensors).sum(0).to(tensor.dtype)
        self._wait()
        tensor.copy_(total)

    def _wait(self) -> None:
        try:
            self._barrier.wait(_WAIT_S)
        except threading.BrokenBarrierError:
            raise _MissingRankError("a rank waited for another one that did not come") from None

    def run(self, fn: Callable, samples_of_rank: Sequence[_Samples]) -> list[Any]:
        """Return the results of all ranks, or raise the first exception of a rank with a hint as its note."""
        results: list[Any] = [None] * len(samples_of_rank)
        errors: list[BaseException] = []

        def run_rank(rank: int) -> None:
            try:
                results[rank] = fn(*samples_of_rank[rank], lambda tensor: self.all_reduce(rank, tensor))
            except BaseException as error:
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=run_rank, args=(rank,), daemon=True) for rank in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * _WAIT_S)
        if errors:
            # A missing rank is an effect if another rank has raised an exception of its own.
            error = min(errors, key=lambda candidate: isinstance(candidate, _MissingRankError))
            error.add_note(_RETURNS_NOTHING if "NoneType" in str(error) else _EQUALLY_OFTEN)
            raise error
        return results


def _draw(n: int, seed: int) -> _Samples:
    """Return samples of common and rare classes, where 15% of the predictions are wrong."""
    generator = torch.Generator().manual_seed(seed)
    there_NK = torch.rand(n, _K, generator=generator) < torch.logspace(-1.2, -0.3, _K)
    wrong_NK = torch.rand(n, _K, generator=generator) < 0.15
    return _Samples(there_NK ^ wrong_NK, there_NK)


def _scores(samples: _Samples) -> _Scores:
    """Return the correct scores."""
    said_NK, there_NK = samples
    hits_K = (said_NK & there_NK).sum(0).double()
    mistakes_K = (said_NK ^ there_NK).sum(0).double()
    f1_K = 2 * hits_K / (2 * hits_K + mistakes_K).clamp(min=1)
    micro = 2 * hits_K.sum() / (2 * hits_K + mistakes_K).sum().clamp(min=1)
    return _Scores(micro.item(), f1_K.mean().item())


def _other_scores(samples: _Samples) -> dict[str, list[float]]:
    """Return the intersection over union, and the F1 of the mean precision and the mean recall."""
    said_NK, there_NK = samples
    hits_K = (said_NK & there_NK).sum(0).double()
    union_K = (said_NK | there_NK).sum(0)
    precision = (hits_K / said_NK.sum(0).clamp(min=1)).mean()
    recall = (hits_K / there_NK.sum(0).clamp(min=1)).mean()
    f1_of_means = 2 * precision * recall / (precision + recall)
    return {
        "micro": [(hits_K.sum() / union_K.sum()).item()],
        "macro": [(hits_K / union_K.clamp(min=1)).mean().item(), f1_of_means.item()],
    }


def _run(fn: Callable, samples: _Samples, sizes: Sequence[int]) -> _ThreadRanks:
    """Compare the scores of all ranks with the correct ones; rank r has the next ``sizes[r]`` samples."""
    said_of_rank = samples.said_NK.split(list(sizes))
    there_of_rank = samples.there_NK.split(list(sizes))
    samples_of_rank = [_Samples(*both) for both in zip(said_of_rank, there_of_rank, strict=True)]
    copies = [_Samples(said_NK.clone(), there_NK.clone()) for said_NK, there_NK in samples_of_rank]
    ranks = _ThreadRanks(len(sizes))
    for rank, result in enumerate(ranks.run(fn, copies)):
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise Wrong("(micro, macro), two numbers", result, "Return both, micro first.")
        for name, score in zip(_Scores._fields, result, strict=True):
            _check_score(score, name, rank, samples, samples_of_rank)
    for before, after in zip(samples_of_rank, copies, strict=True):
        if not (torch.equal(before.said_NK, after.said_NK) and torch.equal(before.there_NK, after.there_NK)):
            raise Wrong("the samples as they were", "changed ones", "Others may still need said_NK and there_NK.")
    return ranks


def _check_score(got: Any, name: str, rank: int, samples: _Samples, samples_of_rank: list[_Samples]) -> None:
    """One score of one rank must be that of the samples of all ranks."""
    world_size = len(samples_of_rank)
    expected = getattr(_scores(samples), name)
    other_name = "macro" if name == "micro" else "micro"
    hint = _DEFINITIONS[name]
    mistakes = [(getattr(_scores(samples), other_name), _SWAPPED)]
    mistakes += [(score, _DEFINITIONS[name]) for score in _other_scores(samples)[name]]
    if world_size > 1:
        hint = _COUNTS
        own = [getattr(_scores(of_rank), name) for of_rank in samples_of_rank]
        mistakes += [(sum(own) / world_size, _MEAN), (sum(own), _MEAN), (own[rank], _OWN_SAMPLES)]
    try:
        expect_close(got, expected, hint, mistakes)
    except Wrong as wrong:
        wrong.expected = f"{name} F1 {expected:.6f} on rank {rank} of {world_size}"
        raise


def _check(fn: Callable, sizes: Sequence[int], seed: int) -> None:
    """The scores must be those of all samples, with so many random samples on each rank."""
    _run(fn, _draw(sum(sizes), seed), sizes)


def _check_absent_class(fn: Callable) -> None:
    """A class that is nowhere"""
    samples = _draw(40, seed=4)
    samples.said_NK[:, 1] = False
    samples.there_NK[:, 1] = False
    try:
        _run(fn, samples, [20, 20])
    except Wrong as wrong:
        wrong.hint = _ABSENT
        raise


def _check_class_of_one_rank(fn: Callable) -> None:
    """A class that only one rank has"""
    samples = _draw(40, seed=5)
    samples.said_NK[:20, 0] = False
    samples.there_NK[:20, 0] = False
    samples.there_NK[20:, 0] = True
    _run(fn, samples, [20, 20])


def _check_numbers_sent(fn: Callable) -> None:
    """At most 3 × K numbers are sent"""
    ranks = _run(fn, _draw(200, seed=6), [100, 100])
    most_sent = max(ranks.numbers_sent)
    if most_sent > 3 * _K:
        raise Wrong("15 numbers: 3 counts of 5 classes", f"{most_sent} numbers", _TOO_MANY_NUMBERS)


EXERCISE = Exercise(
    name="f1_over_ranks",
    chapter="21",
    cases=(
        case("One rank alone: micro and macro", _check, [40], seed=0),
        case("Two ranks: the F1 of all", _check, [40, 40], seed=1),
        case("Ranks with unequal numbers of samples", _check, [50, 3, 17], seed=2),
        case("A rank without samples takes part", _check, [30, 0], seed=3),
        _check_absent_class,
        _check_class_of_one_rank,
        _check_numbers_sent,
    ),
    hints=(
        "Which of these can be added over the ranks: F1, precision, hits?",
        "Micro and macro F1 use the same sums. They differ in when you add over the classes.",
        "What does a rank without samples communicate?",
    ),
    code=("counts_3K = torch.stack([kind.sum(0) for kind in kinds])", "all_reduce(counts_3K)"),
)
