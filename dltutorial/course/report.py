"""``dltutorial report``: one HTML page of everything measured here, next to the published figures.

In: files of records, the cached peaks of this machine, what training runs wrote. Out: one file that needs no other and
no network. What is missing says what to run to get it; nothing is made up. A section is a file of ``reporting/``.
"""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dltutorial import __version__, machine, paths
from dltutorial.course.reporting import (
    batches,
    claims,
    exercises,
    forecast,
    knobs,
    ladder,
    optimizers,
    others,
    parts,
    pick,
    predictions,
    ranks,
    roofline,
    scaling,
    solution,
)
from dltutorial.record import records


def write(files: Iterable[Path], out: Path | None = None) -> Path:
    """Write the report of these records; returns where it is.

    Args:
        files: of records; none: the runs folder's own, and those of the course's runs in it.
        out: default: ``report.html`` in the runs folder.

    Raises:
        CourseError: a file is missing or damaged, or the page cannot be written.
    """
    files = [Path(file) for file in files]
    found = [record for file in files for record in records.read(file)] if files else _all_records()
    folders = dict.fromkeys(file.parent for file in files) if files else [paths.runs_dir()]
    out = Path(out or paths.runs_dir() / "report.html")
    paths.write_text(out, page(found, folders))
    return out


def _all_records() -> list[dict]:
    """What was recorded by hand, and by each ``dltutorial run``, which keeps a copy of its seconds in both places.

    Raises:
        CourseError: there is no file, or one is damaged.
    """
    own, of_runs = paths.records_file(), sorted(paths.runs_dir().glob("*/records.jsonl"))
    found = list(records.read(own)) if own.exists() or not of_runs else []
    of_runs = [file for file in of_runs if not (own.exists() and file.samefile(own))]
    found += [record for file in of_runs for record in records.read(file) if record["kind"] != "run"]
    return sorted(found, key=lambda record: record["time"])


def page(found: Sequence[dict], folders: Iterable[Path] = ()) -> str:
    """The whole page, from records in the order in which they were made, and folders that hold training runs."""
    found = pick.private(found)
    sections = [
        roofline.section(found),
        forecast.section(folders),
        knobs.loaders(found),
        knobs.gains(found),
        ladder.section(found),
        ranks.section(found),
        scaling.section(found),
        batches.section(found),
        optimizers.section(found),
        solution.section(found),
        predictions.section(found),
        exercises.section(found),
        claims.section(found),
        *others.benches(found),
        others.measurements(found),
    ]
    sections = [replace(s, body=s.body + claims.missing(found, s.numbers)) for s in sections]
    return parts.page(_title(found), _facts(found), sections, f"Made by dltutorial report, version {__version__}.")


def _title(found: Sequence[dict]) -> str:
    """Which machines; one that only some ranks or a part of the cores made up is named with the others below."""
    counted = [record["machine"] for record in found if record["chapter"].isdecimal()]
    machines = sorted(set(counted), key=counted.count, reverse=True)[:3] or [machine.label()]
    return f"What was measured on {pick.joined(machines)}"


def _facts(found: Sequence[dict]) -> tuple[str, ...]:
    presets = sorted({record["preset"] for record in found})
    about = f"{len(found):,} records" + (f" in preset {', '.join(presets)}" if presets else "")
    days = sorted({record["time"][:10] for record in found})
    when = f" · measured {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "") if days else ""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions().items() if version)
    written = f"{datetime.datetime.now(datetime.UTC):%d %B %Y, %H:%M} UTC"
    begin = (
        () if found else ("Nothing is recorded yet. Each section says what to run; what is published stands already.",)
    )
    return (*begin, f"{about}{when}", f"written {written} · {versions}")
