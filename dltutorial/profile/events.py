"""What a trace is made of: events on rows, in seconds since the first one.

In: events from whoever recorded them (torch's profiler, ``nsys``). Out: a frozen :class:`Trace`, in order.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dltutorial.errors import CourseError

STEP = "step"  # the range of one training step
ON_DEVICE = ("kernel", "copy", "device range")
CATEGORIES = ("range", "operator", "runtime", "python", *ON_DEVICE)


class Event(NamedTuple):
    """One thing that ran.

    Attributes:
        name: of the range, operator or kernel.
        category: one of ``CATEGORIES``.
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


class Row(NamedTuple):
    """Where events ran: a thread of the host (``device`` is None) or a stream of a device (its number)."""

    name: str
    device: int | None = None


@dataclass(frozen=True)
class Trace:
    """Events in the order in which they started, an enclosing one before what it holds."""

    events: tuple[Event, ...]
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, events: Iterable[Event], rows: Iterable[Row]) -> "Trace":
        """Put events in order and let the first one start at 0.

        Raises:
            CourseError: no event.
        """
        ordered = sorted(events, key=lambda event: (event.start_s, -event.duration_s))
        if not ordered:
            raise CourseError("a trace without events; let run_step call torch, or name a range in it")
        first_s = ordered[0].start_s
        return cls(tuple(event._replace(start_s=event.start_s - first_s) for event in ordered), tuple(rows))

    @property
    def span_s(self) -> float:
        """From the first start to the last end."""
        return max(event.end_s for event in self.events)
