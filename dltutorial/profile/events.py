"""The content of a trace: events on rows, and arithmetic with time intervals.

Input: events from a profiler, or from a simulation.
Output: a frozen :class:`Trace` with its events in order. An interval is a pair ``(start_s, end_s)``. The functions of
this file merge, clip and subtract lists of intervals, and add up their lengths. All times are in seconds since the
first event of the trace.

Source: "Trace Event Format" (Google, documentation of Perfetto), whose complete events are what we call events.
"""

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dltutorial.errors import CourseError

STEP = "step"  # name of the range of one training step
ON_DEVICE = ("kernel", "copy", "device range")

Interval = tuple[float, float]
_ROUNDING_S = 1e-9  # traces count in nanoseconds, so two times that are closer than this are equal


class Event(NamedTuple):
    """One thing that ran.

    Attributes:
        name: Name of the range, operator or kernel.
        category: One of range, operator, runtime (a call of CUDA), python, kernel, copy and device range.
        start_s: Seconds from the first event of the trace to the start of this event.
        duration_s: Length in seconds.
        row: Index into ``Trace.rows``.
    """

    name: str
    category: str
    start_s: float
    duration_s: float
    row: int

    @property
    def end_s(self) -> float:
        """The end of the event."""
        return self.start_s + self.duration_s

    @property
    def is_loading(self) -> bool:
        """Whether it is the wait for the next batch: a range named ``load``, or the range of a DataLoader."""
        if self.category != "range":
            return False
        return self.name == "load" or (
            self.name.startswith("enumerate(DataLoader)#") and self.name.endswith("__next__")
        )


class TraceRow(NamedTuple):
    """Where events ran: a thread of the host (``device`` is None), or a stream of the device with this number."""

    name: str
    device: int | None = None


@dataclass(frozen=True)
class Trace:
    """Events in the order of their starts, and the rows on which they ran. An outer event precedes its inner events."""

    events: tuple[Event, ...]
    rows: tuple[TraceRow, ...]

    @classmethod
    def of(cls, events: Iterable[Event], rows: Iterable[TraceRow]) -> "Trace":
        """Put events in order, and let the first one start at 0.

        Args:
            events: The events, in any order.
            rows: The rows to which they refer.

        Returns:
            The trace.

        Raises:
            CourseError: There is no event.
        """
        ordered = sorted(events, key=lambda event: (event.start_s, -event.duration_s))
        if not ordered:
            raise CourseError("a trace without events; let run_step call torch, or name a range in it")
        first_s = ordered[0].start_s
        return cls(tuple(event._replace(start_s=event.start_s - first_s) for event in ordered), tuple(rows))

    @property
    def span_s(self) -> float:
        """Seconds from the first start to the last end."""
        return max(event.end_s for event in self.events)

    @cached_property
    def steps(self) -> list[Event]:
        """The ranges of the training steps, in order."""
        return outermost(event for event in self.events if event.category == "range" and event.name == STEP)


def intervals(events: Iterable[Event]) -> list[Interval]:
    """The interval of each event."""
    return [(event.start_s, event.end_s) for event in events]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals without overlap, in order, that cover the same times."""
    result: list[Interval] = []
    for start_s, end_s in sorted(intervals):
        if result and start_s <= result[-1][1]:
            last_start_s, last_end_s = result[-1]
            result[-1] = (last_start_s, max(last_end_s, end_s))
        else:
            result.append((start_s, end_s))
    return result


def length(intervals: Iterable[Interval]) -> float:
    """Seconds that at least one of the intervals covers."""
    return sum(end_s - start_s for start_s, end_s in merged(intervals))


def clip(intervals: Iterable[Interval], start_s: float, end_s: float) -> list[Interval]:
    """The parts of the intervals between two times."""
    overlapping = [(a_s, b_s) for a_s, b_s in intervals if b_s > start_s and a_s < end_s]
    return [(max(a_s, start_s), min(b_s, end_s)) for a_s, b_s in overlapping]


def without(intervals: Iterable[Interval], removed: Iterable[Interval]) -> list[Interval]:
    """The parts of the intervals that none of the removed intervals covers."""
    result: list[Interval] = []
    blocks = merged(removed)
    index = 0
    for start_s, end_s in merged(intervals):
        rest_s = start_s  # what lies before is done
        while index < len(blocks) and blocks[index][0] < end_s:
            block_start_s, block_end_s = blocks[index]
            if block_start_s > rest_s:
                result.append((rest_s, block_start_s))
            rest_s = max(rest_s, block_end_s)
            if block_end_s > end_s:
                break  # the block may also cover a part of the next interval
            index += 1
        if end_s > rest_s:
            result.append((rest_s, end_s))
    return result


def covers(blocks: Sequence[Interval], moment_s: float) -> bool:
    """Whether a time lies in one of these merged intervals."""
    index = bisect.bisect(blocks, (moment_s, math.inf)) - 1
    return index >= 0 and moment_s < blocks[index][1]


def outermost(events: Iterable[Event]) -> list[Event]:
    """The events that lie inside no other event of the list on their row.

    Args:
        events: Events in the order of their starts.
    """
    last_end_s: dict[int, float] = {}  # of each row
    result = []
    for event in events:
        if event.end_s > last_end_s.get(event.row, -1.0) + _ROUNDING_S:
            result.append(event)
            last_end_s[event.row] = event.end_s
    return result


def self_seconds(events: Sequence[Event]) -> list[float]:
    """The self time of each event of one row: the time in which no event that started later was running.

    Args:
        events: The events of one row, in the order of their starts.

    Returns:
        Seconds for each event. Their sum is the time in which the row is busy.
    """
    self_s = [0.0] * len(events)
    running: list[int] = []  # indices of events; the last one is the innermost
    now_s = 0.0
    for index, event in enumerate(events):
        _advance(events, running, self_s, now_s, event.start_s)
        now_s = event.start_s
        running.append(index)
    _advance(events, running, self_s, now_s, math.inf)
    return self_s


def _advance(events: Sequence[Event], running: list[int], self_s: list[float], now_s: float, until_s: float) -> None:
    """Give the time from now until ``until_s`` to the innermost running events, and remove events that have ended."""
    while running and now_s < until_s:
        innermost = running[-1]
        stop_s = min(until_s, events[innermost].end_s)
        self_s[innermost] += max(0.0, stop_s - now_s)
        now_s = max(now_s, stop_s)
        if events[innermost].end_s <= now_s:
            running.pop()
