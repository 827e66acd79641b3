"""Checks of chapter 07's exercise: the order in which optimisations are switched on, from the parts of a step.

A thread loads beside the step, so a step takes max(load, sum of all other parts). The correct order takes, again and
again, the knob that leaves the shortest step, until no knob shortens it. A known mistake is another way to choose. For
each case some mistake gives another answer.

Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from collections.abc import Callable, Mapping
from typing import Any

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect, expect_close

Parts = Mapping[str, float]  # the seconds of each part of a step
Factors = Mapping[str, float]  # the factors by which a knob multiplies parts
Knobs = Mapping[str, Factors]
Order = list[tuple[str, float]]  # the names of the knobs, each with the seconds of the step after it
Rank = Callable[[Parts, Factors], float]  # the knob with the smallest rank is taken first


def _step_s(parts: Parts) -> float:
    """Return the seconds of a step, in which a thread loads beside all other parts."""
    return max(parts.get("load", 0.0), sum(part_s for part, part_s in parts.items() if part != "load"))


def _summed_s(parts: Parts) -> float:
    """Return the sum of all parts, which is a known mistake."""
    return sum(parts.values())


def _turn(parts: Parts, factors: Factors) -> dict[str, float]:
    """Return the parts after a knob is turned."""
    return {part: part_s * factors.get(part, 1.0) for part, part_s in parts.items()}


def _greedy(parts: Parts, knobs: Knobs, step_s: Callable[[Parts], float] = _step_s, rank: Rank | None = None) -> Order:
    """Take the knob with the smallest rank among those that shorten the step, until there is none.

    Args:
        parts: The parts of a step.
        knobs: The knobs.
        step_s: The seconds of a step from its parts.
        rank: The rank of a knob. Without it, the rank is the seconds of the step after the knob, which is correct.

    Returns:
        The order of the knobs.
    """
    remaining = dict(knobs)
    order: Order = []
    while True:
        step_before_s = step_s(parts)
        useful = [name for name, factors in remaining.items() if step_s(_turn(parts, factors)) < step_before_s]
        if not useful:
            return order
        ranks = {}
        for name in useful:
            factors = remaining[name]
            ranks[name] = rank(parts, factors) if rank else step_s(_turn(parts, factors))
        best = min(useful, key=lambda name: ranks[name])
        parts = _turn(parts, remaining.pop(best))
        order.append((best, step_s(parts)))


def _by_first_gain(parts: Parts, knobs: Knobs) -> Order:
    """Rank the knobs by the gains on the baseline, which are never computed again."""
    first_s = {name: _step_s(_turn(parts, factors)) for name, factors in knobs.items()}
    useful = [name for name in first_s if first_s[name] < _step_s(parts)]
    order = []
    for name in sorted(useful, key=lambda name: first_s[name]):
        parts = _turn(parts, knobs[name])
        order.append((name, _step_s(parts)))
    return order


def _all_knobs(parts: Parts, knobs: Knobs) -> Order:
    """Continue when no knob shortens the step any more."""
    order = _greedy(parts, knobs)
    for name, _ in order:
        parts = _turn(parts, knobs[name])
    remaining = {name: factors for name, factors in knobs.items() if name not in dict(order)}
    while remaining:
        after_s = {name: _step_s(_turn(parts, factors)) for name, factors in remaining.items()}
        best = min(after_s, key=lambda name: after_s[name])
        parts = _turn(parts, remaining.pop(best))
        order.append((best, _step_s(parts)))
    return order


_MISTAKES: tuple[tuple[Callable[[Parts, Knobs], Order], str], ...] = (
    (
        _by_first_gain,
        "Gains change with every rung. After each one, work out all others again, from what is left.",
    ),
    (
        lambda parts, knobs: _greedy(parts, knobs, rank=lambda now, factors: -max(now[part] for part in factors)),
        "A large part that its knob hardly changes gains little: compare steps, not parts.",
    ),
    (
        lambda parts, knobs: _greedy(parts, knobs, rank=lambda now, factors: min(factors.values())),
        "A small factor on a small part gains little: compare steps, not factors.",
    ),
    (
        lambda parts, knobs: _greedy(parts, knobs, rank=lambda now, factors: -_step_s(_turn(now, factors))),
        "Largest gain first: of all knobs take the one that leaves the shortest step.",
    ),
    (
        lambda parts, knobs: _greedy(parts, knobs, _summed_s),
        "A thread loads beside the step: it takes max(load, sum of all other parts), not the sum of all.",
    ),
    (
        _all_knobs,
        "Stop when no knob makes the step shorter: one that gains nothing, or harms, stays off.",
    ),
)
_PAIRS = "Return a list of pairs: the knob's name, and the seconds of the step with it turned."
_NO_GAIN = "Return the seconds of the step, not its gain."
_WHOLE_STEP = "Return the seconds of the whole step, not those that were saved."


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str)


def _names(order: Order) -> list[str]:
    return [name for name, _ in order]


def _check(fn: Callable, parts: Parts, knobs: Knobs) -> None:
    """The answer must have the correct knobs in the correct order, with the correct seconds."""
    expected = _greedy(parts, knobs)
    got = fn(dict(parts), {name: dict(factors) for name, factors in knobs.items()})
    if not isinstance(got, (list, tuple)) or not all(_is_pair(pair) for pair in got):
        raise Wrong("a list of (name, seconds)", got, _PAIRS)
    mistakes = [(_names(mistake(parts, knobs)), hint) for mistake, hint in _MISTAKES]
    expect(_names(list(got)), _names(expected), mistakes=mistakes)
    baseline_s = before_s = multiplied_s = _step_s(parts)
    for (_, got_s), (name, expected_s) in zip(got, expected, strict=True):
        multiplied_s *= _step_s(_turn(parts, knobs[name])) / baseline_s
        mistakes_s = [
            (multiplied_s, "Gains do not multiply. Shrink the parts themselves, and add them up again."),
            (baseline_s / expected_s, _NO_GAIN),
            (before_s / expected_s, _NO_GAIN),
            (before_s - expected_s, _WHOLE_STEP),
            (baseline_s - expected_s, _WHOLE_STEP),
            (before_s, "Return the seconds of the step after the knob is turned, not before."),
        ]
        expect_close(got_s, expected_s, mistakes=mistakes_s)
        before_s = expected_s


# Parts of a step in seconds, and knobs: each the factors of the parts that it changes.
_TWO_KNOBS = (
    {"load": 0.001, "products": 0.080, "attention": 0.050, "optimizer": 0.010},
    {"compile": {"products": 0.95}, "fused": {"attention": 0.5}, "foreach": {"optimizer": 0.3}},
)
_SHARED_PART = (
    {"load": 0.002, "products": 0.080, "attention": 0.032, "rest": 0.010},
    {"bf16": {"products": 0.3}, "sparse": {"products": 0.4}, "fused": {"attention": 0.5}},
)
_HIDDEN_LOADER = (
    {"load": 0.060, "products": 0.080, "rest": 0.020},
    {"loader": {"load": 0.1}, "bf16": {"products": 0.4}},
)
_HARMFUL = (
    {"load": 0.010, "products": 0.100, "optimizer": 0.020},
    {"bf16": {"products": 2.2}, "fused": {"optimizer": 0.4}, "loader": {"load": 0.2}},
)
_SEVERAL_PARTS = (
    {"load": 0.004, "products": 0.060, "attention": 0.040, "rest": 0.020},
    {
        "bf16": {"products": 0.5, "attention": 1.2},
        "fused": {"attention": 0.4},
        "compile": {"rest": 0.3, "attention": 0.9},
    },
)
_HINTS = (
    "Two pieces: the seconds of a step from its parts, and a loop that takes the best knob.",
    "The loader works beside the step: which of the parts add up, and which one waits for which?",
    "In the loop: among the knobs left, which gives the shortest step? When does it end?",
)
_CODE = ("step_s = max(parts['load'], sum(s for part, s in parts.items() if part != 'load'))",)
EXERCISE = Exercise(
    name="ladder_order",
    chapter="07",
    cases=(
        case("The knob that saves more seconds comes first", _check, *_TWO_KNOBS),
        case("What one knob has shrunk, another can no longer save", _check, *_SHARED_PART),
        case("A loader that hides behind the step gains nothing, until the step is quicker", _check, *_HIDDEN_LOADER),
        case("A knob that makes the step longer stays off", _check, *_HARMFUL),
        case("A knob may act on several parts, for better and for worse", _check, *_SEVERAL_PARTS),
    ),
    hints=_HINTS,
    code=_CODE,
)
