"""Checks of the second part of chapter 18's exercise: attention to all keys, merged from attention to blocks of keys.

A part is the result of one block of keys: the attention values, and the logarithm of the sum of the exponentials of the
scores, called log-sum. The parts come from random scores and values in float64. The answer must return the values and
the log-sum of softmax over the keys of all blocks.

Legend: Q queries, N keys of a block, D features of a value.

Source: Milakov and Gimelshein 2018, arXiv:1805.02867
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close

_Q = 4
_D = 3
_MEAN = "This is a plain mean or sum. The weight of a result is proportional to e to the power of its log-sum."
_RAW = "The weights do not add up to 1: divide by their sum."
_BY_LOG = "The weights are e to the power of the log-sums, not the log-sums."
_ONE_PART = "The values are right, but their log-sum is that of all results together."
_SUM_OF_LOGS = "Logarithms of sums do not add. The sums do."
_RANGE = "e to the power of a large log-sum is infinite. Only differences of log-sums matter, so subtract before exp."
_ROWS = torch.tensor([[800.0], [-800.0], [0.0], [30.0]], dtype=torch.float64)
_EACH = "Each row has its own largest log-sum. Subtract that, and not one number for all rows."
_PAIRS = "Merging pairs? The log-sum grows with each result, so use the merged log-sum in the next merge."
_NO_NUMBER = "e to the power of −∞ is 0, but −∞ minus −∞ is no number. Subtract the log-sum of all results."
_PAIR_OF_NONE = (
    "Here, the log-sum that you subtract is −∞ itself, and −∞ minus −∞ is no number. Such results have weight 0."
)


class _Part(NamedTuple):
    """The result of a block of keys, or of all keys."""

    values_QD: Tensor
    log_sum_Q1: Tensor


def _attend(scores_QN: Tensor, values_ND: Tensor) -> _Part:
    return _Part(scores_QN.softmax(-1) @ values_ND, scores_QN.logsumexp(-1, keepdim=True))


def _draw(sizes: Sequence[int], shift: float | Tensor = 0.0) -> tuple[list[_Part], _Part]:
    """Return the parts of blocks with so many keys, and the result of all keys; ``shift`` is added to the scores."""
    generator = torch.Generator().manual_seed(5)
    scores = []
    for block, n in enumerate(sizes):
        scores.append(2 * torch.randn(_Q, n, generator=generator, dtype=torch.float64) + shift + block)
    values = [torch.randn(n, _D, generator=generator, dtype=torch.float64) for n in sizes]
    parts = [_attend(*block) for block in zip(scores, values, strict=True)]
    return parts, _attend(torch.cat(scores, -1), torch.cat(values))


def _call(fn: Callable, parts: list[_Part]) -> Sequence[Any]:
    """Return the answer's pair."""
    merged = fn([tuple(part) for part in parts])
    if not isinstance(merged, (tuple, list)) or len(merged) != 2:
        raise Wrong("a pair: values, log-sum", merged, "Return both, so that the result can be merged again.")
    return merged


def _check(fn: Callable, sizes: Sequence[int], shift: float | Tensor = 0.0, hint: str = "") -> None:
    """The merged result must be that of all keys, and the parts must stay as they are."""
    parts, expected = _draw(sizes, shift)
    arguments = [_Part(values.clone(), log_sum.clone()) for values, log_sum in parts]
    values, log_sum = _call(fn, arguments)
    expect_close(values, expected.values_QD, hint, _mistakes_of_values(parts))
    mistakes = [(part.log_sum_Q1, _ONE_PART) for part in parts]
    mistakes.append((torch.stack([part.log_sum_Q1 for part in parts]).sum(0), _SUM_OF_LOGS))
    mistakes.append((expected.log_sum_Q1.exp(), "This is the sum. Return its logarithm."))
    expect_close(log_sum, expected.log_sum_Q1, hint or _ONE_PART, mistakes)
    for part, argument in zip(parts, arguments, strict=True):
        if not all(torch.equal(*pair) for pair in zip(part, argument, strict=True)):
            raise Wrong("unchanged parts", "changed parts", "The parts may be used again, so do not write into them.")


def _mistakes_of_values(parts: list[_Part]) -> list[tuple[Tensor, str]]:
    """Return the values of answers with wrong weights; P counts the parts."""
    values_PQD = torch.stack([part.values_QD for part in parts])
    log_sums_PQ1 = torch.stack([part.log_sum_Q1 for part in parts])
    return [
        (values_PQD.mean(0), _MEAN),
        (values_PQD.sum(0), _MEAN),
        ((log_sums_PQ1.exp() * values_PQD).sum(0), _RAW),
        ((log_sums_PQ1 * values_PQD).sum(0) / log_sums_PQ1.sum(0), _BY_LOG),
    ]


def _part_without_keys() -> _Part:
    log_sum_Q1 = torch.full((_Q, 1), -torch.inf, dtype=torch.float64)
    return _Part(torch.zeros(_Q, _D, dtype=torch.float64), log_sum_Q1)


def _check_merged(fn: Callable, parts: list[_Part], expected: _Part, hint: str) -> None:
    values, log_sum = _call(fn, parts)
    expect_close(values, expected.values_QD, hint)
    expect_close(log_sum, expected.log_sum_Q1, hint)


def _check_one_without_keys(fn: Callable) -> None:
    """A part without any key, with the log-sum −∞, changes nothing"""
    for position in range(3):
        parts, expected = _draw([3, 2])
        parts.insert(position, _part_without_keys())
        _check_merged(fn, parts, expected, _NO_NUMBER)


def _check_two_without_keys(fn: Callable) -> None:
    """Two parts without any key come first"""
    parts, expected = _draw([3, 2])
    _check_merged(fn, [_part_without_keys(), _part_without_keys(), *parts], expected, _PAIR_OF_NONE)


def _check_all_without_keys(fn: Callable) -> None:
    """No part has any key: the values are 0, and the log-sum is −∞"""
    for n in (1, 3):
        _check_merged(fn, [_part_without_keys() for _ in range(n)], _part_without_keys(), _PAIR_OF_NONE)


EXERCISE = Exercise(
    name="merged",
    chapter="18",
    cases=(
        case("Two parts of equally many keys", _check, (4, 4)),
        case("Three parts with different numbers of keys", _check, (5, 1, 3), hint=_PAIRS),
        case("One part alone does not change", _check, (3,)),
        case("Large scores", _check, (3, 4), 800.0, _RANGE),
        case("Very small scores", _check, (3, 4), -800.0, _RANGE),
        case("Large in one row, small in another", _check, (3, 4), _ROWS, _EACH),
        case("Seven parts", _check, (2, 1, 3, 1, 2, 4, 1), hint=_PAIRS),
        _check_one_without_keys,
        _check_two_without_keys,
        _check_all_without_keys,
    ),
    hints=(
        "The values of each part were divided by the sum over its own keys. By which sum should they be divided?",
        "The softmax of the log-sums gives the weights. How does softmax avoid an overflow?",
        "torch.logsumexp and torch.logaddexp subtract the largest number before they use exp.",
    ),
    code=(
        "log_sums = torch.stack([log_sum for _, log_sum in parts])",
        "total = torch.logsumexp(log_sums, 0)",
    ),
)
