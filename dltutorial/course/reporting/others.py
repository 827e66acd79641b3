"""Benchmarks, and every measurement that no other section shows.

In: records. Out: sections.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dltutorial.course.reporting import batches as batch_sizes
from dltutorial.course.reporting import knobs, optimizers, parts, pick, ranks, scaling, solution
from dltutorial.course.reporting import ladder as the_ladder
from dltutorial.course.reporting.parts import Section
from dltutorial.profile import timing

_SHOWN = (knobs, ranks, scaling, batch_sizes, optimizers, solution)


def is_shown(record: Mapping[str, Any]) -> bool:
    """Whether another section shows this record."""
    known = record["chapter"] == "bench" or record["what"] == the_ladder.WHAT
    return known or any(module.is_shown(record) for module in _SHOWN)


def benches(found: Sequence[dict]) -> list[Section]:
    """A table for each benchmark that ran; nothing where none did."""
    rows = [r for r in found if r["chapter"] == "bench" and pick.is_positive(r.get("value"))]
    names = sorted({str(row.get("bench")) for row in rows})
    body = ""
    for name in names:
        newest = pick.named(row for row in rows if str(row.get("bench")) == name)
        where = pick.place(next(iter(newest.values())))
        head = ("what", "# median", "# predicted", "# measured / predicted")
        body += parts.folded(f"bench {name}, {where}", parts.table(head, map(_cells, newest.values())))
    if not names:
        return []
    return [Section("Benchmarks", f"{pick.joined(names)}: medians beside predictions", body, aside=True)]


def _cells(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    def shown(value: float) -> str:
        return timing.duration(value) if row.get("unit") == "s" else f"{value:,.4g} {row.get('unit', '')}"

    value, predicted = row["value"], row.get("predicted")
    if not pick.is_positive(predicted):
        return str(row["what"]), shown(value), "–", "–"
    return str(row["what"]), shown(value), shown(predicted), f"{value / predicted:.2f}"


def measurements(found: Sequence[dict]) -> Section:
    """The rest, behind a line to press."""
    kinds = ("claim", "prediction", "check")
    latest = pick.latest(record for record in found if record["kind"] not in kinds and not is_shown(record))
    if not latest:
        body = parts.todo("dltutorial run", "runs every chapter")
        return Section("Measurements", "Nothing else was recorded yet", body, empty=True)
    rows = [
        (r["chapter"], r["what"], parts.value(r.get("value")), str(r.get("unit", "")), str(len(runs)), r["preset"],
         r["machine"], r["time"][:16].replace("T", " "))
        for r, runs in latest
    ]  # fmt: skip
    head = ("chapter", "what", "# latest value", "unit", "# times", "preset", "machine", "time, UTC")
    body = parts.folded(f"Show all {len(rows)}", parts.table(head, rows))
    return Section("Measurements", f"{len(rows)} other quantities were recorded", body, aside=True)
