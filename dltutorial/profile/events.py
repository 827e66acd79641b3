"""What a trace is made of: events on rows, in seconds since the first one; and arithmetic with stretches of time.

In: events from whoever recorded them. Out: a frozen :class:`Trace`, in order; of intervals ``(start_s, end_s)`` how
long they are together, what lies between them, whose time it is.
"""

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dltutorial.errors import CourseError

STEP = "step"  # the range of one training step
ON_DEVICE = ("kernel", "copy", "device range")

Interval = tuple[float, float]
_ROUNDING_S = 1e-9  # traces count in nanoseconds: two ends closer than that are one


class Event(NamedTuple):
    """One thing that ran.

    Attributes:
        name: of the range, operator or kernel.
        category: range, operator, runtime (a call of CUDA), python, kernel, copy or device range.
        start_s: since the trace's first event.
        duration_s: its length.
        row: index into ``Trace.rows``.
    """

    name: str
    category: str
    start_s: float
    duration_s: float
    row: int

    @property
    def end_s(self) -> float:
        """When it ended."""
        return self.start_s + self.duration_s

    @property
    def is_loading(self) -> bool:
        """Whether it is the wait for the next batch: a range named ``load``, or a DataLoader's own."""
        own = self.name.startswith("enumerate(DataLoader)#") and self.name.endswith("__next__")
        return self.category == "range" and (self.name == "load" or own)


class TraceRow(NamedTuple):
    """Where events ran: a thread of the host (``device`` is None) or a stream of a device (its number)."""

    name: str
    device: int | None = None


@dataclass(frozen=True)
class Trace:
    """Events in the order in which they started, an enclosing one before what it holds."""

    events: tuple[Event, ...]
    rows: tuple[TraceRow, ...]

    @classmethod
    def of(cls, events: Iterable[Event], rows: Iterable[TraceRow]) -> "Trace":
        """Put events in order and let the first one start at 0. CourseError: no event."""
        ordered = sorted(events, key=lambda event: (event.start_s, -event.duration_s))
        if not ordered:
            raise CourseError("a trace without events; let run_step call torch, or name a range in it")
        return cls(tuple(event._replace(start_s=event.start_s - ordered[0].start_s) for event in ordered), tuple(rows))

    @property
    def span_s(self) -> float:
        """From the first start to the last end."""
        return max(event.end_s for event in self.events)

    @cached_property
    def steps(self) -> list[Event]:
        """The ranges of its training steps, in order."""
        return outermost(event for event in self.events if event.category == "range" and event.name == STEP)


def intervals(events: Iterable[Event]) -> list[Interval]:
    """When each of them ran."""
    return [(event.start_s, event.end_s) for event in events]


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
    at = 0
    for start_s, end_s in merged(intervals):
        while at < len(blocks) and blocks[at][0] < end_s:
            a, b = blocks[at]
            if a > start_s:
                left.append((start_s, a))
            start_s = max(start_s, b)
            if b > end_s:
                break  # it reaches into what comes next
            at += 1
        if end_s > start_s:
            left.append((start_s, end_s))
    return left


def covers(blocks: Sequence[Interval], moment_s: float) -> bool:
    """Whether a moment lies in one of these merged intervals."""
    at = bisect.bisect(blocks, (moment_s, math.inf)) - 1
    return at >= 0 and moment_s < blocks[at][1]


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
