"""The learner's own exercises: how far they are, and a fresh start for one of them.

In: the course's folder, and the records of checks (kind "check"). Out: a table; a fresh exercise, the old one kept.
"""

import os
import sys
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.course import exercises, notebooks
from dltutorial.errors import CourseError
from dltutorial.record import records
from dltutorial.record.table import Table

_HEADER = ("exercise", "file", "attempts", "passed", "last check", "best", "newer version")


def status(root: Path | None = None) -> Table:
    """A row for each exercise: what became of its file, how often its checks ran and how they ended.
    CourseError: this is not the course's folder.
    """
    root = paths.course_folder("solutions") if root is None else Path(root)
    checks, rows = _checks(root), []
    for solution in notebooks.chapters(root / "solutions"):
        file, chapter = root / "exercises" / solution.name, notebooks.about(solution)["chapter"]
        mine = [check for check in checks if check["chapter"] == chapter]
        rows.append((solution.stem, exercises.look(file).state, *_score(mine), _newer(file, solution) or "no"))
    return Table.of(_HEADER, rows)


def notice(notebook: str | None) -> str:
    """What to tell who has opened the exercise at this path: that there is a newer version; empty where there is none.

    Nobody says so otherwise where the course comes by nbgitpuller.
    """
    file = Path(notebook or "")
    solution = file.parents[1] / "solutions" / file.name if file.parent.name == "exercises" else Path()
    newer = _newer(file, solution) if file.is_file() and solution.is_file() else ""
    if not newer:
        return ""
    where = f"It is {newer}." if newer.startswith("exercises/") else "In a terminal: dltutorial exercises build."
    return f"A newer version of this exercise has come with the course. {where} Yours stays as it is."


def reset(name: str | None, yes: bool = False, root: Path | None = None) -> int:
    """Make the exercise ``name`` as it was, once the learner agrees; the old file is kept, and it is told where.

    Args:
        name: its number ("01", "1"), name or file name.
        yes: do not ask.
        root: the course's folder; None: found from here upwards.

    Returns:
        0 when it is fresh now, 1 when the answer was no.

    Raises:
        CourseError: no such exercise, nobody to ask, or the old file cannot be kept.
    """
    root = paths.course_folder("solutions") if root is None else Path(root)
    solution = notebooks.find(name or "", notebooks.chapters(root / "solutions"), "exercise")
    file = root / "exercises" / solution.name
    kept = None
    if file.exists():
        if not (yes or _agreed(file.name)):
            return 1
        kept = exercises.keep(file)
    paths.write_text(file, exercises.blank_notebook(solution))
    newer = exercises.beside(file)
    if exercises.look(newer).is_pristine:
        newer.unlink(missing_ok=True)  # the fresh one is as new
    print(f"{os.path.relpath(file)} is fresh")
    if kept:
        print(f"your old one is kept as exercises/kept/{kept.name}")
    return 0


def _agreed(name: str) -> bool:
    if not sys.stdin.isatty():
        raise CourseError(f"reset asks before it replaces {name}, and nobody is here to answer; add --yes")
    try:
        return input(f"Start {name} afresh? Yours is kept. [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D: no answer is no yes
        return False


def _checks(root: Path) -> list[dict[str, Any]]:
    """The records of checks, from the folder of the records and from those beside exercises and notebooks.

    A kernel that JupyterLab starts works in the folder of its notebook, so without ``DLTUTORIAL_RUNS`` its records are
    there.
    """
    places = [paths.records_dir(), *(root / folder / "runs" / "records" for folder in ("exercises", "notebooks"))]
    folders = dict.fromkeys(place.resolve() for place in places)
    return [record for folder in folders for record in records.read(folder) if record["kind"] == "check"]


def _score(checks: list[dict[str, Any]]) -> tuple[object, ...]:
    """Attempts, passes, the last check in words, and the most cases that ever passed."""
    tried = [check for check in checks if check.get("status") in ("passed", "wrong")]
    if not tried:
        return 0, 0, "not attempted yet", "–"
    last = max(tried, key=lambda check: check["time"])
    passes = sum(check["status"] == "passed" for check in tried)
    counts = [(check["cases_passed"], check["cases"]) for check in tried if check.get("cases")]
    best = max(counts, key=lambda count: count[0] / count[1], default=None)
    result = last["status"]
    if result == "wrong" and last.get("failed"):
        result = f"wrong: {last['failed']}"
    last_check = " ".join(f"{result} ({last['time'][:10]})".split())
    return len(tried), passes, last_check, f"{best[0]} of {best[1]} cases" if best else "–"


def _newer(file: Path, solution: Path) -> str:
    """Where the newer version of an exercise is; empty where there is none."""
    copy, newest = exercises.look(file), exercises.look_at(exercises.blank_notebook(solution)).version
    if newest in (copy.version, copy.now):
        return ""
    new = exercises.beside(file)
    return f"exercises/{new.name}" if exercises.look(new).version == newest else "yes: dltutorial exercises build"
