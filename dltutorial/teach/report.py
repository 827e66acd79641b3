"""``dltutorial report``: one HTML page of everything measured here, next to the published figures.

In: files of records, the cached peaks of this machine, what training runs wrote, the published ladders. Out: one file
that needs no other and no network. What is missing says what to run to get it; nothing is made up.
"""

import datetime
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dltutorial import __version__, machine, paths, peaks
from dltutorial.observe import plots, records, timing
from dltutorial.teach import report_figures as figures
from dltutorial.teach import report_measured as here
from dltutorial.teach import report_parts as parts
from dltutorial.teach import show
from dltutorial.teach.report_parts import Section, drawn, table, todo

_N_RUNS = 8  # the newest: more lines than that cannot be told apart


def write(files: Iterable[Path], out: Path | None = None) -> Path:
    """Write the report of these records; returns where it is.

    Args:
        files: of records; none: the runs folder's own, and those of the course's runs in it.
        out: default: ``report.html`` in the runs folder.

    Raises:
        CourseError: a file is missing or damaged, or the page cannot be written.
    """
    files = list(files)
    found = [record for file in files for record in records.read(file)] if files else _all_records()
    out = Path(out or paths.runs_dir() / "report.html")
    paths.write_text(out, page(found))
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


def page(found: Sequence[dict]) -> str:
    """The whole page, from records in the order in which they were made."""
    sections = [
        _machine(),
        _claims(_of(found, "claim")),
        _predictions(_of(found, "prediction")),
        _exercises(_of(found, "check")),
        _training(paths.runs_dir()),
        *here.loaders(found),
        _ladders(here.own_ladder(found)),
        *here.benches(found),
        *here.solution(found),
        _measurements([record for record in found if not here.is_shown(record)]),
    ]
    machines = sorted({record["machine"] for record in found} | {machine.label()})
    presets = sorted({record["preset"] for record in found})
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions().items() if version)
    about = f"{len(found)} records" + (f" in preset {', '.join(presets)}" if presets else "")
    facts = (f"{about} · {datetime.datetime.now(datetime.UTC):%d %B %Y, %H:%M} UTC", versions)
    title = f"What was measured on {' and '.join(machines)}"
    return parts.page(title, facts, sections, f"Made by dltutorial report, version {__version__}.")


def _machine() -> Section:
    known = peaks.load()
    rows = [] if known is None else [(name, figure) for name, figure in known.figures().items()]
    if known is None or not any(known.matmul.values()) or known.memory is None:
        what = "The peaks of this machine are not measured yet"
        return Section("This machine", what, todo("dltutorial doctor --measure", "takes some seconds") + _rates(rows))
    fastest = max((figure.best, dtype) for dtype, figure in known.matmul.items() if figure)
    copies = timing.rate(known.memory.best, "B/s")
    finding = f"Products reach {timing.rate(fastest[0], 'FLOP/s')} in {fastest[1]}, copies {copies}"
    note = f"Measured on {known.time[:10]} with {known.threads} threads, {known.device}."
    note += (
        "" if known.steady else " Other programs were busy meanwhile: measure again with dltutorial doctor --measure."
    )
    note = f'<p class="note">{parts.text(note)}</p>'
    return Section("This machine", finding, drawn(figures.roofline, known) + _rates(rows) + note)


def _rates(rows: Sequence[tuple[str, Any]]) -> str:
    cells = [
        (name, timing.rate(f.best, f.unit), timing.rate(f.median, f.unit), f.how)
        if f
        else (name, machine.UNKNOWN, "", "")
        for name, f in rows
    ]
    return table(("what", "# best", "# median", "how"), cells)


def _claims(found: Sequence[dict]) -> Section:
    latest = _latest(found)
    count = {status: sum(r.get("status") == status for r, _ in latest) for status in show.SIGNS}
    if not latest:
        return Section("Claims", "No claim was checked yet", todo("dltutorial run", "runs every chapter"))
    finding = f"{count['shown']} of {len(latest)} claims hold here"
    finding += f", {count['failed']} failed" if count["failed"] else ""
    finding += f", {count['not shown here']} not shown here for want of hardware" if count["not shown here"] else ""
    body = ""
    for chapter in sorted({record["chapter"] for record, _ in latest}):
        rows = [
            (
                parts.status(record.get("status")),
                record["what"],
                _evidence(record),
                f"{sum(r.get('status') == 'shown' for r in runs)} of {len(runs)}",
                record["preset"],
            )
            for record, runs in latest
            if record["chapter"] == chapter
        ]
        body += f"<h3>Chapter {parts.text(chapter)}</h3>"
        body += table(("", "claim", "evidence, or what it needs", "# shown in runs", "preset"), rows)
    return Section("Claims", finding, body, (f"{count['shown']} of {len(latest)}", "claims hold here"))


def _evidence(record: dict) -> str:
    """What was seen; and what it needs, where it could not be shown."""
    keys = ("evidence",) if record.get("status") in ("shown", "failed") else ("evidence", "needs")
    return "; ".join(str(record[key]).rstrip(".") for key in keys if record.get(key))


def _predictions(found: Sequence[dict]) -> Section:
    latest = [record for record, _ in _latest(found)]
    if not latest:
        return Section("Predictions", "Nothing was predicted yet", todo("make lab", "then guess, and measure"))
    guesses = figures.factors(record.get("ratio") for record in latest if record.get("touched"))
    finding = "The guesses are the notebooks' defaults so far: none was typed in"
    tile = None
    if guesses:
        off = f"{statistics.median(guesses):.2g} ×"
        finding = f"Your guesses are off by {off} in the median"
        tile = (off, "off: your median guess")
    rows = [
        (
            record["chapter"],
            str(record.get("question") or record["what"]),
            parts.value(record.get("guess")) + ("" if record.get("touched") else " (default)"),
            parts.value(record.get("model")),
            parts.value(record.get("measured")),
            record.get("unit", ""),
        )
        for record in latest
    ]
    body = table(("chapter", "question", "# guess", "# model", "# measured", "unit"), rows)
    scored = [r for r in latest if figures.is_ratio(r.get("ratio")) or figures.is_ratio(r.get("model_ratio"))]
    return Section("Predictions", finding, (drawn(figures.predictions, scored) if scored else "") + body, tile)


def _exercises(found: Sequence[dict]) -> Section:
    latest = _latest(found)
    if not latest:
        return Section(
            "Exercises", "No exercise was checked yet", todo("make lab", "and open a notebook of exercises/")
        )
    n_passed = sum(record.get("status") == "passed" for record, _ in latest)
    rows = [
        (
            record["chapter"],
            record["what"],
            parts.status(record.get("status")),
            f"{parts.value(record.get('cases_passed'))} of {parts.value(record.get('cases'))}",
            str(sum(r.get("status") != "not attempted" for r in runs)),
        )
        for record, runs in latest
    ]
    body = table(("chapter", "exercise", "", "# cases passed", "# checks"), rows)
    words = f"{n_passed} of {len(latest)}"
    return Section("Exercises", f"{words} exercises solved", body, (words, "exercises solved"))


def _training(folder: Path) -> Section:
    runs = {name: run for name, run in _runs(folder).items() if run[1]}
    if not runs:
        return Section("Training", "No training run has scores yet", todo("dltutorial train", "or chapter 01"))
    curves = {name: curve for name, (_, curve, _) in runs.items()}
    best = min(curve[-1][1] for curve in curves.values())
    rows = [
        (name, parts.status(status), str(curve[-1][0]), f"{curve[-1][1]:.3f}", rate)
        for name, (status, curve, rate) in runs.items()
    ]
    body = table(("run", "", "# updates", "# RMSE / persistence", "# samples/s"), rows)
    note = f'<p class="note">The newest {_N_RUNS} runs with scores at most; a mean over the channels.</p>'
    finding = f"The best forecast has {best:.2f} of persistence's error"
    tile = (f"{best:.2f}", "of persistence's error: the best forecast")
    return Section("Training", finding, drawn(figures.convergence, curves) + body + note, tile)


def _runs(folder: Path) -> dict[str, tuple[str, list[tuple[int, float]], str]]:
    """Name → (status, curve of the error ratio, samples/s of its last record), of the newest runs, oldest first."""
    files = sorted(folder.rglob("progress.jsonl"), key=lambda file: file.stat().st_mtime)
    found = {}
    for file in files[-_N_RUNS:]:
        try:
            seen = [json.loads(line) for line in _whole_lines(file)]
            curve = [(int(r["step"]), float(r["scores"][figures.RATIO])) for r in seen if r["scores"]]
            status = json.loads((file.parent / "status.json").read_text(encoding="utf-8"))["status"]
            rate = parts.value(seen[-1]["samples_per_s"]) if seen else ""
        except (OSError, ValueError, KeyError, TypeError):
            continue  # half written or damaged: no basis for a figure
        found[str(file.parent.relative_to(folder))] = (str(status), curve, rate)
    return found


def _whole_lines(file: Path) -> list[str]:
    """A file's lines without a last one that is still being written."""
    return file.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()


def _ladders(climbed: str) -> Section:
    ends = [list(gains.values())[-1] for gains in figures.ladder_gains().values()]
    body = drawn(figures.ladders) + f"<p>This machine's own ladder: {parts.text(climbed)}.</p>"
    body += "".join(f'<p class="note">{parts.text(line)}</p>' for line in plots.reference_source("nersc_ladders"))
    finding = f"Published: tuning made one GPU train {min(ends):.1f} to {max(ends):.1f} times as fast"
    return Section("Ladders", finding, body)


def _measurements(found: Sequence[dict]) -> Section:
    latest = _latest(record for record in found if record["kind"] not in ("claim", "prediction", "check"))
    if not latest:
        return Section("Measurements", "Nothing else was recorded yet", todo("dltutorial run", "runs every chapter"))
    rows = [
        (r["chapter"], r["what"], parts.value(r.get("value")), str(r.get("unit", "")), str(len(runs)), r["preset"],
         r["machine"], r["time"][:16].replace("T", " "))
        for r, runs in latest
    ]  # fmt: skip
    head = ("chapter", "what", "# latest value", "unit", "# times", "preset", "machine", "time, UTC")
    body = f"<details><summary>Show all {len(rows)}</summary>{table(head, rows)}</details>"
    return Section("Measurements", f"{len(rows)} other quantities were recorded", body)


def _of(found: Iterable[dict], kind: str) -> list[dict]:
    return [record for record in found if record["kind"] == kind]


def _latest(found: Iterable[dict]) -> list[tuple[dict, list[dict]]]:
    """The last record of each thing, with all of its records; what differs in machine or preset is another thing."""
    groups: dict[tuple, list[dict]] = {}
    for record in found:
        groups.setdefault(tuple(record[key] for key in ("chapter", "what", "machine", "preset")), []).append(record)
    return [(group[-1], group) for group in sorted(groups.values(), key=lambda group: group[0]["chapter"])]
