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
        return self._page(self._columns())

    def _page(self, columns: Columns) -> str:
        return Template(_resource("timeline.html")).substitute(
            hash=script_hash(),
            title=html.escape(self.title),
            height=columns.height_px,
            label=html.escape(self._label(columns), quote=True),
            legend=columns.legend(),
            changed=self._changed_html(),
            summary="The same as tables" if self.other else "The same as a table",
            tables="".join(self._table_html(name, trace) for trace, name in self._runs()),
            data=columns.json(),
            script=_resource("timeline.js"),
        )

    def save(self, file: Path) -> None:
        """Write the page; whole or not at all.

        Raises:
            CourseError: the file cannot be written.
        """
        with paths.atomic(Path(file)) as partial:
            partial.write_text(self.page(), encoding="utf-8")

    def changes(self) -> Table:
        """What changed most from the first trace to the second, per step where both have steps."""
        found = trace_summary.changes(self.trace, self.other) if self.other else ()
        lines = [
            (
                trace_summary.short(change.name),
                change.category,
                duration(change.before_s),
                duration(change.after_s),
                _times(change),
            )
            for change in found
        ]
        return Table.of(("what changed", "kind", *self.names, "ratio"), lines)

    def _columns(self) -> Columns:
        runs = self._runs()
        return Columns.of([(name, trace) for trace, name in runs], self.max_events // len(runs))

    def _runs(self) -> list[tuple[Trace, str]]:
        if self.other is None:
            return [(self.trace, "")]
        return [(self.trace, self.names[0]), (self.other, self.names[1])]

    def _label(self, columns: Columns) -> str:
        runs = " and ".join(f"{name} {duration(trace.span_s)}".strip() for trace, name in self._runs())
        return (
            f"{self.title}: a timeline of {columns.n_events:,} events, {runs} long. "
            "Plus and minus zoom, arrow keys move, 0 shows all. The tables below say the same."
        )

    def _changed_html(self) -> str:
        return f"<h2>What changed</h2>{self.changes()._repr_html_()}" if self.other else ""

    @staticmethod
    def _table_html(name: str, trace: Trace) -> str:
        heading = f"<h2>{html.escape(name)}</h2>" if name else ""
        return heading + trace_summary.summarise(trace).table(top=15)._repr_html_()

    def _repr_html_(self) -> str:
        columns = self._columns()
        height_px = columns.height_px + _AROUND_PX
        if self.other:
            height_px += _TABLE_HEAD_PX + _TABLE_ROW_PX * (1 + len(self.changes().rows))
        source = html.escape(self._page(columns), quote=True)
        return (
            f'<iframe sandbox="allow-scripts" title="{html.escape(self.title, quote=True)}" srcdoc="{source}" '
            f'style="border:0;width:100%;height:{height_px}px"></iframe>'
        )

    def __str__(self) -> str:
        tables = [f"{name}\n{trace_summary.summarise(trace)}".strip() for trace, name in self._runs()]
        return "\n\n".join([self.title, *tables, *([str(self.changes())] if self.other else [])])

    __repr__ = __str__


def script_hash() -> str:
    """What a page's Content-Security-Policy must name in ``script-src`` for timelines inside it to come alive."""
    digest = hashlib.sha256(_resource("timeline.js").encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _resource(name: str) -> str:
    return (resources.files("dltutorial.profile") / name).read_text(encoding="utf-8")


def _times(change: trace_summary.Change) -> str:
    if not change.before_s:
        return "new"
    return f"{change.ratio:.2f} ×" if change.after_s else "gone"
