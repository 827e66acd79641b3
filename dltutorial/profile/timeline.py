"""An interactive timeline of one trace, or of two above each other, in one HTML page that asks nothing of a network.

In: traces. Out: in a notebook a frame that zooms and pans; elsewhere :meth:`Timeline.save` writes the page. The page
holds the events as packed columns, 12 bytes each before compression, and draws only those in view. Beside the picture
stand tables that say the same, and for two traces a list of what changed.

A trace is untrusted: its names travel as data, never as markup, and the page lets no script run but ``timeline.js``,
named by its hash.
"""

import base64
import hashlib
import html
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from string import Template

from dltutorial import paths
from dltutorial.profile import trace_summary
from dltutorial.profile.events import Trace
from dltutorial.profile.timeline_columns import Columns
from dltutorial.profile.timing import duration
from dltutorial.record.table import Table

_AROUND_PX = 130  # title, legend and hints
_TABLE_HEAD_PX, _TABLE_ROW_PX = 34, 24


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
            f"{self.title}: a timeline of {self._columns.n_events:,} events, {runs} long. "
            "Plus and minus zoom, arrow keys move, 0 shows all. The tables below say the same."
        )
        return Template(_resource("timeline.html")).substitute(
            hash=script_hash(),
            title=html.escape(self.title),
            height=self._columns.height_px,
            label=html.escape(label, quote=True),
            legend=self._columns.legend(),
            changed=f"<h2>What changed</h2>{self.changes()._repr_html_()}" if self.other else "",
            summary="The same as tables" if self.other else "The same as a table",
            tables="".join(
                (f"<h2>{html.escape(name)}</h2>" if name else "")
                + trace_summary.summarise(trace).table(top=15)._repr_html_()
                for name, trace in self._runs
            ),
            data=self._columns.json(),
            script=_resource("timeline.js"),
        )

    def save(self, file: Path) -> None:
        """Write the page; whole or not at all.

        Raises:
            CourseError: the file cannot be written.
        """
        paths.write_text(Path(file), self.page())

    def changes(self) -> Table:
        """What changed most from the first trace to the second, per step where both have steps."""

        def times(change: trace_summary.Change) -> str:
            if not change.before_s:
                return "new"
            return f"{change.after_s / change.before_s:.2f} ×" if change.after_s else "gone"

        found = trace_summary.changes(self.trace, self.other) if self.other else ()
        lines = [
            (trace_summary.short(one.name), one.category, duration(one.before_s), duration(one.after_s), times(one))
            for one in found
        ]
        return Table.of(("what changed", "kind", *self.names, "ratio"), lines)

    @cached_property
    def _runs(self) -> list[tuple[str, Trace]]:
        before, after = self.names
        return [(before, self.trace), (after, self.other)] if self.other else [("", self.trace)]

    @cached_property
    def _columns(self) -> Columns:
        return Columns.of(self._runs, self.max_events // len(self._runs))

    def _repr_html_(self) -> str:
        height_px = self._columns.height_px + _AROUND_PX
        if self.other:
            height_px += _TABLE_HEAD_PX + _TABLE_ROW_PX * (1 + len(self.changes().rows))
        source = html.escape(self.page(), quote=True)
        return (
            f'<iframe sandbox="allow-scripts" title="{html.escape(self.title, quote=True)}" srcdoc="{source}" '
            f'style="border:0;width:100%;height:{height_px}px"></iframe>'
        )

    def __str__(self) -> str:
        tables = [f"{name}\n{trace_summary.summarise(trace)}".strip() for name, trace in self._runs]
        return "\n\n".join([self.title, *tables, *([str(self.changes())] if self.other else [])])

    __repr__ = __str__


def script_hash() -> str:
    """What a page's Content-Security-Policy must name in ``script-src`` for timelines inside it to come alive."""
    digest = hashlib.sha256(_resource("timeline.js").encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _resource(name: str) -> str:
    return (resources.files("dltutorial.profile") / name).read_text(encoding="utf-8")
