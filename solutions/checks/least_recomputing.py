"""Checks of chapter 16's exercise, second part: which blocks to compute again, so that a step fits into a budget."""

import itertools
import numbers
from collections.abc import Callable, Sequence, Set

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case

Block = tuple[int, int, int]  # bytes kept; bytes of its input; FLOP to compute it again


def peak(blocks: Sequence[Block], again: set[int], moment: bool = True) -> int:
    """Bytes at the highest point; without the moment in which a block is computed again, that well-known mistake."""
    held = sum(of if n in again else kept for n, (kept, of, _) in enumerate(blocks))
    return held + (max((blocks[n][0] for n in again), default=0) if moment else 0)


def flop(blocks: Sequence[Block], again: set[int]) -> int:
    """Work of computing these blocks once more."""
    return sum(blocks[n][2] for n in again)


def _plans(blocks: Sequence[Block]) -> list[set[int]]:
    every = range(len(blocks))
    return [set(some) for n in range(len(blocks) + 1) for some in itertools.combinations(every, n)]


def _least(blocks: Sequence[Block], budget: int, cost: Callable = flop, fits: Callable = peak) -> set[int] | None:
    able = [plan for plan in _plans(blocks) if fits(blocks, plan) <= budget]
    return min(able, key=lambda plan: cost(blocks, plan), default=None)


def _in_order(blocks: Sequence[Block], budget: int, worth: Callable) -> set[int] | None:
    """Greedily: the block that is worth most, then the next, until it fits."""
    again: set[int] = set()
    for n in sorted(range(len(blocks)), key=lambda n: -worth(*blocks[n])):
        if peak(blocks, again) <= budget:
            return again
        again.add(n)
    return again if peak(blocks, again) <= budget else None


_GREEDY = {
    "most bytes first": (lambda kept, of, work: kept - of, "Most bytes first is not least work: cheap blocks may do."),
    "least work first": (lambda kept, of, work: -work, "Cheapest first adds up: one dearer block may free more."),
    "bytes per FLOP": (
        lambda kept, of, work: (kept - of) / work,
        "Bytes per FLOP in their order: the last one taken may free far more than is needed. Compare whole plans.",
    ),
}


_ALL = "The largest of those computed again, not of all blocks: the others keep what they keep."
# What a wrong answer takes for the peak, and what to say to it.
MISTAKES: tuple[tuple[Callable, str], ...] = (
    (lambda blocks, again: peak(blocks, again) + 1, "A plan that fills the budget to the last byte fits as well."),
    (lambda blocks, again: peak(blocks, again, False) + max(kept for kept, _, _ in blocks), _ALL),
    (lambda blocks, again: peak(blocks, again, False) + max(kept for kept, _, _ in blocks) * bool(again), _ALL),
    (
        lambda blocks, again: peak(blocks, again, False) + max((blocks[n][0] - blocks[n][1] for n in again), default=0),
        "The input of the largest is counted, and is counted again: for a moment there is all that the block keeps.",
    ),
    (
        lambda blocks, again: peak(blocks, again) - sum(blocks[n][1] for n in again),
        "The input of a block that is computed again is kept: count it.",
    ),
)


def _known(fn: Callable) -> str:
    """What to say to an answer that makes a well-known mistake, and makes it in every case."""
    answers = [fn(list(blocks), budget) for blocks, budget in CASES.values()]
    for fits, hint in MISTAKES:
        if answers == [_least(*given, fits=fits) for given in CASES.values()]:
            return hint
    return ""


def _check(fn: Callable, blocks: Sequence[Block], budget: int) -> None:
    got, best = fn(list(blocks), budget), _least(blocks, budget)
    if best is None:
        if got is not None:
            raise Wrong(None, got, _known(fn) or "No plan fits, not even all again: return None.")
        return
    if got is None:
        raise Wrong(best, got, _known(fn) or f"A plan fits: {best} needs {peak(blocks, best)} bytes of {budget}.")
    if not isinstance(got, Set):
        raise Wrong("a set of numbers of blocks", got, "Return a set such as {0, 2}; the empty one is set().")
    got = {int(n) if isinstance(n, numbers.Integral) else n for n in got}
    if not all(type(n) is int and 0 <= n < len(blocks) for n in got):
        raise Wrong(f"numbers from 0 to {len(blocks) - 1}", got, "Blocks are counted from 0.")
    if peak(blocks, got) > budget:
        hint = f"This plan needs {peak(blocks, got)} bytes of {budget}."
        if peak(blocks, got, moment=False) <= budget:
            hint += " While a block is computed again, all that it keeps is there for a moment; the largest counts."
        raise Wrong(best, got, _known(fn) or hint)
    if flop(blocks, got) > flop(blocks, best):
        least = f"{flop(blocks, best)} do, in {peak(blocks, best)} of {budget} bytes"
        hint = f"It fits, for {flop(blocks, got)} FLOP; {least}."
        for worth, advice in _GREEDY.values():
            if got == _in_order(blocks, budget, worth):
                hint = advice
        if got == _least(blocks, budget, cost=lambda blocks, plan: len(plan)):
            hint = "The fewest blocks are not the least work."
        raise Wrong(best, got, _known(fn) or hint)


_EQUAL = ((16, 1, 10),) * 4
_MIXED = ((40, 2, 50), (16, 1, 9), (16, 1, 9), (12, 1, 8), (24, 2, 30))
_WIDE = ((32, 3, 30), (38, 1, 39), (34, 3, 26), (42, 1, 31), (27, 7, 17), (55, 7, 31))
CASES: dict[str, tuple[tuple[Block, ...], int]] = {
    "Where all fits nothing is computed again": (_EQUAL, 64),
    "Equal blocks: as many as it takes, and the moment counts": (_EQUAL, 50),
    "All of them again": (_EQUAL, 20),
    "A budget that no plan meets": (_EQUAL, 19),
    "Unequal blocks: the least work": (_MIXED, 100),
    "Exactly as many bytes as there are": (_MIXED, peak(_MIXED, {1, 2})),
    "A tight budget": (_MIXED, 70),
    "The largest of those computed again, wherever it stands": (_WIDE, 134),
    "More blocks for less work": (((55, 1, 26), (37, 4, 10), (53, 2, 4), (15, 2, 8)), 120),
    "One dear block, or some cheap ones": (((30, 1, 20), (14, 1, 9), (14, 1, 9), (10, 1, 3)), 60),
}
EXERCISE = Exercise(
    name="least_recomputing",
    chapter="16",
    cases=tuple(case(name, _check, *given) for name, given in CASES.items()),
    hints=(
        "What is held at the highest point? Which three terms does that sum have?",
        "How many plans are there for a dozen blocks? Is it worth being clever?",
        "When is there no plan at all, and what do you return then?",
    ),
    code=("for again in itertools.chain.from_iterable(itertools.combinations(range(n), k) for k in range(n + 1)): …",),
)
