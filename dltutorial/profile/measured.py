"""Recorded runs of machines that are not this one: the files that ``dltutorial bench NAME --json FILE`` wrote.

In: the name of a benchmark. Out: what ``dltutorial/reference/measured/`` holds of it, labelled with machine, date,
versions and command; or a table that says "not yet recorded".
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dltutorial.errors import CourseError
from dltutorial.profile.timing import duration
from dltutorial.record.table import Table

FOLDER = Path(__file__).parents[1] / "reference" / "measured"


@dataclass(frozen=True)
class Recorded:
    """One run of a benchmark elsewhere.

    Attributes:
        bench, command, preset: what was run.
        time: when, ISO 8601, UTC.
        machine: where.
        versions: of python, torch, numpy, dltutorial.
        rows: one mapping a variant: what, unit, median, samples, predicted, more.
    """

    bench: str
    command: str
    preset: str
    time: str
    machine: str
    versions: Mapping[str, str | None]
    rows: tuple[Mapping[str, Any], ...]

    @property
    def label(self) -> str:
        """Machine, date and the version of torch, for the head of a table or the corner of a figure."""
        return f"recorded on {self.machine}, {self.time[:10]}, torch {self.versions.get('torch')}"

    def median(self, what: str) -> float:
        """The middle sample of one variant, in its unit.

        Raises:
            CourseError: there is no such row.
        """
        for row in self.rows:
            if row["what"] == what:
                return row["median"]
        raise CourseError(f"no row {what!r} in the recorded {self.bench}; there are: {[r['what'] for r in self.rows]}")

    def table(self) -> Table:
        """Every variant: measured, predicted, and whatever else was kept."""
        extra = list(dict.fromkeys(name for row in self.rows for name in row.get("more", {})))
        lines = [
            (
                row["what"],
                _in_unit(row["median"], row["unit"]),
                _in_unit(row.get("predicted"), row["unit"]),
                *(row.get("more", {}).get(name, "–") for name in extra),
            )
            for row in self.rows
        ]
        return Table.of((self.label, "median", "predicted", *extra), lines)


def load(bench: str, folder: Path = FOLDER) -> tuple[Recorded, ...]:
    """All recorded runs of a benchmark, the newest first; none if it is not yet recorded.

    Raises:
        CourseError: a file there is not what a benchmark writes.
    """
    found = [_read(file) for file in sorted(Path(folder).glob(f"{bench}-*.json"))]
    return tuple(sorted(found, key=lambda run: run.time, reverse=True))


def show(bench: str, folder: Path = FOLDER) -> Table:
    """The newest recorded run as a table, labelled; without one, a table that says so and how to make one."""
    runs = load(bench, folder)
    if runs:
        return runs[0].table()
    how = f"dltutorial bench {bench} --preset gpu --json FILE"
    return Table.of((f"recorded run of {bench} on a GPU", "how to record one"), [("not yet recorded", how)])


def _read(file: Path) -> Recorded:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        run = Recorded(**{**found, "rows": tuple(found["rows"])})
        run.label, run.table()  # everything a reader may ask for
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CourseError(f"{file} is not a recorded benchmark; write it with dltutorial bench NAME --json") from error
    return run


def _in_unit(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return duration(value) if unit == "s" else f"{value:,.3g} {unit}"
