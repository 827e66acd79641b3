"""Exercises passed, by part of the course, with attempts.

In: records of checks, the names of the course's exercises. Out: a section.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dltutorial.course.reporting import parts, pick
from dltutorial.course.reporting.parts import Html, Section
from dltutorial.course.reporting.predictions import PARTS, part_of


def section(found: Sequence[dict]) -> Section:
    """A box an exercise, a table of those that were checked."""
    checked: dict[str, list[dict]] = {}
    for record in pick.of(found, "check"):
        checked.setdefault(record["what"], []).append(record)
    wanted = _course()
    if not checked:
        body = parts.todo("make lab", "and open a notebook of exercises/") + _meters(wanted, {})
        return Section("Exercises", "No exercise was checked yet", body, empty=True)
    chapters = wanted | {name: rows[-1]["chapter"] for name, rows in checked.items()}
    reached = {name: _status(rows) for name, rows in checked.items()}
    n_passed = sum(status == "passed" for status in reached.values())
    body = _meters(chapters, reached) + _table(checked, reached)
    words = f"{n_passed} of {len(chapters)}"
    return Section("Exercises", f"{words} exercises solved", body, ((words, "exercises solved"),))


def _course() -> dict[str, str]:
    """Name → chapter of every exercise there is."""
    from dltutorial.course.checks import check

    return {name: getattr(check, name).chapter for name in dir(check)}


def _status(rows: Sequence[dict]) -> str:
    """Solved once is solved; else the last outcome."""
    seen = [str(row.get("status")) for row in rows]
    return "passed" if "passed" in seen else seen[-1]


def _meters(chapters: Mapping[str, str], reached: Mapping[str, str]) -> str:
    """For each part, a box an exercise: full when solved, hatched when tried."""
    rows = []
    for part in [*PARTS, None]:
        names = sorted((c, name) for name, c in chapters.items() if part_of(c) == part)
        if names:
            boxes = "".join(_box(f"{c} {name}", reached.get(name, "not attempted")) for c, name in names)
            n = sum(reached.get(name) == "passed" for _, name in names)
            meter = Html(f'<span class="meter">{boxes}</span>')
            rows.append((part or "Others", meter, f"{n} of {len(names)}"))
    return parts.table(("part", "exercises", "# solved"), rows)


def _box(name: str, status: str) -> str:
    kind = status if status in ("passed", "wrong") else "blank"
    words = parts.text(f"{name}: {status}")
    return f'<i class="{kind}" role="img" title="{words}" aria-label="{words}"></i>'


def _table(checked: Mapping[str, Sequence[dict]], reached: Mapping[str, str]) -> str:
    rows = []
    for name, seen in sorted(checked.items(), key=lambda item: (item[1][-1]["chapter"], item[0])):
        last = next((r for r in reversed(seen) if str(r.get("status")) == reached[name]), seen[-1])
        tried = [r for r in seen if str(r.get("status")) != "not attempted"]
        until = next((n for n, r in enumerate(tried, 1) if r.get("status") == "passed"), None)
        rows.append((
            last["chapter"], name, parts.status(reached[name]),
            f"{parts.value(last.get('cases_passed'))} of {parts.value(last.get('cases'))}",
            str(len(tried)), str(until) if until else "–", _open(last),
        ))  # fmt: skip
    head = ("chapter", "exercise", "", "# cases passed", "# checks", "# solved at check", "first case that fails")
    return parts.folded(f"The {len(rows)} that were checked", parts.table(head, rows))


def _open(record: Mapping[str, Any]) -> str:
    """Where a wrong answer fails, if its check recorded that."""
    return pick.short(record.get("failed") or "–", 80) if record.get("status") == "wrong" else "–"
