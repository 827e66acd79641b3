"""Checks of chapter 19's exercise, first part: the order of 1F1B, for each rank.

The learner's orders are played against the clock, forward one unit, backward two. Right is what takes GPipe's time and
holds, on rank r of p, at most min(m, p − r) parts at once.
"""

from collections.abc import Callable
from typing import Any

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.errors import CourseError
from dltutorial.parallel import schedules
from dltutorial.parallel.schedules import Act

_WORDS = 'a list of pairs such as ("F", 0), ("B", 0)'
_FROM_0 = "Parts are numbered from 0."
_ONLY = "There are no more parts than m: with fewer parts than ranks the warm-up is shorter."
_LEFT = "Some parts went forward and never came back: what is in flight after the last forward must return, too."
_NEVER = "Some parts never go forward: those of the warm-up are of the m parts, too."
_TWICE = "A part goes forward once and backward once: 2 m acts."
_LAST_FIRST = "The last part comes back first here. The next stage sends part 0 back first: take them as they come."
_FIRST = "A part cannot go backward before it went forward."
_FAR = "The first rank is farthest from the loss: its first part is back last, so it warms up longest."
_ALL = "All forward, then all backward: that is GPipe, and holds m parts. Send a part back as soon as it can go."
_ALIKE = "Every rank warms up alike. On the last rank part 0 can go back at once; nothing else need be held there."
_MORE = "A part more than needed is in flight: after the warm-up comes a pair, one forward, one backward."
_NO_WARMUP = "One part at a time: while it travels, the other ranks have nothing to do. Warm up with some forwards."
_FEWER = "A part too few in flight: the rank waits for the first to come back while it could send another forward."


def _orders(fn: Callable, p: int, m: int) -> list[list[Act]]:
    """The learner's orders; each rank's are whole."""
    orders = []
    for rank in range(p):
        got = fn(rank, p, m)
        if not isinstance(got, (list, tuple)) or not all(_is_act(act) for act in got):
            raise Wrong(_WORDS, got, "Each act is a pair: a letter, F or B, and the number of a part.")
        parts = {part for _, part in got}
        if parts and min(parts) == 1 and max(parts) == m:
            raise Wrong(f"parts 0 to {m - 1}", sorted(parts), _FROM_0)
        if parts and max(parts) >= m:
            raise Wrong(f"parts 0 to {m - 1} on rank {rank} of {p}", f"part {max(parts)}", _ONLY)
        for kind, hint in ("F", _NEVER), ("B", _LEFT):
            mine = [part for what, part in got if what == kind]
            if sorted(mine) != list(range(m)):
                hint = hint if len(set(mine)) < m else _TWICE
                raise Wrong(f"{kind} of parts 0 to {m - 1} on rank {rank} of {p}", f"{kind} of {mine}", hint)
            if mine != sorted(mine):
                raise Wrong(f"{kind} of parts in their order", f"{kind} of {mine}", _LAST_FIRST)
        for part in range(m):
            if list(got).index(("F", part)) > list(got).index(("B", part)):
                raise Wrong(f"F{part} before B{part} on rank {rank} of {p}", f"{got}", _FIRST)
        orders.append([Act(kind, part, rank) for kind, part in got])
    return orders


def _is_act(act: Any) -> bool:
    return isinstance(act, tuple) and len(act) == 2 and act[0] in ("F", "B") and type(act[1]) is int and act[1] >= 0


def _check(fn: Callable, p: int, m: int) -> None:
    orders = _orders(fn, p, m)
    ahead = [next(n for n, act in enumerate(order) if act.kind == "B") for order in orders]
    far = _FAR if len(ahead) > 1 and ahead[0] < ahead[-1] else ""
    held = [schedules.in_flight(order) for order in orders]
    wanted = [min(m, p - rank) for rank in range(p)]
    try:
        spans = schedules.timed(orders, {"F": 1, "B": 2})
    except CourseError as error:
        raise Wrong("ranks that can go on", str(error).split(";")[0], far or _FEWER) from None
    if any(n > most for n, most in zip(held, wanted, strict=True)):
        hint = _ALIKE if p > 1 and len(set(ahead)) == 1 else _MORE
        hint = _ALL if ahead == [m] * p else hint
        raise Wrong(f"parts held at once by ranks 0 to {p - 1}: {wanted}", held, hint)
    took = max(mine[-1].end_s for mine in spans)
    if took > 3 * (m + p - 1):
        hint = far or (_NO_WARMUP if max(held) == 1 else _FEWER)
        raise Wrong(f"a step of {3 * (m + p - 1)} units on {p} ranks with {m} parts", f"{took:g}", hint)


EXERCISE = Exercise(
    name="one_f_one_b",
    chapter="19",
    cases=(
        case("One rank: each part goes forward, and back", _check, 1, 3),
        case("Four ranks, eight parts", _check, 4, 8),
        case("Two ranks, four parts", _check, 2, 4),
        case("As many parts as ranks", _check, 3, 3),
        case("Fewer parts than ranks", _check, 4, 2),
        case("Many of both", _check, 8, 32),
    ),
    hints=(
        "When is part 0 back on rank r? How many forwards fit in until then?",
        "Three pieces: only forward; pairs; only backward. How long is each?",
        "Which of the three pieces is empty on the last rank?",
    ),
    code=(
        "ahead = min(m, p - rank - 1)",
        "for part in range(m): a forward of part + ahead, if there is one; a backward of part",
    ),
)
