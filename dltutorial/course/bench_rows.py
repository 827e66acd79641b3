"""What a benchmark takes and gives: options in, rows out, rows as a table.

A row is one variant: its samples, what a model predicted for it, the budget it must keep to, and whatever else was
found out about it.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dltutorial.config import Preset
from dltutorial.profile.timing import duration
from dltutorial.record.table import Table


@dataclass(frozen=True)
class Options:
    """How a benchmark is to be run.

    Attributes:
        preset: sizes.
        repeats: samples of each variant.
    """

    preset: Preset
    repeats: int = 5


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: was measured; unique within a benchmark.
        samples: the measurements, in ``unit``.
        unit: "s" for times, else any, such as "samples/s".
        predicted: by a model, before measuring, in ``unit``; None where there is no model.
        budget: what the median may cost at most, in ``unit``; None where there is none.
        more: other columns, name → text, such as peak memory or the final loss.
    """

    what: str
    samples: tuple[float, ...]
    unit: str = "s"
    predicted: float | None = None
    budget: float | None = None
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    @property
    def verdict(self) -> str:
        """Whether the median keeps to the budget."""
        if self.budget is None:
            return "–"
        return "within" if self.median <= self.budget else "over"

    def shown(self, value: float | None) -> str:
        """A value of this row in its unit."""
        if value is None:
            return "–"
        return duration(value) if self.unit == "s" else f"{value:,.3g} {self.unit}"


def table(rows: Sequence[Row]) -> Table:
    """All rows; columns that no row fills are left out."""
    header = ["what", "median", "from … to", "times"]
    lines = [
        [row.what, row.shown(row.median), f"{row.shown(min(row.samples))} to {row.shown(max(row.samples))}",
         len(row.samples)]
        for row in rows
    ]  # fmt: skip
    if any(row.predicted is not None for row in rows):
        header += ["predicted", "measured / predicted"]
        for line, row in zip(lines, rows, strict=True):
            line += [row.shown(row.predicted), f"{row.median / row.predicted:.2f}" if row.predicted else "–"]
    if any(row.budget is not None for row in rows):
        header += ["budget", ""]
        for line, row in zip(lines, rows, strict=True):
            line += [row.shown(row.budget), row.verdict]
    for name in dict.fromkeys(name for row in rows for name in row.more):
        header.append(name)
        for line, row in zip(lines, rows, strict=True):
            line.append(row.more.get(name, "–"))
    return Table.of(header, lines)
