"""An interactive timeline of one trace, or of two traces one above the other, in one HTML page without network access.

Input: traces.
Output: a frame in a notebook, which zooms and pans. :meth:`Timeline.page` is the page in it.

The page holds the events as JSON: for each lane a list of (start in ns, length in ns, index of the name). The script
``timeline.js`` draws the events in view. Tables beside the drawing hold the same content and, for two traces, a list of
what changed. The page lets no other script run, because its policy names this script by a hash.

Source: w3.org/TR/CSP3 for the policy; Okabe and Ito 2008, jfly.uni-koeln.de/color, for the colours.
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import NamedTuple

import jinja2

from dltutorial.profile import trace_summary
from dltutorial.profile.events import Event, Trace
from dltutorial.profile.timing import duration
from dltutorial.record.table import Table

_AXIS_PX, _LANE_PX = 20, 17  # as in timeline.js
_MAX_CANVAS_PX = 420
_AROUND_CANVAS_PX = 130  # title, legend and help
_TABLE_HEAD_PX, _TABLE_ROW_PX = 34, 24
_MAX_NAME_LENGTH = 300
_WAITING = "waiting for input"
# Kind of box → its colour, and the colour of the text on it.
_COLOURS = {
    "range": ("#0072b2", "#ffffff"),
    _WAITING: ("#f0e442", "#000000"),
    "operator": ("#009e73", "#000000"),
    "runtime": ("#e69f00", "#000000"),
    "kernel": ("#d55e00", "#000000"),
    "copy": ("#cc79a7", "#000000"),
    "device range": ("#56b4e9", "#000000"),
}


class Lane(NamedTuple):
    """One line of boxes. Only the first lane of a row has a label."""

    label: str
    events: list[Event]


def kind(event: Event) -> str:
    """What a box shows: the category of the event, or that it is a wait for input."""
    if event.is_loading:
        return _WAITING
    return event.category


def lanes(events: Iterable[Event], label: str) -> list[Lane]:
    """Put each event of a row into the highest lane that is free. This puts a child below its parent.

    Args:
        events: The events in the order of their starts.
        label: The label of the first lane.

    Returns:
        The lanes from top to bottom.
    """
    result: list[Lane] = []
    busy_until_ns: list[int] = []  # of each lane
    for event in events:
        start_ns, end_ns = _nanoseconds(event)
        free = [index for index, until_ns in enumerate(busy_until_ns) if until_ns <= start_ns]
        if free:
            index = free[0]
            busy_until_ns[index] = end_ns
        else:
            index = len(result)
            result.append(Lane("" if result else label, []))
            busy_until_ns.append(end_ns)
        result[index].events.append(event)
    return result


def _nanoseconds(event: Event) -> tuple[int, int]:
    """Start and end of an event. The profiler counts nanoseconds, so rounding removes the errors of floating point."""
    return round(event.start_s * 1e9), round(event.end_s * 1e9)


@dataclass(frozen=True)
class Timeline:
    """One trace, or two on the same time axis.

    Attributes:
        trace: The trace on top, "before" in the list of changes.
        other: The trace below it, "after" in the list of changes.
        title: What the drawing shows.
        names: The names of the two traces.
    """

    trace: Trace
    other: Trace | None = None
    title: str = "Timeline"
    names: tuple[str, str] = ("before", "after")

    def page(self) -> str:
        """The HTML page."""
        events = [event for lane in self._lanes for event in lane.events]
        kinds = {kind(event) for event in events}
        runs = " and ".join(f"{name} {duration(trace.span_s)}".strip() for name, trace in self._runs)
        return jinja2.Template(_resource("timeline.html"), autoescape=True).render(
            hash=script_hash(),
            title=self.title,
            height_px=self._canvas_px,
            label=f"{self.title}: timeline of {len(events):,} events, {runs} long. "
            "Plus and minus zoom, arrow keys move, 0 shows all. The tables below say the same.",
            legend={name: colour for name, (colour, _) in _COLOURS.items() if name in kinds},
            changes=self.changes,
            tables=[(name, trace_summary.table(trace)) for name, trace in self._runs],
            data=self._data(),
            script=_resource("timeline.js"),
        )

    @cached_property
    def changes(self) -> Table | None:
        """What changed most from the first trace to the second. None means that there is only one trace."""
        if self.other is None:
            return None
        return trace_summary.changes(self.trace, self.other, self.names)

    @cached_property
    def _runs(self) -> list[tuple[str, Trace]]:
        """The traces with their names. A single trace has no name."""
        if self.other is None:
            return [("", self.trace)]
        before, after = self.names
        return [(before, self.trace), (after, self.other)]

    @cached_property
    def _lanes(self) -> list[Lane]:
        """All lanes from top to bottom."""
        result: list[Lane] = []
        for name, trace in self._runs:
            for index, row in enumerate(trace.rows):
                label = f"{name}: {row}" if name else row
                events = [event for event in trace.events if event.row == index]
                result += lanes(events, label)
        return result

    @property
    def _canvas_px(self) -> int:
        """Height of the canvas in pixels. It has room for all lanes, or leaves room for the rest of a screen."""
        return min(_MAX_CANVAS_PX, _AXIS_PX + _LANE_PX * len(self._lanes))

    def _data(self) -> str:
        """The data for timeline.js as JSON. Every ``<`` is escaped, so that no name ends the script around it."""
        kind_indices = {name: index for index, name in enumerate(_COLOURS)}
        name_indices: dict[tuple[str, int], int] = {}  # (name, kind) → index
        lanes_of_boxes = []
        for lane in self._lanes:
            boxes = []
            for event in lane.events:
                start_ns, end_ns = _nanoseconds(event)
                name = (event.name[:_MAX_NAME_LENGTH], kind_indices[kind(event)])
                boxes.append((start_ns, end_ns - start_ns, name_indices.setdefault(name, len(name_indices))))
            lanes_of_boxes.append({"label": lane.label, "boxes": boxes})
        data = {
            "end_ns": max(round(trace.span_s * 1e9) for _, trace in self._runs),
            "kinds": [(name, *colours) for name, colours in _COLOURS.items()],
            "names": list(name_indices),
            "lanes": lanes_of_boxes,
        }
        return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")

    def _repr_html_(self) -> str:
        height_px = self._canvas_px + _AROUND_CANVAS_PX
        if self.changes:
            height_px += _TABLE_HEAD_PX + _TABLE_ROW_PX * (1 + len(self.changes.rows))
        title = html.escape(self.title, quote=True)
        source = html.escape(self.page(), quote=True)
        return (
            f'<iframe sandbox="allow-scripts" title="{title}" srcdoc="{source}" '
            f'style="border:0;width:100%;height:{height_px}px"></iframe>'
        )

    def __repr__(self) -> str:
        return self.title


def script_hash() -> str:
    """The hash that the policy of a page must name in ``script-src``, so that the timelines in the page can run."""
    digest = hashlib.sha256(_resource("timeline.js").encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _resource(name: str) -> str:
    """Read a file of this folder."""
    return (resources.files("dltutorial.profile") / name).read_text(encoding="utf-8")
