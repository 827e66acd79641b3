"""Checks of chapter 07's exercise: the order in which optimisations are switched on, from the parts of a step.

A thread loads while the other parts run, so a step takes max(load, sum of all other parts). The correct order always
takes the change that leaves the shortest step, until no change makes the step shorter. A known mistake is another way
to choose. In each case, at least one mistake gives another answer.

Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from collections.abc import Callable, Mapping
from typing import Any

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect, expect_close

Parts = Mapping[str, float]  # the seconds of each part of a step
Factors = Mapping[str, float]  # the factors by which a change multiplies parts
Changes = Mapping[str, Factors]
Order = list[tuple[str, float]]  # the names of the changes, each with the seconds of the step after it
Rank = Callable[[Parts, Factors], float]  # the change with the smallest rank is taken first


def _step_s(parts: Parts) -> float:
    """Return the seconds of a step, in which a thread loads beside all other parts."""
    return max(parts.get("load", 0.0), sum(part_s for part, part_s in parts.items() if part != "load"))


def _summed_s(parts: Parts) -> float:
    """Return the sum of all parts, which is a known mistake."""
    return sum(parts.values())


def _after(parts: Parts, factors: Factors) -> dict[str, float]:
    """Return the parts after a change."""
    return {part: part_s * factors.get(part, 1.0) for part, part_s in parts.items()}


def _greedy(
    parts: Parts, changes: Changes, step_s: Callable[[Parts], float] = _step_s, rank: Rank | None = None
) -> Order:
    """Take the change with the smallest rank among those that shorten the step, until there is none.

    Args:
        parts: The parts of a step.
        changes: The changes.
        step_s: The seconds of a step from its parts.
        rank: The rank of a change. Without it, the rank is the seconds of the step after the change, which is correct.

    Returns:
        The order of the changes.
    """
    remaining = dict(changes)
    order: Order = []
    while True:
        step_before_s = step_s(parts)
        useful = [name for name, factors in remaining.items() if step_s(_after(parts, factors)) < step_before_s]
        if not useful:
            return order
        ranks = {}
        for name in useful:
            factors = remaining[name]
            ranks[name] = rank(parts, factors) if rank else step_s(_after(parts, factors))
        best = min(useful, key=lambda name: ranks[name])
        parts = _after(parts, remaining.pop(best))
        order.append((best, step_s(parts)))


def _by_first_gain(parts: Parts, changes: Changes) -> Order:
    """Rank the changes by the gains on the baseline, which are never computed again."""
    first_s = {name: _step_s(_after(parts, factors)) for name, factors in changes.items()}
    useful = [name for name in first_s if first_s[name] < _step_s(parts)]
    order = []
    for name in sorted(useful, key=lambda name: first_s[name]):
        parts = _after(parts, changes[name])
        order.append((name, _step_s(parts)))
    return order


def _all_changes(parts: Parts, changes: Changes) -> Order:
    """Continue when no change shortens the step any more."""
    order = _greedy(parts, changes)
    for name, _ in order:
        parts = _after(parts, changes[name])
    remaining = {name: factors for name, factors in changes.items() if name not in dict(order)}
    while remaining:
        after_s = {name: _step_s(_after(parts, factors)) for name, factors in remaining.items()}
        best = min(after_s, key=lambda name: after_s[name])
        parts = _after(parts, remaining.pop(best))
        order.append((best, _step_s(parts)))
    return order


_MISTAKES: tuple[tuple[Callable[[Parts, Changes], Order], str], ...] = (
    (
        _by_first_gain,
        "The gain of a change depends on the changes before it. After each change, compare all others again.",
    ),
    (
        lambda parts, changes: _greedy(parts, changes, rank=lambda now, factors: -max(now[part] for part in factors)),
        "A large part whose change has a factor near 1 gains little. Compare steps, not parts.",
    ),
    (
        lambda parts, changes: _greedy(parts, changes, rank=lambda now, factors: min(factors.values())),
        "A small factor on a small part gains little: compare steps, not factors.",
    ),
    (
        lambda parts, changes: _greedy(parts, changes, rank=lambda now, factors: -_step_s(_after(now, factors))),
        "The largest gain comes first. Take the change that leaves the shortest step.",
    ),
    (
        lambda parts, changes: _greedy(parts, changes, _summed_s),
        "A thread loads while the other parts run. So a step takes max(load, sum of the other parts).",
    ),
    (
        _all_changes,
        "Stop when no change makes the step shorter. A change that gains nothing does not belong to the list.",
    ),
)
_PAIRS = "Return a list of pairs. Each pair has the name of a change and the seconds of the step after it."
_NO_GAIN = "Return the seconds of the step, not its gain."
_WHOLE_STEP = "Return the seconds of the complete step, not the seconds that were saved."


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str)


def _names(order: Order) -> list[str]:
    return [name for name, _ in order]


def _check(fn: Callable, parts: Parts, changes: Changes) -> None:
    """The answer must have the correct changes in the correct order, with the correct seconds."""
    expected = _greedy(parts, changes)
    got = fn(dict(parts), {name: dict(factors) for name, factors in changes.items()})
    if not isinstance(got, (list, tuple)) or not all(_is_pair(pair) for pair in got):
        raise Wrong("a list of (name, seconds)", got, _PAIRS)
    mistakes = [(_names(mistake(parts, changes)), hint) for mistake, hint in _MISTAKES]
    expect(_names(list(got)), _names(expected), mistakes=mistakes)
    baseline_s = before_s = multiplied_s = _step_s(parts)
    for (_, got_s), (name, expected_s) in zip(got, expected, strict=True):
        multiplied_s *= _step_s(_after(parts, changes[name])) / baseline_s
        mistakes_s = [
            (multiplied_s, "Gains do not multiply. Shrink the parts themselves, and add them up again."),
            (baseline_s / expected_s, _NO_GAIN),
            (before_s / expected_s, _NO_GAIN),
            (before_s - expected_s, _WHOLE_STEP),
            (baseline_s - expected_s, _WHOLE_STEP),
            (before_s, "Return the seconds of the step after the change, not before it."),
        ]
        expect_close(got_s, expected_s, mistakes=mistakes_s)
        before_s = expected_s


# Parts of a step in seconds, and changes: each the factors of the parts that it changes.
_TWO_CHANGES = (
    {"load": 0.001, "matmuls": 0.080, "attention": 0.050, "optimizer": 0.010},
    {"compile": {"matmuls": 0.95}, "fused": {"attention": 0.5}, "foreach": {"optimizer": 0.3}},
)
_SHARED_PART = (
    {"load": 0.002, "matmuls": 0.080, "attention": 0.032, "rest": 0.010},
    {"bf16": {"matmuls": 0.3}, "sparse": {"matmuls": 0.4}, "fused": {"attention": 0.5}},
)
_HIDDEN_LOADER = (
    {"load": 0.060, "matmuls": 0.080, "rest": 0.020},
    {"loader": {"load": 0.1}, "bf16": {"matmuls": 0.4}},
)
_HARMFUL = (
    {"load": 0.010, "matmuls": 0.100, "optimizer": 0.020},
    {"bf16": {"matmuls": 2.2}, "fused": {"optimizer": 0.4}, "loader": {"load": 0.2}},
)
_SEVERAL_PARTS = (
    {"load": 0.004, "matmuls": 0.060, "attention": 0.040, "rest": 0.020},
    {
        "bf16": {"matmuls": 0.5, "attention": 1.2},
        "fused": {"attention": 0.4},
        "compile": {"rest": 0.3, "attention": 0.9},
    },
)
_HINTS = (
    "You need two things: the seconds of a step from its parts, and a loop that takes the best change.",
    "The thread loads while the other parts run. Which parts follow one another, so that you add them?",
    "In each turn of the loop, which of the remaining changes gives the shortest step? When does the loop end?",
)
_CODE = ("step_s = max(parts['load'], sum(s for part, s in parts.items() if part != 'load'))",)
EXERCISE = Exercise(
    name="ladder_order",
    chapter="07",
    cases=(
        case("The change that saves more seconds comes first", _check, *_TWO_CHANGES),
        case("A second change of the same part saves less than it would save alone", _check, *_SHARED_PART),
        case("A faster loader gains nothing until the other parts are shorter", _check, *_HIDDEN_LOADER),
        case("A change that makes the step longer is left out", _check, *_HARMFUL),
        case("A change may make one part shorter and another part longer", _check, *_SEVERAL_PARTS),
    ),
    hints=_HINTS,
    code=_CODE,
)
