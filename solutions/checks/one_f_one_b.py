"""Checks of the first part of chapter 19's exercise: the order of a rank's passes in the schedule 1F1B.

The answer returns the order of one rank. The checks run the orders of all ranks with a forward pass of one unit and a
backward pass of two. The schedule must take the time of GPipe, 3 (m + p - 1) units. Rank r must hold the activations of
at most min(m, p - r) micro-batches.

Legend: p ranks, m micro-batches.

Source: Narayanan et al. 2021, arXiv:2104.04473
"""

from collections.abc import Callable, Sequence
from typing import Any

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.errors import CourseError
from dltutorial.parallel import pipeline_schedules
from dltutorial.parallel.pipeline_schedules import Action

_WORDS = 'a list of pairs such as ("F", 0), ("B", 0)'
_FROM_0 = "Micro-batches are numbered from 0."
_ONLY = "There are only m micro-batches. If there are fewer micro-batches than ranks, the warm-up is shorter."
_LEFT = "Some micro-batches have no backward pass. After the last forward pass, those in flight still need one."
_NEVER = "Some micro-batches have no forward pass. Those of the warm-up count, too."
_TWICE = "Each micro-batch has one forward and one backward pass, so there are 2 m passes."
_LAST_FIRST = "The last micro-batch has the first backward pass here. But the gradient of micro-batch 0 arrives first."
_FIRST = "A backward pass needs the forward pass of the same micro-batch before it."
_FAR = "The first rank is farthest from the loss. Its first gradient arrives last, so its warm-up is longest."
_ALL = "First all forward, then all backward passes are GPipe. It holds m micro-batches. Start B as soon as possible."
_ALIKE = "Every rank has the same warm-up here. But the last rank can do B of micro-batch 0 directly after its F."
_MORE = "One micro-batch more than necessary is in flight. After the warm-up, alternate one F and one B."
_NO_WARMUP = "Only one micro-batch is in flight, so the other ranks are idle. Begin with some forward passes."
_FEWER = "One micro-batch too few is in flight. The rank waits for a gradient, although it could do a forward pass."


def _schedule(fn: Callable, p: int, m: int) -> list[list[Action]]:
    """Return the learner's order for each rank. Each order has all actions, in a possible order."""
    schedule = []
    for rank in range(p):
        order = fn(rank, p, m)
        if not isinstance(order, (list, tuple)) or not all(_is_action(action) for action in order):
            raise Wrong(_WORDS, order, "Each pass is a pair of a letter, F or B, and the number of a micro-batch.")
        _check_parts(order, rank, p, m)
        for kind, hint in (("F", _NEVER), ("B", _LEFT)):
            _check_kind(order, kind, hint, rank, p, m)
        for part in range(m):
            if order.index(("F", part)) > order.index(("B", part)):
                raise Wrong(f"F{part} before B{part} on rank {rank} of {p}", f"{order}", _FIRST)
        schedule.append([Action(kind, part, rank) for kind, part in order])
    return schedule


def _is_action(action: Any) -> bool:
    return (
        isinstance(action, tuple)
        and len(action) == 2
        and action[0] in ("F", "B")
        and type(action[1]) is int
        and action[1] >= 0
    )


def _check_parts(order: Sequence[tuple[str, int]], rank: int, p: int, m: int) -> None:
    """The micro-batches must have the numbers from 0 to m - 1."""
    parts = {part for _, part in order}
    if not parts:
        return
    if min(parts) == 1 and max(parts) == m:
        raise Wrong(f"micro-batches 0 to {m - 1}", sorted(parts), _FROM_0)
    if max(parts) >= m:
        raise Wrong(f"micro-batches 0 to {m - 1} on rank {rank} of {p}", f"micro-batch {max(parts)}", _ONLY)


def _check_kind(order: Sequence[tuple[str, int]], kind: str, hint: str, rank: int, p: int, m: int) -> None:
    """Each micro-batch must occur once in the forward or backward passes, in the order of the numbers."""
    parts = [part for kind_of_action, part in order if kind_of_action == kind]
    if sorted(parts) != list(range(m)):
        if len(set(parts)) == m:
            hint = _TWICE
        raise Wrong(f"{kind} of micro-batches 0 to {m - 1} on rank {rank} of {p}", f"{kind} of {parts}", hint)
    if parts != sorted(parts):
        raise Wrong(f"{kind} of the micro-batches in their order", f"{kind} of {parts}", _LAST_FIRST)


def _check(fn: Callable, p: int, m: int) -> None:
    """The schedule must take the time of GPipe, and hold no more micro-batches than necessary."""
    schedule = _schedule(fn, p, m)
    # The length of the warm-up on each rank, which is the number of forward passes before the first backward pass.
    warm_ups = [[action.kind for action in order].index("B") for order in schedule]
    max_in_flight = [pipeline_schedules.max_in_flight(order) for order in schedule]
    warm_up_hint = _FAR if warm_ups[0] < warm_ups[-1] else ""
    try:
        spans = pipeline_schedules.simulate(schedule, {"F": 1, "B": 2})
    except CourseError as error:
        raise Wrong("ranks that can continue", str(error).split(";")[0], warm_up_hint or _FEWER) from None
    _check_memory(max_in_flight, warm_ups, m)
    step = max(spans_of_rank[-1].end_s for spans_of_rank in spans)
    expected_step = 3 * (m + p - 1)
    if step > expected_step:
        hint = _NO_WARMUP if max(max_in_flight) == 1 else _FEWER
        expected = f"a step of {expected_step} units on {p} ranks with {m} micro-batches"
        raise Wrong(expected, f"{step:g}", warm_up_hint or hint)


def _check_memory(max_in_flight: list[int], warm_ups: list[int], m: int) -> None:
    """Each rank must hold no more micro-batches than necessary."""
    p = len(max_in_flight)
    limits = [min(m, p - rank) for rank in range(p)]
    if any(n > limit for n, limit in zip(max_in_flight, limits, strict=True)):
        expected = f"micro-batches held at once by ranks 0 to {p - 1}: {limits}"
        raise Wrong(expected, max_in_flight, _hint_for_memory(warm_ups, m))


def _hint_for_memory(warm_ups: list[int], m: int) -> str:
    """Return the hint for ranks that hold too many micro-batches after warm-ups of these lengths."""
    if all(warm_up == m for warm_up in warm_ups):
        return _ALL
    if len(warm_ups) > 1 and len(set(warm_ups)) == 1:
        return _ALIKE
    return _MORE


EXERCISE = Exercise(
    name="one_f_one_b",
    chapter="19",
    cases=(
        case("One rank: each micro-batch has both passes", _check, 1, 3),
        case("Four ranks, eight micro-batches", _check, 4, 8),
        case("Two ranks, four micro-batches", _check, 2, 4),
        case("As many micro-batches as ranks", _check, 3, 3),
        case("Fewer micro-batches than ranks", _check, 4, 2),
        case("Many of both", _check, 8, 32),
    ),
    hints=(
        "When does the gradient of micro-batch 0 arrive on rank r? How many forward passes are possible until then?",
        "The list has three sections: forward passes, then pairs, then backward passes. How long is each section?",
        "Which of the three sections are empty on the last rank?",
    ),
    code=(
        "ahead = min(m, p - rank - 1)",
        "for i in range(m): a forward pass of i + ahead, if it exists, then a backward pass of i",
    ),
)
