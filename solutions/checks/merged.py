"""Checks of chapter 18's exercise, second part: attention to all keys from attention to parts of them.

Parts are made of random scores and values in float64; what is right is softmax over all keys at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close

Parts = list[tuple[torch.Tensor, torch.Tensor]]
_MEAN = "A plain mean. A part whose keys fit better weighs more: by e to its log-sum."
_RAW = "A sum, but of what weights? They must add up to 1: divide by the sum of all."
_ALONE = "Values are right; the log-sum that belongs to them is that of all parts together."
_RANGE = "e to a large log-sum is infinite. Only differences of log-sums matter: subtract before you take e to it."
_ROWS = torch.tensor([[800.0], [-800.0], [0.0], [30.0]], dtype=torch.float64)
_EACH = "Each row has a largest log-sum of its own: subtract that, not one for all rows."
_PAIRS = "Merging pairs? The log-sum must grow with each: carry the merged one on to the next."
_NO_NUMBER = "e to −∞ is 0, but −∞ less −∞ is no number: subtract the log-sum of all parts, not a part's."
_PAIR_OF_NONE = "Here the log-sum to subtract is −∞ itself, and −∞ less −∞ is no number: such parts weigh 0."


def _parts(sizes: Sequence[int], shift: float | torch.Tensor = 0.0) -> tuple[Parts, torch.Tensor, torch.Tensor]:
    """The parts, attention to all, and the logarithm of the sum over all."""
    generator = torch.Generator().manual_seed(5)
    scores = [2 * torch.randn(4, n, generator=generator, dtype=torch.float64) + shift + k for k, n in enumerate(sizes)]
    values = [torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in sizes]
    parts = [(s.softmax(-1) @ v, s.logsumexp(-1, keepdim=True)) for s, v in zip(scores, values, strict=True)]
    all_scores = torch.cat(scores, -1)
    return parts, all_scores.softmax(-1) @ torch.cat(values), all_scores.logsumexp(-1, keepdim=True)


def _compare(fn: Callable, sizes: Sequence[int], shift: float | torch.Tensor = 0.0, hint: str = "") -> None:
    parts, mixed, log_sum = _parts(sizes, shift)
    kept = [(one.clone(), other.clone()) for one, other in parts]
    got = fn(parts)
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong("a pair: values, log-sum", got, "Return both: what is merged can be merged again.")
    values, weights = [m for m, _ in kept], [part.exp() for _, part in kept]
    raw = sum(w * v for w, v in zip(weights, values, strict=True))
    by_log = sum(part * v for (_, part), v in zip(kept, values, strict=True)) / sum(part for _, part in kept)
    mistakes = [(sum(values) / len(values), _MEAN), (sum(values), _MEAN), (raw, _RAW)]
    mistakes += [(by_log, "The weights are e to the log-sums, not the log-sums.")]
    expect_close(got[0], mixed, hint, mistakes)
    alone = [(part, _ALONE) for _, part in kept]
    summed = [(sum(part for _, part in kept), "Logarithms of sums do not add: sums do.")]
    expect_close(got[1], log_sum, hint or _ALONE, alone + summed + [(log_sum.exp(), "Its logarithm, please.")])
    if any(not torch.equal(a, b) for one, two in zip(kept, parts, strict=True) for a, b in zip(one, two, strict=True)):
        raise Wrong("parts as they were", "changed ones", "The parts may be used again: write into none of them.")


def _empty() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(4, 3, dtype=torch.float64), torch.full((4, 1), -torch.inf, dtype=torch.float64)


def _nothing(fn: Callable) -> None:
    """A part without any key, of log-sum −∞, adds nothing"""
    (parts, mixed, log_sum), empty = _parts([3, 2]), _empty()
    for place in range(3):
        _expect_pair(fn([*parts[:place], empty, *parts[place:]]), mixed, log_sum, _NO_NUMBER)


def _nothing_first(fn: Callable) -> None:
    """Two parts without any key come first"""
    parts, mixed, log_sum = _parts([3, 2])
    _expect_pair(fn([_empty(), _empty(), *parts]), mixed, log_sum, _PAIR_OF_NONE)


def _nothing_at_all(fn: Callable) -> None:
    """No part has any key: zeros, and −∞"""
    for n in (1, 3):
        _expect_pair(fn([_empty() for _ in range(n)]), *_empty(), _PAIR_OF_NONE)


def _expect_pair(got: Any, mixed: torch.Tensor, log_sum: torch.Tensor, hint: str) -> None:
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong("a pair: values, log-sum", got, "Return both: what is merged can be merged again.")
    expect_close(got[0], mixed, hint)
    expect_close(got[1], log_sum, hint)


_HINTS = (
    "Each part's values were divided by its own sum. By what should they have been divided?",
    "Softmax over three numbers, the log-sums, gives three weights. How is softmax computed so that nothing overflows?",
    "torch.logsumexp and torch.logaddexp subtract the largest before they take e to it.",
)
_CODE = (
    "log_sums = torch.stack([log_sum for _, log_sum in parts])",
    "whole = torch.logsumexp(log_sums, 0)",
)
EXERCISE = Exercise(
    name="merged",
    chapter="18",
    cases=(
        case("Two parts of equally many keys", _compare, (4, 4)),
        case("Three parts, uneven", _compare, (5, 1, 3), 0.0, _PAIRS),
        case("One part is itself", _compare, (3,)),
        case("Large scores, as they come", _compare, (3, 4), 800.0, _RANGE),
        case("Very small ones", _compare, (3, 4), -800.0, _RANGE),
        case("Large in one row, small in another", _compare, (3, 4), _ROWS, _EACH),
        case("Seven parts", _compare, (2, 1, 3, 1, 2, 4, 1), 0.0, _PAIRS),
        _nothing,
        _nothing_first,
        _nothing_at_all,
    ),
    hints=_HINTS,
    code=_CODE,
)
