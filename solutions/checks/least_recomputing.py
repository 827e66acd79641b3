"""Checks of the second part of chapter 16's exercise: which blocks to recompute, so that a step fits into a budget.

The answer gets the blocks of a network and a budget in bytes. It returns the set of blocks to recompute that fits with
the least work, or None if no set fits. The checks compare it with a search over all sets. A known mistake is another
formula for the peak memory. A learner gets its hint if it explains the answers to all cases.

Source: Chen et al. 2016, arXiv:1604.06174
"""

import itertools
import numbers
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case


class Block(NamedTuple):
    """A block of a network. The learner's function gets such tuples.

    Attributes:
        saved_bytes: The activations that the block saves for its backward pass.
        input_bytes: The input of the block, which is all that it saves if it is recomputed.
        flop: The work of recomputing the block.
    """

    saved_bytes: int
    input_bytes: int
    flop: int


class Job(NamedTuple):
    """The arguments of the learner's function."""

    blocks: tuple[Block, ...]
    budget: int


Plan = set[int]  # the numbers of the blocks to recompute
Formula = Callable[[Sequence[Block], Plan], float]


def held_bytes(blocks: Sequence[Block], plan: Plan) -> int:
    """Return the bytes that the blocks save after the forward pass."""
    return sum(block.input_bytes if n in plan else block.saved_bytes for n, block in enumerate(blocks))


def peak_bytes(blocks: Sequence[Block], plan: Plan) -> int:
    """Return the bytes at the highest point, when the largest of the recomputed blocks has been recomputed."""
    return held_bytes(blocks, plan) + max((blocks[n].saved_bytes for n in plan), default=0)


def flop(blocks: Sequence[Block], plan: Plan) -> int:
    """Return the work of recomputing these blocks."""
    return sum(blocks[n].flop for n in plan)


def best(job: Job, cost: Formula = flop, peak: Formula = peak_bytes) -> Plan | None:
    """Return the plan with the least cost among those that fit, or None if none fits."""
    every = range(len(job.blocks))
    plans = [set(chosen) for n in range(len(every) + 1) for chosen in itertools.combinations(every, n)]
    fitting = [plan for plan in plans if peak(job.blocks, plan) <= job.budget]
    return min(fitting, key=lambda plan: cost(job.blocks, plan), default=None)


def _greedy(job: Job, value: Callable[[Block], float]) -> Plan | None:
    """Return the plan that recomputes the block of the highest value, then the next one, until the plan fits."""
    plan: Plan = set()
    for n in sorted(range(len(job.blocks)), key=lambda n: -value(job.blocks[n])):
        if peak_bytes(job.blocks, plan) <= job.budget:
            return plan
        plan.add(n)
    return plan if peak_bytes(job.blocks, plan) <= job.budget else None


def _largest_of_all(blocks: Sequence[Block]) -> int:
    return max(block.saved_bytes for block in blocks)


_ALL = "Only recomputed blocks count for the moment, not all blocks. Take the largest one of them."
MISTAKES: tuple[tuple[Formula, str], ...] = (
    (
        lambda blocks, plan: peak_bytes(blocks, plan) + 1,
        "A set whose peak is exactly the budget fits, too.",
    ),
    (
        lambda blocks, plan: held_bytes(blocks, plan) + _largest_of_all(blocks),
        _ALL,
    ),
    (
        lambda blocks, plan: held_bytes(blocks, plan) + (_largest_of_all(blocks) if plan else 0),
        _ALL,
    ),
    (
        lambda blocks, plan: (
            held_bytes(blocks, plan) + max((blocks[n].saved_bytes - blocks[n].input_bytes for n in plan), default=0)
        ),
        "The input of the largest recomputed block counts twice: once alone, and once in its saved_bytes.",
    ),
    (
        lambda blocks, plan: peak_bytes(blocks, plan) - sum(blocks[n].input_bytes for n in plan),
        "The input of a recomputed block is also saved. Count it.",
    ),
)
_GREEDY: tuple[tuple[Callable[[Block], float], str], ...] = (
    (
        lambda block: (block.saved_bytes - block.input_bytes) / block.flop,
        "Bytes per FLOP are not enough. The last block may free far more than you need. Compare complete sets.",
    ),
    (
        lambda block: -block.flop,
        "Many cheap blocks can cost more than one expensive block that frees more. Compare complete sets.",
    ),
    (
        lambda block: block.saved_bytes - block.input_bytes,
        "The block with the most bytes is not always the best one. Cheaper blocks may be enough.",
    ),
)


def _hint_for_all_jobs(fn: Callable) -> str:
    """Return the hint of the mistake that explains the answers to all cases, or an empty string."""
    answers = [fn(list(job.blocks), job.budget) for job in JOBS.values()]
    for peak, hint in MISTAKES:
        if answers == [best(job, peak=peak) for job in JOBS.values()]:
            return hint
    return ""


def _as_plan(got: Any, job: Job) -> Plan:
    """Return the answer as a set of numbers of blocks, or raise the error for an answer that is none."""
    if not isinstance(got, Set):
        raise Wrong("a set of block numbers", got, "Return a set such as {0, 2}. The empty set is set().")
    plan = {int(n) if isinstance(n, numbers.Integral) else n for n in got}
    if not all(type(n) is int and 0 <= n < len(job.blocks) for n in plan):
        raise Wrong(f"numbers from 0 to {len(job.blocks) - 1}", plan, "The first block has the number 0.")
    return plan


def _hint_for_memory(job: Job, plan: Plan) -> str:
    """Return the hint for a plan that does not fit."""
    hint = f"The peak of this set is {peak_bytes(job.blocks, plan)} bytes, but the budget is {job.budget}."
    if held_bytes(job.blocks, plan) <= job.budget:
        hint += " While a block is recomputed, its saved_bytes exist for a moment. The largest one counts."
    return hint


def _hint_for_work(job: Job, plan: Plan, expected: Plan) -> str:
    """Return the hint for a plan that fits with too much work."""
    if plan == best(job, cost=lambda blocks, candidate: len(candidate)):
        return "The set with the fewest blocks does not have the fewest FLOP."
    for value, hint in _GREEDY:
        if plan == _greedy(job, value):
            return hint
    least = f"{flop(job.blocks, expected)} FLOP are enough for {peak_bytes(job.blocks, expected)} of {job.budget} bytes"
    return f"Your set fits with {flop(job.blocks, plan)} FLOP. But {least}."


def _check(fn: Callable, job: Job) -> None:
    """The answer must be a plan that fits, with the least work."""
    expected = best(job)
    got = fn(list(job.blocks), job.budget)
    if expected is None:
        if got is not None:
            raise Wrong(None, got, _hint_for_all_jobs(fn) or "No set fits, not even all blocks. Return None.")
        return
    if got is None:
        hint = f"A set fits: the peak of {expected} is {peak_bytes(job.blocks, expected)} of {job.budget} bytes."
        raise Wrong(expected, got, _hint_for_all_jobs(fn) or hint)
    plan = _as_plan(got, job)
    if peak_bytes(job.blocks, plan) > job.budget:
        raise Wrong(expected, plan, _hint_for_all_jobs(fn) or _hint_for_memory(job, plan))
    if flop(job.blocks, plan) > flop(job.blocks, expected):
        raise Wrong(expected, plan, _hint_for_all_jobs(fn) or _hint_for_work(job, plan, expected))


def _blocks(*rows: tuple[int, int, int]) -> tuple[Block, ...]:
    return tuple(Block(*row) for row in rows)


_EQUAL = _blocks(*[(16, 1, 10)] * 4)
_MIXED = _blocks((40, 2, 50), (16, 1, 9), (16, 1, 9), (12, 1, 8), (24, 2, 30))
_WIDE = _blocks((32, 3, 30), (38, 1, 39), (34, 3, 26), (42, 1, 31), (27, 7, 17), (55, 7, 31))
_FOUR = _blocks((55, 1, 26), (37, 4, 10), (53, 2, 4), (15, 2, 8))
_ONE_LARGE = _blocks((30, 1, 20), (14, 1, 9), (14, 1, 9), (10, 1, 3))
JOBS = {
    "If everything fits, nothing is recomputed": Job(_EQUAL, 64),
    "Equal blocks: the moment of recomputation counts": Job(_EQUAL, 50),
    "All blocks are recomputed": Job(_EQUAL, 20),
    "A budget that is too small for every set": Job(_EQUAL, 19),
    "Unequal blocks: the fewest FLOP": Job(_MIXED, 100),
    "A peak of exactly the budget": Job(_MIXED, peak_bytes(_MIXED, {1, 2})),
    "A tight budget": Job(_MIXED, 70),
    "The largest recomputed block counts, at any position": Job(_WIDE, 134),
    "More blocks with fewer FLOP": Job(_FOUR, 120),
    "One expensive block, or several cheap ones": Job(_ONE_LARGE, 60),
}
EXERCISE = Exercise(
    name="least_recomputing",
    chapter="16",
    cases=tuple(case(name, _check, job) for name, job in JOBS.items()),
    hints=(
        "Which bytes exist at the peak? The sum has three terms.",
        "How many sets are there for twelve blocks? Can you try all of them?",
        "When does no set fit, and what do you return then?",
    ),
    code=("for again in itertools.chain.from_iterable(itertools.combinations(range(n), k) for k in range(n + 1)): …",),
)
