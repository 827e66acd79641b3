"""An interactive timeline of one trace, or of two above each other, in one HTML page that asks nothing of a network.

In: traces. Out: in a notebook a frame that zooms and pans; :meth:`Timeline.page` is the page. It
holds the events as columns of 32-bit integers (start as the distance from the start before it in its lane, length,
index of the name), compressed, and draws only those in view. Beside the picture stand tables that say the same, and
for two traces a list of what changed.

A trace is untrusted: its names travel as data, never as markup, and the page lets no script run but ``timeline.js``,
named by its hash.
"""

import base64
import hashlib
import heapq
import html
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from string import Template
from typing import NamedTuple

import numpy as np

from dltutorial.profile import trace_summary
from dltutorial.profile.events import Event, Trace
from dltutorial.profile.timing import duration
from dltutorial.record.table import Table

_AROUND_PX = 130  # title, legend and hints
_TABLE_HEAD_PX, _TABLE_ROW_PX = 34, 24
_LETTERS = 300  # of a name
_AXIS_PX, _LANE_PX, _MOST_PX = 20, 17, 420  # as in timeline.js
_WAITING = "waiting for input"
# What a box shows → its colour (Okabe and Ito's) and that of the text on it.
_KINDS = {
    "range": ("#0072b2", "#ffffff"),
    _WAITING: ("#f0e442", "#000000"),
    "operator": ("#009e73", "#000000"),
    "runtime": ("#e69f00", "#000000"),
    "kernel": ("#d55e00", "#000000"),
    "copy": ("#cc79a7", "#000000"),
    "device range": ("#56b4e9", "#000000"),
    "python": ("#999999", "#000000"),
}


class Lane(NamedTuple):
    """One line of boxes; only the first lane of a row has a label."""

    label: str
    events: list[Event]


def kind(event: Event) -> str:
    """What a box shows: its category, or that it is a wait for input."""
    return _WAITING if event.is_loading else event.category


def lanes(events: Iterable[Event], label: str) -> list[Lane]:
    """Each event into the highest lane that is free; in the order of starts that puts a child below its parent."""
    found: list[Lane] = []
    ends_ns: list[int] = []
    for event in events:
        start_ns, end_ns = round(event.start_s * 1e9), round(event.end_s * 1e9)
        place = next((index for index, busy_ns in enumerate(ends_ns) if busy_ns <= start_ns), len(found))
        if place == len(found):
            found.append(Lane("" if found else label, []))
            ends_ns.append(0)
        found[place].events.append(event)
        ends_ns[place] = end_ns
    return found


@dataclass(frozen=True)
class Timeline:
    """One trace, or two on a common axis.

    Attributes:
        trace: drawn on top; "before" in the list of changes.
        other: drawn below it; "after".
        title: what the picture shows.
        names: of the two traces.
        max_events: of more than these, the shortest are left out, and the page says so.
    """

    trace: Trace
    other: Trace | None = None
    title: str = "Timeline"
    names: tuple[str, str] = ("before", "after")
    max_events: int = 300_000

    def page(self) -> str:
        """The whole page."""
        runs = " and ".join(f"{name} {duration(trace.span_s)}".strip() for name, trace in self._runs)
        label = (
            f"{self.title}: timeline of {sum(len(lane.events) for lane in self._lanes):,} events, {runs} long. "
            "Plus and minus zoom, arrow keys move, 0 shows all. The tables below say the same."
        )
        return Template(_resource("timeline.html")).substitute(
            hash=script_hash(),
            title=html.escape(self.title),
            height=self._height_px,
            label=html.escape(label, quote=True),
            legend=self._legend(),
            changed=f"<h2>What changed</h2>{self.changes._repr_html_()}" if self.changes else "",
            summary="The same as tables" if self.other else "The same as a table",
            tables="".join(
                (f"<h2>{html.escape(name)}</h2>" if name else "") + trace_summary.table(trace, top=15)._repr_html_()
                for name, trace in self._runs
            ),
            data=self._columns(),
            script=_resource("timeline.js"),
        )

    @cached_property
    def changes(self) -> Table | None:
        """What changed most from the first trace to the second; None for a single one."""
        return trace_summary.changes(self.trace, self.other, self.names) if self.other else None

    @cached_property
    def _runs(self) -> list[tuple[str, Trace]]:
        before, after = self.names
        return [(before, self.trace), (after, self.other)] if self.other else [("", self.trace)]

    @cached_property
    def _lanes(self) -> list[Lane]:
        """From top to bottom, with the longest events of each trace."""
        found: list[Lane] = []
        for name, trace in self._runs:
            longest = set(heapq.nlargest(self._most_events, trace.events, key=lambda event: event.duration_s))
            events = [event for event in trace.events if event in longest]
            for row, in_row in enumerate(trace.rows):
                label = f"{name}: {in_row.name}" if name else in_row.name
                found += lanes([event for event in events if event.row == row], label)
        return found

    @property
    def _most_events(self) -> int:
        return self.max_events // len(self._runs)

    @property
    def _height_px(self) -> int:
        """Of the canvas: all lanes, or as many as leave room for the rest of a screen."""
        return min(_MOST_PX, _AXIS_PX + _LANE_PX * len(self._lanes))

    def _legend(self) -> str:
        """The kinds that occur, with their colours, as HTML."""
        found = {kind(event) for lane in self._lanes for event in lane.events}
        parts = [f'<span><i style="background:{_KINDS[name][0]}"></i>{name}</span>' for name in _KINDS if name in found]
        n_left_out = sum(max(0, len(trace.events) - self._most_events) for _, trace in self._runs)
        if n_left_out:
            parts.append(f"<span>the {n_left_out:,} shortest events are left out</span>")
        return "".join(parts)

    def _columns(self) -> str:
        """For timeline.js; every ``<`` is escaped, so that nothing in it ends the script element it stands in."""
        end_s = max(trace.span_s for _, trace in self._runs)
        # Nanoseconds, as the profiler counts; coarser where 32 bits would not reach the end.
        tick_s = max(1e-9, end_s / (2**32 - 2))
        kinds = {name: index for index, name in enumerate(_KINDS)}
        names: dict[tuple[str, int], int] = {}  # name and kind → index
        starts, lengths, indices = [], [], []
        for lane in self._lanes:
            times_s = np.array([(event.start_s, event.end_s) for event in lane.events])
            ticks = np.rint(times_s / tick_s).astype(np.int64)
            starts.append(np.diff(ticks[:, 0], prepend=0))
            lengths.append(ticks[:, 1] - ticks[:, 0])
            keys = [(event.name[:_LETTERS], kinds[kind(event)]) for event in lane.events]
            indices += [names.setdefault(key, len(names)) for key in keys]
        columns = np.concatenate([*starts, *lengths, np.array(indices)]).astype("<u4")
        data = {
            "tick_s": tick_s,
            "ticks": max(1.0, end_s / tick_s),
            "kinds": [(name, *colours) for name, colours in _KINDS.items()],
            "names": list(names),
            "lanes": [(lane.label, len(lane.events)) for lane in self._lanes],
            "columns": base64.b64encode(zlib.compress(columns.tobytes(), 6)).decode(),
        }
        return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")

    def _repr_html_(self) -> str:
        height_px = self._height_px + _AROUND_PX
        if self.changes:
            height_px += _TABLE_HEAD_PX + _TABLE_ROW_PX * (1 + len(self.changes.rows))
        source = html.escape(self.page(), quote=True)
        return (
            f'<iframe sandbox="allow-scripts" title="{html.escape(self.title, quote=True)}" srcdoc="{source}" '
            f'style="border:0;width:100%;height:{height_px}px"></iframe>'
        )

    def __str__(self) -> str:
        tables = [f"{name}\n{trace_summary.table(trace)}".strip() for name, trace in self._runs]
        return "\n\n".join([self.title, *tables, *([str(self.changes)] if self.changes else [])])

    __repr__ = __str__


def script_hash() -> str:
    """What a page's Content-Security-Policy must name in ``script-src`` for timelines inside it to come alive."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(_resource('timeline.js').encode()).digest()).decode()}'"


def _resource(name: str) -> str:
    return (resources.files("dltutorial.profile") / name).read_text(encoding="utf-8")
