"""Recorded runs of machines that are not this one: the files that ``dltutorial bench NAME --json FILE`` wrote.

In: the name of a benchmark. Out: the newest run that ``dltutorial/reference/measured/`` holds of it as a table,
labelled with machine, date and version; where there is none yet, published figures of the same kind, with their source.
"""

import json
from pathlib import Path

from dltutorial.profile.timing import duration
from dltutorial.record import plots
from dltutorial.record.table import Table

FOLDER = Path(__file__).parents[1] / "reference" / "measured"


def show(bench: str, published: str, folder: Path = FOLDER) -> Table:
    """The newest recorded run of a benchmark, else what ``reference/<published>.csv`` says, its source printed."""
    found = newest(bench, folder)
    if found is None:
        rows = plots.reference(published)
        print(*plots.reference_source(published), sep="\n")
        found = Table.of(tuple(rows[0]), [tuple(row.values()) for row in rows])
    return found


def newest(bench: str, folder: Path = FOLDER) -> Table | None:
    """Every variant of the newest recorded run, measured, predicted, and whatever else was kept; None without one."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in Path(folder).glob(f"{bench}-*.json")]
    if not runs:
        return None
    run = max(runs, key=lambda run: run["time"])
    label = f"recorded on {run['machine']}, {run['time'][:10]}, torch {run['versions']['torch']}"
    extra = list(dict.fromkeys(name for row in run["rows"] for name in row.get("more", {})))
    lines = []
    for row in run["rows"]:
        values = (_in_unit(row.get(name), row["unit"]) for name in ("median", "predicted"))
        lines.append((row["what"], *values, *(row.get("more", {}).get(name, "–") for name in extra)))
    return Table.of((label, "median", "predicted", *extra), lines)


def _in_unit(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return duration(value) if unit == "s" else f"{value:,.3g} {unit}"
