"""``dltutorial bench NAME``: measure, print a table, keep records.

In: the name of a benchmark, sizes, how often. Out: a table of medians with their spread, predictions beside them; one
record for each row, and the same figures as a JSON file if asked for. What is measured stands in ``benches``.
"""

import datetime
import inspect
import json
import os
import secrets
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dltutorial import config, machine, node, paths
from dltutorial.config import BENCHES
from dltutorial.errors import CourseError
from dltutorial.profile.timing import duration
from dltutorial.record import plots, records
from dltutorial.record.table import Table
from dltutorial.train import command

LEGEND = """from … to: the least and the largest of so many times
predicted: by the model that the lines above name; –: by none
measured / predicted: the median over it; above 1 a time is longer, a rate higher than predicted"""
_KEYS = {"bench", "command", "time", "preset", "machine", "versions", "rows"}  # of the JSON file


@dataclass(frozen=True)
class BenchRow:
    """One line of the table: a variant.

    Attributes:
        what: was measured; unique within a benchmark.
        samples: the measurements, in ``unit``.
        unit: "s" for times, else any, such as "samples/s".
        predicted: by a model, before measuring, in ``unit``; None where there is no model.
        more: other columns, name → text, such as peak memory or the final loss.
    """

    what: str
    samples: tuple[float, ...]
    unit: str = "s"
    predicted: float | None = None
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    def shown(self, value: float | None) -> str:
        """A value of this row in its unit."""
        return "–" if value is None else duration(value) if self.unit == "s" else f"{value:,.3g} {self.unit}"


def table(rows: Sequence[BenchRow]) -> Table:
    """All rows; a column of ``more`` that a row lacks shows a dash."""
    extra = list(dict.fromkeys(name for row in rows for name in row.more))
    lines = [
        [row.what, row.shown(row.median), f"{row.shown(min(row.samples))} to {row.shown(max(row.samples))}",
         len(row.samples), row.shown(row.predicted), f"{row.median / row.predicted:.2f}" if row.predicted else "–",
         *(row.more.get(name, "–") for name in extra)]
        for row in rows
    ]  # fmt: skip
    return Table.of(["what", "median", "from … to", "times", "predicted", "measured / predicted", *extra], lines)


def recorded(name: str, published: str, folder: Path = Path(__file__).parents[1] / "reference" / "measured") -> Table:
    """The newest run of a benchmark on another machine, which is named; else published figures, with their source."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob(f"{name}-*.json")]
    if not runs:
        print(*plots.reference_source(published), sep="\n")
        rows = plots.reference(published)
        return Table.of(tuple(rows[0]), [tuple(row.values()) for row in rows])
    run = max(runs, key=lambda run: run["time"])
    print(f"recorded on {run['machine']}, {run['time'][:10]}, torch {run['versions']['torch']}")
    return table([BenchRow(**{key: row[key] for key in row if key != "median"}) for row in run["rows"]])


@command.heard()  # that nobody reads the table costs no figure
def run(name: str | None = None, repeats: int = 5, json_file: Path | None = None, preset: str = "auto") -> int:
    """Run the benchmark of that name, or list them; returns the exit status.

    CourseError: there is none of that name, a file that cannot be written, or a login node.
    """
    if name not in (None, *BENCHES):
        raise CourseError(f"no benchmark {name!r}; choose one of: {', '.join(BENCHES)}")
    if name is not None:
        node.refuse_on_login("a benchmark", f"run it in a job: sbatch -N 1 --wrap '.venv/bin/dltutorial bench {name}'")
        paths.records_file()  # one that cannot be is told before minutes of measuring
    was = None if json_file is None else _may_be_written(json_file, name)
    from dltutorial.course import benches

    if name is None:
        for known in BENCHES:
            print(f"{known:12}", (getattr(benches, known).__doc__ or "").partition("\n")[0])
        return 0
    chosen = config.preset(preset)
    rows, writer, unwritten = list[Any](), records.Writer("bench", chosen.name), None
    for row in getattr(benches, name)(chosen, repeats):
        rows.append(row)
        figures = {"samples": row.samples, "predicted": row.predicted, "more": row.more}
        try:  # what was measured is kept, whatever comes after it
            writer.write(row.what, row.median, row.unit, bench=name, **figures)
        except CourseError as error:  # the table is shown all the same
            unwritten = error
    versions = ", ".join(f"{package} {version}" for package, version in machine.versions().items() if version)
    print(f"{name} on {machine.label()}, preset {chosen.name}; {versions}")
    print(inspect.getdoc(getattr(benches, name)), table(rows), LEGEND, sep="\n\n")
    if json_file is not None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        words = f"dltutorial bench {name} --preset {chosen.name} --repeats {repeats}"
        about: dict[str, Any] = {"bench": name, "command": words, "time": now, "preset": chosen.name}
        about |= {"machine": machine.label(), "versions": machine.versions()}
        about["rows"] = [vars(row) | {"median": row.median} for row in rows]
        text = json.dumps(about, indent=1) + "\n"
        kept = Path(os.path.realpath(json_file))  # a link stays one
        paths.replace_text(kept, was, text, "the figures stand above, and in your records")
    if unwritten:
        raise unwritten
    return 0


def _may_be_written(file: Path, name: str | None) -> str | None:
    """What ``file`` holds: nothing, or earlier figures. CourseError, before measuring: else, or not writable."""

    def is_earlier(text: str) -> bool:
        found = paths.from_json(text)
        return isinstance(found, dict) and found.keys() == _KEYS and name in (None, found["bench"])

    was = paths.held(file)
    paths.keep_others(file, is_earlier, f"result of dltutorial bench {name}")
    trial = file.with_name(f".{secrets.token_hex(8)}.trial")
    paths.write_text(trial, "")
    trial.unlink()
    return was
