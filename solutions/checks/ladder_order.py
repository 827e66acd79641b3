"""Checks of chapter 07's exercise: the order of a ladder from the parts of a step.

A thread loads beside the step, so a step takes max(load, sum of all other parts). The right order takes, again and
again, the knob that leaves the shortest step, until none shortens it. Every case has parts for which some mistake
gives another answer.
"""

from collections.abc import Callable, Mapping

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect, expect_close

Parts = Mapping[str, float]
Knobs = Mapping[str, Mapping[str, float]]
Order = list[tuple[str, float]]
Rule = Callable[[dict, dict], float]  # parts, factors of one knob → rank; the smallest is taken first


def _overlapped_s(parts: Parts) -> float:
    return max(parts.get("load", 0.0), sum(s for part, s in parts.items() if part != "load"))


def _summed_s(parts: Parts) -> float:
    return sum(parts.values())


def _turned(parts: Parts, factors: Mapping[str, float]) -> dict[str, float]:
    return {part: s * factors.get(part, 1.0) for part, s in parts.items()}


def _greedy(parts: Parts, knobs: Knobs, step_s: Callable = _overlapped_s, rank: Rule | None = None) -> Order:
    """Take knobs while they shorten the step; ``rank`` says which first. Default, and right: the shortest step."""
    left, order = dict(knobs), []
    rank = rank or (lambda parts, factors: step_s(_turned(parts, factors)))
    while left:
        useful = {name: f for name, f in left.items() if step_s(_turned(parts, f)) < step_s(parts)}
        if not useful:
            break
        best = min(useful, key=lambda name: rank(parts, useful[name]))
        parts = _turned(parts, left.pop(best))
        order.append((best, step_s(parts)))
    return order


def _by_size(parts: Parts, knobs: Knobs) -> Order:
    return _greedy(parts, knobs, rank=lambda parts, factors: -max(parts[part] for part in factors))


def _by_factor(parts: Parts, knobs: Knobs) -> Order:
    return _greedy(parts, knobs, rank=lambda parts, factors: min(factors.values()))


def _ascending(parts: Parts, knobs: Knobs) -> Order:
    return _greedy(parts, knobs, rank=lambda parts, factors: -_overlapped_s(_turned(parts, factors)))


def _once(parts: Parts, knobs: Knobs) -> Order:
    """Ranked by the gains on the baseline, never worked out again."""
    first = {name: _overlapped_s(_turned(parts, factors)) for name, factors in knobs.items()}
    order = []
    for name in sorted((n for n in first if first[n] < _overlapped_s(parts)), key=first.get):
        parts = _turned(parts, knobs[name])
        order.append((name, _overlapped_s(parts)))
    return order


def _everything(parts: Parts, knobs: Knobs) -> Order:
    """Goes on when nothing helps any more."""
    order = _greedy(parts, knobs)
    for name, _ in order:
        parts = _turned(parts, knobs[name])
    left = {name: factors for name, factors in knobs.items() if name not in dict(order)}
    while left:
        best = min(left, key=lambda name: _overlapped_s(_turned(parts, left[name])))
        parts = _turned(parts, left.pop(best))
        order.append((best, _overlapped_s(parts)))
    return order


_ORDERS = (
    (_once, "Gains change with every rung. After each one, work out all others again, from what is left."),
    (_by_size, "A large part that its knob hardly changes gains little: compare steps, not parts."),
    (_by_factor, "A small factor on a small part gains little: compare steps, not factors."),
    (_ascending, "Largest gain first: of all knobs take the one that leaves the shortest step."),
    (
        lambda parts, knobs: _greedy(parts, knobs, _summed_s),
        "A thread loads beside the step: it takes max(load, sum of all other parts), not the sum of all.",
    ),
    (_everything, "Stop when no knob makes the step shorter: one that gains nothing, or harms, stays off."),
)


def _pairs(got: object) -> Order:
    """What was returned as names and seconds."""
    shape = "a list of (name, seconds)"
    if not isinstance(got, (list, tuple)) or not all(isinstance(pair, (list, tuple)) for pair in got):
        raise Wrong(shape, got, "Return a list of pairs: the knob's name, and the seconds of the step with it turned.")
    if not all(len(pair) == 2 and isinstance(pair[0], str) for pair in got):
        raise Wrong(shape, got, "Return a list of pairs: the knob's name, and the seconds of the step with it turned.")
    return [(name, seconds) for name, seconds in got]


def _compare(fn: Callable, parts: Parts, knobs: Knobs) -> None:
    expected = _greedy(parts, knobs)
    names = [name for name, _ in expected]
    wrong = [([name for name, _ in order(parts, knobs)], hint) for order, hint in _ORDERS]
    got = _pairs(fn(dict(parts), {name: dict(factors) for name, factors in knobs.items()}))
    mistakes = [(order, hint) for order, hint in wrong if order != names]
    expect([name for name, _ in got], names, mistakes=mistakes)
    before_s, start_s = _overlapped_s(parts), _overlapped_s(parts)
    multiplied_s = before_s
    for (_, seconds), (name, right_s) in zip(got, expected, strict=True):
        multiplied_s *= _overlapped_s(_turned(parts, knobs[name])) / start_s
        told = [
            (multiplied_s, "Gains do not multiply. Shrink the parts themselves, and add them up again."),
            (start_s / right_s, "Return the seconds of the step, not its gain."),
            (before_s / right_s, "Return the seconds of the step, not its gain."),
            (before_s - right_s, "Return the seconds of the whole step, not those that were saved."),
            (start_s - right_s, "Return the seconds of the whole step, not those that were saved."),
            (before_s, "Return the seconds of the step after the knob is turned, not before."),
        ]
        expect_close(seconds, right_s, mistakes=told)
        before_s = right_s


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
        case("The knob that saves more seconds comes first", _compare, *_TWO_KNOBS),
        case("What one knob has shrunk, another can no longer save", _compare, *_SHARED_PART),
        case("A loader that hides behind the step gains nothing, until the step is quicker", _compare, *_HIDDEN_LOADER),
        case("A knob that makes the step longer stays off", _compare, *_HARMFUL),
        case("A knob may act on several parts, for better and for worse", _compare, *_SEVERAL_PARTS),
    ),
    hints=_HINTS,
    code=_CODE,
)
