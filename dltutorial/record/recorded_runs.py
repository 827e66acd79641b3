"""Runs on other machines, which chapters show where this machine lacks the hardware.

In: the name of a file in ``reference/measured/``, such as ``graphs-h200``. Out: its table. The file says on which
machine, when and with which versions it was recorded.
"""

import json
import statistics
from pathlib import Path

from dltutorial.record.table import Table

FOLDER = Path(__file__).parents[1] / "reference" / "measured"
HEADER = ("what", "median", "from … to", "times", "predicted", "measured / predicted")


def table(name: str) -> Table:
    """Print where and when a run was recorded.

    Args:
        name: the file's name without its ending.

    Returns:
        The table of its measurements.
    """
    run = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    print(f"recorded on {run['machine']}, {run['time'][:10]}, torch {run['versions']['torch']}")
    more = list(dict.fromkeys(column for row in run["rows"] for column in row["more"]))
    lines = []
    for row in run["rows"]:
        median = statistics.median(row["samples"])
        predicted = row["predicted"]
        ratio = f"{median / predicted:.2f}" if predicted else "–"
        spread = f"{_in_words(min(row['samples']), row['unit'])} to {_in_words(max(row['samples']), row['unit'])}"
        line = [row["what"], _in_words(median, row["unit"]), spread, len(row["samples"])]
        line += [_in_words(predicted, row["unit"]), ratio]
        line += [row["more"].get(column, "–") for column in more]
        lines.append(line)
    return Table.of([*HEADER, *more], lines)


def _in_words(value: float | None, unit: str) -> str:
    """A measurement with its unit; a dash if there is none."""
    if value is None:
        return "–"
    if unit == "s" and value < 1:
        return f"{1e3 * value:.3g} ms"
    return f"{value:,.3g} {unit}"
