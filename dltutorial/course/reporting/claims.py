"""Claims: which sentences of the course hold here, with their evidence, and what this hardware cannot show.

In: records of claims. Out: a section.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dltutorial.course import show
from dltutorial.course.reporting import parts, pick
from dltutorial.course.reporting.parts import Section
from dltutorial.course.reporting.pick import Place

_HEAD = ("", "claim", "evidence, or what it needs", "# shown in runs")


def section(found: Sequence[dict]) -> Section:
    """The counts, what failed, what is not shown here, and all claims of each place behind a line to press."""
    latest = pick.latest(pick.of(found, "claim"))
    if not latest:
        body = parts.todo("dltutorial run", "runs every chapter")
        return Section("Claims", "No claim was checked yet", body, empty=True)
    count = Counter(str(record.get("status")) for record, _ in latest)
    shown, failed, otherwise, wanting = (count[status] for status in show.SIGNS)
    finding = f"{shown} of {len(latest)} claims hold here"
    finding += f", {failed} failed" if failed else ""
    finding += f", {otherwise} otherwise on this machine" if otherwise else ""
    finding += f", {wanting} not shown here for want of hardware" if wanting else ""
    where = pick.places(record for record, _ in latest)
    body = _failed(latest) + _wanting(latest)
    body += "".join(_all(latest, place, several=len(where) > 1) for place in where)
    return Section("Claims", finding, body, ((f"{shown} of {len(latest)}", "claims of the course hold here"),))


def missing(found: Sequence[dict], chapters: Sequence[str]) -> str:
    """What these chapters would show on other hardware, behind a line to press; nothing if they show all here."""
    latest = pick.latest(r for r in pick.of(found, "claim") if r["chapter"] in chapters)
    rows = [
        (record["chapter"], record["what"], _evidence(record))
        for record, _ in latest
        if record.get("status") == "not shown here"
    ]
    n = len(rows)
    words = f"Not shown here: {n} {'claim needs' if n == 1 else 'claims need'} other hardware"
    return parts.folded(words, parts.table(("chapter", "claim", "what it needs"), rows))


def _failed(latest: Sequence[tuple[dict, list[dict]]]) -> str:
    rows = [(r["chapter"], *_row(r, runs)) for r, runs in latest if r.get("status") == "failed"]
    return f"<h3>Failed at their last try</h3>{parts.table(('chapter', *_HEAD), rows)}" if rows else ""


def _wanting(latest: Sequence[tuple[dict, list[dict]]]) -> str:
    """Not shown here, by what is needed."""
    needs: dict[str, list[str]] = {}
    for record, _ in latest:
        if record.get("status") == "not shown here":
            needs.setdefault(str(record.get("needs") or "other hardware"), []).append(record["chapter"])
    rows = [
        (need, str(len(chapters)), ", ".join(dict.fromkeys(chapters)))
        for need, chapters in sorted(needs.items(), key=lambda item: -len(item[1]))
    ]
    head = ("not shown here: it needs", "# claims", "chapters")
    return parts.table(head, rows)


def _all(latest: Sequence[tuple[dict, list[dict]]], where: Place, several: bool) -> str:
    here = [(record, runs) for record, runs in latest if pick.place(record) == where]
    body = ""
    for chapter in sorted({record["chapter"] for record, _ in here}):
        rows = [_row(record, runs) for record, runs in here if record["chapter"] == chapter]
        body += f"<h3>Chapter {parts.text(chapter)}</h3>" + parts.table(_HEAD, rows)
    words = f"All {len(here)} claims" + (f" on {where}" if several else f", preset {where.preset}")
    return parts.folded(words, body)


def _row(record: Mapping[str, Any], runs: Sequence[dict]) -> tuple[str, ...]:
    held = sum(r.get("status") == "shown" for r in runs)
    return parts.status(record.get("status")), record["what"], _evidence(record), f"{held} of {len(runs)}"


def _evidence(record: Mapping[str, Any]) -> str:
    """What was seen; and what it needs, where it could not be shown."""
    keys = ("evidence",) if record.get("status") in ("shown", "failed") else ("evidence", "needs")
    return "; ".join(str(record[key]).rstrip(".") for key in keys if record.get(key))
