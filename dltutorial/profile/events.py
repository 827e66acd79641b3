"""The content of a trace: events on rows, and arithmetic with time intervals.

Input: events from a profiler, or from a simulation.
Output: a frozen :class:`Trace` with its events in order. An interval is a pair ``(start_s, end_s)``. The functions of
this file merge, clip and subtract lists of intervals, and add up their lengths. All times are in seconds since the
first event of the trace.

Source: "Trace Event Format" (Google, documentation of Perfetto), whose complete events are what we call events.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

STEP = "step"  # name of the range of one training step
ON_DEVICE = ("kernel", "copy", "device range")

Interval = tuple[float, float]
_ROUNDING_S = 1e-9  # traces count in nanoseconds, so two times that are closer than this are equal


class Event(NamedTuple):
    """One thing that ran.

    Attributes:
        name: Name of the range, operator or kernel.
        category: One of range, operator, runtime (a call of CUDA), kernel, copy and device range.
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
        """Whether this is the wait for the next batch, in a range named ``load`` or in the range of a DataLoader."""
        if self.category != "range":
            return False
        return self.name == "load" or self.name.startswith("enumerate(DataLoader)#")


@dataclass(frozen=True)
class Trace:
    """Events in the order of their starts. An outer event precedes its inner events.

    Attributes:
        events: The events.
        rows: The names of the rows on which they ran. A row is a thread of the host or a stream of a GPU.
    """

    events: tuple[Event, ...]
    rows: tuple[str, ...]

    @classmethod
    def of(cls, events: Iterable[Event], rows: Iterable[str]) -> "Trace":
        """Put events in order, and let the first one start at 0.

        Args:
            events: The events, in any order.
            rows: The names of the rows to which they refer.

        Returns:
            The trace.
        """
        ordered = sorted(events, key=lambda event: (event.start_s, -event.duration_s))
        first_s = ordered[0].start_s
        return cls(tuple(event._replace(start_s=event.start_s - first_s) for event in ordered), tuple(rows))

    @property
    def span_s(self) -> float:
        """Seconds from the first start to the last end."""
        return max(event.end_s for event in self.events)

    @cached_property
    def steps(self) -> list[Event]:
        """The ranges of the training steps, in order."""
        return outermost(event for event in self.of_category("range") if event.name == STEP)

    def of_category(self, *categories: str) -> list[Event]:
        """The events of these categories, in order."""
        return [event for event in self.events if event.category in categories]


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
    edges = []  # time, and whether it starts (1) or ends (-1) an interval or a removed interval
    for start_s, end_s in merged(intervals):
        edges += [(start_s, 1, 0), (end_s, -1, 0)]
    for start_s, end_s in merged(removed):
        edges += [(start_s, 0, 1), (end_s, 0, -1)]
    result: list[Interval] = []
    n_open = 0
    n_removed_open = 0
    last_s = 0.0
    for time_s, change, removed_change in sorted(edges):
        if n_open and not n_removed_open and time_s > last_s:
            result.append((last_s, time_s))
        n_open += change
        n_removed_open += removed_change
        last_s = time_s
    return result


def covers(intervals: Iterable[Interval], moment_s: float) -> bool:
    """Whether a time lies in one of the intervals."""
    return any(start_s <= moment_s < end_s for start_s, end_s in intervals)


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
    """The self time of each event of one row: its length without the events that it called.

    Args:
        events: The events of one row, in the order of their starts.

    Returns:
        Seconds for each event. Their sum is the time in which the row is busy.
    """
    self_s = [event.duration_s for event in events]
    running: list[int] = []  # indices of events; the last one is the innermost
    for index, event in enumerate(events):
        while running and events[running[-1]].end_s <= event.start_s + _ROUNDING_S:
            running.pop()
        if running:
            parent = running[-1]
            shared_s = min(event.end_s, events[parent].end_s) - event.start_s
            self_s[parent] = max(0.0, self_s[parent] - shared_s)
        running.append(index)
    return self_s
