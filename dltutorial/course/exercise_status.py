"""Show how far a learner is with the exercises, and start one exercise again.

The input is the course's folder and the records of the checks (kind "check"). The output is a table, or a new exercise
and a copy of the old file.
"""

import os
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.course import exercises, notebooks
from dltutorial.record import records
from dltutorial.record.table import Table

_HEADER = ("exercise", "attempts", "times passed", "last check")


def status() -> Table:
    """Return a table with one row per exercise: how often its checks ran, and how they ended.

    Raises:
        CourseError: The course's folder is not found.
    """
    root = paths.course_folder("solutions")
    checks = _checks(root)
    rows = []
    for solution in notebooks.chapters(root / "solutions"):
        chapter = notebooks.about(solution)["chapter"]
        of_chapter = [check for check in checks if check["chapter"] == chapter]
        rows.append((solution.stem, *_score(of_chapter)))
    return Table.of(_HEADER, rows)


def reset(name: str, yes: bool = False) -> int:
    """Start one exercise again. The learner is asked first, and the old file is copied into ``exercises/kept/``.

    Args:
        name: The number ("01", "1"), name or file name of the exercise.
        yes: Do not ask.

    Returns:
        0 if the exercise is new, 1 if the learner did not agree.

    Raises:
        CourseError: There is no such exercise, or the old file cannot be copied.
    """
    root = paths.course_folder("solutions")
    solution = notebooks.find(name, notebooks.chapters(root / "solutions"))
    file = root / "exercises" / solution.name
    if file.exists():
        if not (yes or _agreed(file.name)):
            return 1
        copy = exercises.keep(file)
        print(f"your file is kept as {os.path.relpath(copy)}")
    paths.write_text(file, exercises.blank_notebook(solution))
    print(f"{os.path.relpath(file)} is new")
    return 0


def _agreed(name: str) -> bool:
    """Ask the learner at the terminal whether to replace the exercise ``name``."""
    answer = input(f"Start {name} again? A copy of your file is kept. [y/N] ")
    return answer.strip().lower() in ("y", "yes")


def _checks(root: Path) -> list[dict[str, Any]]:
    """Return the records of checks, from the folder of the records and from the one beside the exercises.

    A kernel that JupyterLab starts works in the folder of its notebook. Without ``DLTUTORIAL_RUNS`` its records are
    there.
    """
    folders = {paths.records_dir().resolve(), (root / "exercises" / "runs" / "records").resolve()}
    return [record for folder in folders for record in records.read(folder) if record["kind"] == "check"]


def _score(checks: list[dict[str, Any]]) -> tuple[object, ...]:
    """Return three columns of the table: attempts, passes, and the last check in words."""
    attempts = [check for check in checks if check.get("status") in ("passed", "wrong")]
    if not attempts:
        return 0, 0, "not attempted yet"
    n_passed = sum(check["status"] == "passed" for check in attempts)
    last = max(attempts, key=lambda check: check["time"])
    result = last["status"]
    if result == "wrong" and last.get("failed"):
        result = f"wrong: {last['failed']}"
    return len(attempts), n_passed, f"{result} ({last['time'][:10]})"
