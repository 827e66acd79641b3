"""Arithmetic with stretches of time: how long, which overlap, what lies between, whose time it is.

In: intervals ``(start_s, end_s)`` or events in order of their starts. Out: seconds, intervals, events.
"""

from collections.abc import Iterable, Sequence

from dltutorial.profile.events import Event

Interval = tuple[float, float]
_ROUNDING_S = 1e-9  # traces count in nanoseconds: two ends closer than that are one


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same stretches without overlap, in order."""
    found: list[Interval] = []
    for start_s, end_s in sorted(intervals):
        if found and start_s <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_s))
        else:
            found.append((start_s, end_s))
    return found


def length(intervals: Iterable[Interval]) -> float:
    """Seconds covered by at least one of the intervals."""
    return sum(end_s - start_s for start_s, end_s in merged(intervals))


def clip(intervals: Iterable[Interval], start_s: float, end_s: float) -> list[Interval]:
    """What of them lies between two moments."""
    return [(max(a, start_s), min(b, end_s)) for a, b in intervals if b > start_s and a < end_s]


def without(intervals: Iterable[Interval], taken: Iterable[Interval]) -> list[Interval]:
    """What of the first is covered by none of the second."""
    left: list[Interval] = []
    blocks = merged(taken)
    for start_s, end_s in merged(intervals):
        for a, b in clip(blocks, start_s, end_s):
            if a > start_s:
                left.append((start_s, a))
            start_s = b
        if end_s > start_s:
            left.append((start_s, end_s))
    return left


def outermost(events: Iterable[Event]) -> list[Event]:
    """Those that lie in no other of the list on their row; ``events`` in order of their starts."""
    ends: dict[int, float] = {}
    kept = []
    for event in events:
        if event.end_s > ends.get(event.row, -1.0) + _ROUNDING_S:
            kept.append(event)
            ends[event.row] = event.end_s
    return kept


def self_seconds(events: Sequence[Event]) -> list[float]:
    """Of each event of one row, the time when none that started later was running; sums to the row's busy time."""
    self_s = [0.0] * len(events)
    running: list[int] = []
    now_s = 0.0

    def advance(to_s: float) -> None:
        nonlocal now_s
        while running and now_s < to_s:
            last = running[-1]
            until_s = min(to_s, events[last].end_s)
            self_s[last] += max(0.0, until_s - now_s)
            now_s = max(now_s, until_s)
            if events[last].end_s <= now_s:
                running.pop()
        now_s = to_s

    for index, event in enumerate(events):
        advance(event.start_s)
        running.append(index)
    advance(max((event.end_s for event in events), default=0.0))
    return self_s
