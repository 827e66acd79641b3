"""Recorded runs of machines that are not this one: the files that ``dltutorial bench NAME --json FILE`` wrote.

In: the name of a benchmark. Out: the newest run that ``dltutorial/reference/measured/`` holds of it as a table,
labelled with machine, date and version; where there is none yet, published figures of the same kind, with their source.
"""

import json
from pathlib import Path

from dltutorial.errors import CourseError
from dltutorial.profile.timing import duration
from dltutorial.record import plots
from dltutorial.record.table import Table

FOLDER = Path(__file__).parents[1] / "reference" / "measured"


def show(bench: str, published: str, folder: Path = FOLDER) -> Table:
    """The newest recorded run of a benchmark, else what ``reference/<published>.csv`` says, its source printed."""
    found = recorded(bench, folder)
    if found is None:
        rows = plots.reference(published)
        print(*plots.reference_source(published), sep="\n")
        found = Table.of(tuple(rows[0]), [tuple(row.values()) for row in rows])
    return found


def recorded(bench: str, folder: Path = FOLDER) -> Table | None:
    """Every variant of the newest recorded run, measured, predicted, and whatever else was kept; None without one.

    Raises:
        CourseError: a file there is not what a benchmark writes.
    """
    found: dict[str, Table] = {}
    for file in Path(folder).glob(f"{bench}-*.json"):
        try:
            run = json.loads(file.read_text(encoding="utf-8"))
            found[run["time"]] = _table(run)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CourseError(f"{file} is not a recorded benchmark; write it with dltutorial bench --json") from error
    return found[max(found)] if found else None


def _table(run: dict) -> Table:
    rows, label = run["rows"], f"recorded on {run['machine']}, {run['time'][:10]}, torch {run['versions']['torch']}"
    extra = list(dict.fromkeys(name for row in rows for name in row.get("more", {})))
    lines = [
        (
            row["what"],
            _in_unit(row["median"], row["unit"]),
            _in_unit(row.get("predicted"), row["unit"]),
            *(row.get("more", {}).get(name, "–") for name in extra),
        )
        for row in rows
    ]
    return Table.of((label, "median", "predicted", *extra), lines)


def _in_unit(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return duration(value) if unit == "s" else f"{value:,.3g} {unit}"
