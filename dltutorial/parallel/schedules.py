"""Orders of a pipeline's work, as data: which rank does what, one after the other.

In: p ranks, m parts of a batch. Out: for each rank a list of acts; an act is a forward or a backward pass of one part
through one stage. Rank r of p holds the stages r, p + r, 2 p + r, …; all but ``interleaved`` have one stage a rank.

    F   forward: keeps activations
    B   backward; where there are W, of the inputs alone, so that the stage before can go on
    W   backward, of the weights: nobody waits for it

- :func:`timed` plays orders with given times, and finds those that stand still for ever;
- :func:`bubble` is the part of the ranks' time in which they have nothing to do;
- :func:`in_flight` counts the parts whose activations a rank holds.

Sources: Huang et al. 2019 (GPipe, arXiv:1811.06965), Narayanan et al. 2021 (1F1B and interleaved, arXiv:2104.04473),
Qi et al. 2023 (zero bubble, arXiv:2401.10241).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dltutorial.errors import CourseError


class Act(NamedTuple):
    """One box of a pipeline's timeline."""

    kind: str
    part: int
    stage: int


class Span(NamedTuple):
    """An act, and when it was done."""

    act: Act
    start_s: float
    end_s: float


Orders = list[list[Act]]


def gpipe(p: int, m: int) -> Orders:
    """All forward, then all backward."""
    return [[Act(kind, part, rank) for kind in "FB" for part in range(m)] for rank in range(p)]


def one_f_one_b(p: int, m: int) -> Orders:
    """As many forward as it takes until the first can come back, then one backward for each forward."""
    return interleaved(p, m, 1)


def interleaved(p: int, m: int, v: int = 2) -> Orders:
    """1F1B where each rank has v thin stages, p apart; each part goes around v times.
    CourseError: parts go around in groups of p, and m is no multiple of it.
    """
    if v > 1 and m % p:
        raise CourseError(f"{m} parts are not groups of {p}, as interleaving needs; take a multiple of {p}")
    orders = []
    for rank in range(p):
        forward, backward = (
            [Act(kind, part, p * chunk + rank) for part, chunk in _around(p, m, v, kind)] for kind in "FB"
        )
        ahead = min(m * v, p - rank - 1 if v == 1 else 2 * (p - rank - 1) + (v - 1) * p)
        pairs = [act for pair in zip(forward[ahead:], backward, strict=False) for act in pair]
        orders.append(forward[:ahead] + pairs + backward[m * v - ahead :])
    return orders


def _around(p: int, m: int, v: int, kind: str) -> list[tuple[int, int]]:
    """(part, chunk) in the order in which a rank meets them."""
    if v == 1:
        return [(part, 0) for part in range(m)]
    chunks = range(v) if kind == "F" else range(v)[::-1]
    return [(part, chunk) for first in range(0, m, p) for chunk in chunks for part in range(first, first + p)]


def zero_bubble(p: int, m: int) -> Orders:
    """1F1B with the weights' gradients apart (ZB-H1). They fill the gaps: rank r is r parts late with them.

    So every rank holds min(m, p) parts, as the first one of 1F1B does.
    """
    orders = []
    for rank in range(p):
        ahead = min(m, p - rank - 1)
        order = [Act("F", part, rank) for part in range(ahead)]
        for part in range(m + rank):
            order += [Act("F", ahead + part, rank)] * (ahead + part < m)
            order += [Act("B", part, rank)] * (part < m)
            order += [Act("W", part - rank, rank)] * (part >= rank)
        orders.append(order)
    return orders


def needs(act: Act, n_stages: int) -> list[Act]:
    """What must be done before."""
    kind, part, stage = act
    if kind == "F":
        return [Act("F", part, stage - 1)] * (stage > 0)
    if kind == "W":
        return [Act("B", part, stage)]
    return [Act("F", part, stage)] + [Act("B", part, stage + 1)] * (stage < n_stages - 1)


def timed(orders: Orders, seconds: Mapping[str, float]) -> list[list[Span]]:
    """When each act begins and ends, where ``seconds`` says how long a kind takes and messages take no time.
    CourseError: the ranks wait for each other for ever.
    """
    n_stages = 1 + max(act.stage for order in orders for act in order)
    spans: list[list[Span]] = [[] for _ in orders]
    ends: dict[Act, float] = {}
    while any(len(mine) < len(order) for mine, order in zip(spans, orders, strict=True)):
        moved = False
        for mine, order in zip(spans, orders, strict=True):
            while len(mine) < len(order) and all(act in ends for act in needs(order[len(mine)], n_stages)):
                act = order[len(mine)]
                ready = [ends[other] for other in needs(act, n_stages)] + [span.end_s for span in mine[-1:]]
                ends[act] = max(ready, default=0.0) + seconds[act.kind]
                mine.append(Span(act, ends[act] - seconds[act.kind], ends[act]))
                moved = True
        if not moved:
            stuck = [(r, o[len(s)]) for r, (s, o) in enumerate(zip(spans, orders, strict=True)) if len(s) < len(o)]
            told = "; ".join(f"rank {rank} at {''.join(map(str, act[:2]))}" for rank, act in stuck)
            raise CourseError(f"the ranks wait for each other for ever: {told}; change the order")
    return spans


def bubble(spans: Sequence[Sequence[Span]]) -> float:
    """The part of all ranks' time, from the first start to the last end, in which they do nothing."""
    every = [span for mine in spans for span in mine]
    whole = max(span.end_s for span in every) - min(span.start_s for span in every)
    return 1 - sum(span.end_s - span.start_s for span in every) / (len(spans) * whole)


def in_flight(order: Sequence[Act]) -> int:
    """The most parts of which a rank holds a stage's activations at once."""
    last = "W" if any(act.kind == "W" for act in order) else "B"
    held = most = 0
    for act in order:
        held += (act.kind == "F") - (act.kind == last)
        most = max(most, held)
    return most
