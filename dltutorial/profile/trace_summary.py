"""What a trace says in numbers: time by range and operator, how idle the device was, how long steps waited for input.

In: a :class:`~dltutorial.profile.events.Trace`. Out: seconds and shares (0 to 1); None where the trace cannot tell.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dltutorial.profile.events import STEP, Event, Trace
from dltutorial.profile.spans import Interval, clip, length, outermost, self_seconds
from dltutorial.profile.timing import duration
from dltutorial.record.table import Table

_OPERATORS = ("operator", "runtime", "kernel", "copy")
_BUSY = ("kernel", "copy")
_LETTERS = 90


class Total(NamedTuple):
    """All events of one name and category together; ``seconds`` is inclusive for ranges, self time for operators."""

    name: str
    category: str
    calls: int
    seconds: float


class Change(NamedTuple):
    """One name in two runs; seconds are those of one step where both runs have steps, else of the whole trace."""

    name: str
    category: str
    before_s: float
    after_s: float

    @property
    def ratio(self) -> float:
        """After divided by before; infinite for what is new."""
        return self.after_s / self.before_s if self.before_s else float("inf")


@dataclass(frozen=True)
class Summary:
    """The numbers of one trace.

    Attributes:
        steps: how many the trace holds.
        step_s: the median step; None without steps.
        ranges: by inclusive time, longest first.
        operators: by self time, longest first: operators, calls of CUDA, kernels and copies.
        device_idle_share: of the time from the first step's start, when no kernel ran and nothing was copied; the
            mean over devices. None ("not available") in a trace without device events.
        input_wait_share: of the stepping thread's time, spent waiting for the next batch. None where no range shows
            the loading.
    """

    steps: int
    step_s: float | None
    ranges: tuple[Total, ...]
    operators: tuple[Total, ...]
    device_idle_share: float | None
    input_wait_share: float | None

    def table(self, top: int = 8) -> Table:
        """The shares, twice ``top`` ranges, and the ``top`` operators; a long name is cut."""
        lines = [
            ("steps", "", self.steps, None if self.step_s is None else duration(self.step_s)),
            ("device idle", "share", "", _percent(self.device_idle_share)),
            ("waiting for input", "share", "", _percent(self.input_wait_share)),
        ]
        for total in (*self.ranges[: 2 * top], *self.operators[:top]):
            lines.append((short(total.name), total.category, total.calls, duration(total.seconds)))
        return Table.of(("what", "kind", "times", "time"), lines)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def __str__(self) -> str:
        return str(self.table())


def short(name: str) -> str:
    """A name that fits a table: kernels made from templates have thousands of letters."""
    return name if len(name) <= _LETTERS else name[: _LETTERS - 1] + "…"


def summarise(trace: Trace) -> Summary:
    """All the numbers of a trace."""
    step_s = [event.duration_s for event in outermost(steps_of(trace))]
    return Summary(
        steps=len(step_s),
        step_s=statistics.median(step_s) if step_s else None,
        ranges=range_times(trace),
        operators=operator_times(trace),
        device_idle_share=device_idle_share(trace),
        input_wait_share=input_wait_share(trace),
    )


def is_loading(event: Event) -> bool:
    """Whether a range is the wait for the next batch: one named ``load``, or a DataLoader's own."""
    own = event.name.startswith("enumerate(DataLoader)#") and event.name.endswith("__next__")
    return event.category == "range" and (event.name == "load" or own)


def range_times(trace: Trace) -> tuple[Total, ...]:
    """Inclusive time of every named range of the host; one inside another of its name counts once."""
    found = defaultdict(list)
    for event in trace.events:
        if event.category == "range":
            found[event.name].append(event)
    totals = []
    for name, events in found.items():
        outer = outermost(events)
        totals.append(Total(name, "range", len(outer), sum(event.duration_s for event in outer)))
    return _longest_first(totals)


def operator_times(trace: Trace) -> tuple[Total, ...]:
    """Self time by name: at each moment of a row, time belongs to the operator that started last."""
    totals: dict[tuple[str, str], list] = defaultdict(lambda: [0, 0.0])
    rows: dict[int, list[Event]] = defaultdict(list)
    for event in trace.events:
        if event.category in _OPERATORS:
            rows[event.row].append(event)
    for events in rows.values():
        for event, self_s in zip(events, self_seconds(events), strict=True):
            total = totals[event.name, event.category]
            total[0] += 1
            total[1] += self_s
    return _longest_first(Total(*key, *total) for key, total in totals.items())


def device_idle_share(trace: Trace) -> float | None:
    """Of the time between the first step's start and the end of all work, when a device did nothing."""
    busy: dict[int, list[Interval]] = defaultdict(list)
    for event in trace.events:
        if event.category in _BUSY:
            busy[trace.rows[event.row].device or 0].append((event.start_s, event.end_s))
    if not busy:
        return None
    steps = steps_of(trace)
    start_s = min((event.start_s for event in steps), default=0.0)
    device_end_s = max(end_s for intervals in busy.values() for _, end_s in intervals)
    end_s = max([device_end_s, *(event.end_s for event in steps)] if steps else [trace.span_s])
    if end_s <= start_s:
        return None
    inside = [length(clip(intervals, start_s, end_s)) for intervals in busy.values()]
    return 1 - statistics.mean(inside) / (end_s - start_s)


def input_wait_share(trace: Trace) -> float | None:
    """Loading as a share of loading and stepping together, on the thread that steps, whether it loads in its steps
    or between them. What another thread loads meanwhile is no wait.
    """
    steps = steps_of(trace)
    if not steps:
        return None
    row = steps[0].row
    loads = [(event.start_s, event.end_s) for event in trace.events if event.row == row and is_loading(event)]
    whole_s = length([*loads, *((event.start_s, event.end_s) for event in steps)])
    return length(loads) / whole_s if loads and whole_s else None


def changes(before: Trace, after: Trace, most: int = 10) -> tuple[Change, ...]:
    """Ranges and operators whose time changed most from one run to the other, the largest difference first."""
    n_old, n_new = len(outermost(steps_of(before))), len(outermost(steps_of(after)))
    per_step = n_old > 0 and n_new > 0
    old = _seconds_by_name(before, n_old if per_step else 1)
    new = _seconds_by_name(after, n_new if per_step else 1)
    found = [Change(*key, old.get(key, 0.0), new.get(key, 0.0)) for key in {**old, **new}]
    found.sort(key=lambda change: (-abs(change.after_s - change.before_s), change.name))
    return tuple(change for change in found if change.before_s != change.after_s)[:most]


def _seconds_by_name(trace: Trace, parts: int) -> dict[tuple[str, str], float]:
    totals = (*range_times(trace), *operator_times(trace))
    return {(total.name, total.category): total.seconds / parts for total in totals}


def steps_of(trace: Trace) -> list[Event]:
    """The ranges of its training steps, in order."""
    return [event for event in trace.events if event.category == "range" and event.name == STEP]


def _longest_first(totals: Iterable[Total]) -> tuple[Total, ...]:
    return tuple(sorted(totals, key=lambda total: (-total.seconds, total.name)))


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.0f}%"
