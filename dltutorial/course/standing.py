"""The learner's own exercises: how far they are, and a fresh start for one of them.

In: the course's folder, and the records of checks (kind "check"). Out: a table; a fresh exercise, the old one kept.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.course import copies, exercises
from dltutorial.errors import CourseError
from dltutorial.record import records
from dltutorial.record.table import Table

_HEADER = ("exercise", "file", "attempts", "passed", "last check", "best", "newer version")


def status(root: Path | None = None) -> Table:
    """A row for each exercise: what became of its file, how often its checks ran and how they ended.

    Raises:
        CourseError: this is not the course's folder.
    """
    root = paths.course_folder("solutions") if root is None else Path(root)
    checks: dict[str, list[dict]] = {}
    for record in _checks(root):
        checks.setdefault(record["chapter"], []).append(record)
    rows = []
    for solution in exercises.solution_files(root):
        file = root / "exercises" / solution.name
        copy = copies.look(file)
        newest = copies.version(exercises.blank_notebook(solution))
        newer = _newer(file, copy, newest)
        rows.append((solution.stem, copy.state, *_score(checks.get(solution.stem[:2], [])), newer))
    return Table.of(_HEADER, rows)


def notice(notebook: str | None) -> str:
    """What to tell who has opened the exercise at this path: that there is a newer version; empty where there is none.

    Nobody says so otherwise where the course comes by nbgitpuller.
    """
    file = Path(notebook or "")
    solution = file.parents[1] / "solutions" / file.name if file.parent.name == "exercises" else Path()
    if not (file.is_file() and solution.is_file()):
        return ""
    newer = _newer(file, copies.look(file), copies.version(exercises.blank_notebook(solution)))
    if newer == "no":
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
    solution = _find(name, exercises.solution_files(root))
    text, file = exercises.blank_notebook(solution), root / "exercises" / solution.name
    if not os.path.lexists(file):
        paths.write_text(file, text)
        print(f"wrote exercises/{file.name}: there was none")
        return 0
    if not yes and not _agreed(file.name):
        print(f"exercises/{file.name} stays as it is")
        return 1
    kept = copies.replace(file, text)
    print(f"exercises/{file.name} is fresh; your old one is kept as {kept.relative_to(root)}")
    if copies.look(new := copies.beside(file)).is_pristine:
        new.unlink(missing_ok=True)  # the fresh one is as new
    return 0


def _find(name: str | None, among: Sequence[Path]) -> Path:
    wanted = Path(name or "").name.removesuffix(".ipynb")
    for path in among:
        if wanted and (wanted.zfill(2) == path.stem[:2] or wanted in (path.stem, path.stem[3:])):
            return path
    told = f"no exercise {name!r}" if name else "reset needs to know which exercise"
    raise CourseError(f"{told}; choose a number or name of: {', '.join(path.stem for path in among)}")


def _agreed(name: str) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise CourseError(f"reset asks before it replaces exercises/{name}, and nobody is here to answer; add --yes")
    try:
        answer = input(f"Start exercises/{name} afresh? Your file is kept under another name. [y/N] ")
    except EOFError:  # Ctrl-D: no answer is no yes
        return False
    return answer.strip().lower() in ("y", "yes")


def _checks(root: Path) -> Iterator[dict[str, Any]]:
    """The records of checks in the order of their files: the runs folder's, and those of kernels that knew of none."""
    places = [paths.records_file(), *(root / folder / "runs/records.jsonl" for folder in ("exercises", "notebooks"))]
    for file in dict.fromkeys(place.resolve() for place in places if place.is_file()):
        try:
            for record in records.read(file):
                if record["kind"] == "check":
                    yield record
        except CourseError as error:  # what stands above the bad line counts
            print(f"dltutorial: {error}", file=sys.stderr)


def _score(checks: Sequence[dict[str, Any]]) -> tuple[object, ...]:
    """Attempts, passes, the last check in words, and the most cases that ever passed."""
    tried = [check for check in checks if check.get("status") in ("passed", "wrong")]
    if not tried:
        return 0, 0, "not attempted yet", "–"
    last = max(tried, key=lambda check: check["time"])
    passes = sum(check["status"] == "passed" for check in tried)
    counted = [(check["cases_passed"], check["cases"]) for check in tried if _is_counted(check)]
    best = max(counted, key=lambda pair: pair[0] / max(1, pair[1]), default=None)
    said = last["status"] if last["status"] == "passed" or not last.get("failed") else f"wrong: {last['failed']}"
    return len(tried), passes, f"{said} ({last['time'][:10]})", "–" if best is None else f"{best[0]} of {best[1]} cases"


def _is_counted(check: dict[str, Any]) -> bool:
    return all(isinstance(check.get(key), int) for key in ("cases_passed", "cases"))


def _newer(file: Path, copy: copies.Copy, newest: str) -> str:
    """Where the newer version is, if there is one."""
    if newest in (copy.version, copy.cells):
        return "no"
    new = copies.beside(file)
    return f"exercises/{new.name}" if copies.look(new).version == newest else "yes: dltutorial exercises build"
