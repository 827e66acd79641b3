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


def _check(fn: Callable, blocks: Sequence[Block], budget: int) -> None:
    got, best = fn(list(blocks), budget), _least(blocks, budget)
    if best is None:
        if got is not None:
            raise Wrong(None, got, "No plan fits, not even all again: return None.")
        return
    if got is None:
        raise Wrong(best, got, f"A plan fits: {best} needs {peak(blocks, best)} bytes of {budget}.")
    if not isinstance(got, Set):
        raise Wrong("a set of numbers of blocks", got, "Return a set such as {0, 2}; the empty one is set().")
    got = {int(n) if isinstance(n, numbers.Integral) else n for n in got}
    if not all(type(n) is int and 0 <= n < len(blocks) for n in got):
        raise Wrong(f"numbers from 0 to {len(blocks) - 1}", got, "Blocks are counted from 0.")
    if peak(blocks, got) > budget:
        hint = f"This plan needs {peak(blocks, got)} bytes of {budget}."
        if peak(blocks, got, moment=False) <= budget:
            hint += " While a block is computed again, all that it keeps is there for a moment; the largest counts."
        raise Wrong(best, got, hint)
    if flop(blocks, got) > flop(blocks, best):
        least = f"{flop(blocks, best)} do, in {peak(blocks, best)} of {budget} bytes"
        hint = f"It fits, for {flop(blocks, got)} FLOP; {least}."
        for worth, advice in _GREEDY.values():
            if got == _in_order(blocks, budget, worth):
                hint = advice
        if got == _least(blocks, budget, cost=lambda blocks, plan: len(plan)):
            hint = "The fewest blocks are not the least work."
        if got == _least(blocks, budget - 1) and peak(blocks, best) == budget:
            hint = "A plan that fills the budget to the last byte fits as well."
        raise Wrong(best, got, hint)


_EQUAL = ((16, 1, 10),) * 4
_MIXED = ((40, 2, 50), (16, 1, 9), (16, 1, 9), (12, 1, 8), (24, 2, 30))
_WIDE = ((32, 3, 30), (38, 1, 39), (34, 3, 26), (42, 1, 31), (27, 7, 17), (55, 7, 31))
EXERCISE = Exercise(
    name="least_recomputing",
    chapter="16",
    cases=(
        case("Where all fits nothing is computed again", _check, _EQUAL, 64),
        case("Equal blocks: as many as it takes, and the moment counts", _check, _EQUAL, 50),
        case("All of them again", _check, _EQUAL, 20),
        case("A budget that no plan meets", _check, _EQUAL, 19),
        case("Unequal blocks: the least work", _check, _MIXED, 100),
        case("Exactly as many bytes as there are", _check, _MIXED, peak(_MIXED, {1, 2})),
        case("A tight budget", _check, _MIXED, 70),
        case("The largest of those computed again, wherever it stands", _check, _WIDE, 134),
        case("More blocks for less work", _check, ((55, 1, 26), (37, 4, 10), (53, 2, 4), (15, 2, 8)), 120),
        case("One dear block, or some cheap ones", _check, ((30, 1, 20), (14, 1, 9), (14, 1, 9), (10, 1, 3)), 60),
    ),
    hints=(
        "What is held at the highest point? Which three terms does that sum have?",
        "How many plans are there for a dozen blocks? Is it worth being clever?",
        "When is there no plan at all, and what do you return then?",
    ),
    code=("for again in itertools.chain.from_iterable(itertools.combinations(range(n), k) for k in range(n + 1)): …",),
)
