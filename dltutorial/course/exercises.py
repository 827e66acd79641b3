"""Exercise notebooks, generated from solution notebooks.

In: ``solutions/NN_*.ipynb``, whose code cells hold blocks between ``### BEGIN SOLUTION`` and ``### END SOLUTION``
(the markers of nbgrader, nbgrader.readthedocs.io). Out: ``exercises/NN_*.ipynb``, the same notebooks with a blank
for each block and no outputs, and a mark of their version. A copy in which a learner has changed a cell is never
overwritten: a newer version is put beside it as ``NN_*.new.ipynb``.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.course import copies
from dltutorial.errors import CourseError

_MARKER = re.compile(r"^(?P<indent>[ \t]*)#+ ?(?P<which>BEGIN|END) SOLUTION\s*$")
_MENTION = re.compile(r"(BEGIN|END) SOLUTION")
_HINT = re.compile(r"^\s*# HINT:\s*(?P<hint>.+?)\s*$")


def build(root: Path | None = None, check: bool = False, force: bool = False) -> int:
    """Write ``root/exercises`` from ``root/solutions``; with ``check`` only say what is out of step.

    Args:
        root: the folder that holds ``solutions/`` and ``exercises/``; None: found from here upwards.
        check: write nothing; list the notebooks that a build would change.
        force: replace copies that were edited, too; each is kept under another name.

    Returns:
        1 when ``check`` found a difference, else 0.

    Raises:
        CourseError: no solutions, a notebook that cannot be read, or markers that do not pair.
    """
    root = paths.course_folder("solutions") if root is None else Path(root)
    made = {path.name: blank_notebook(path) for path in solution_files(root)}
    return _compare(root, made) if check else _write(root, made, force)


def solution_files(root: Path) -> list[Path]:
    """The solution notebooks in the order of their numbers.

    Raises:
        CourseError: there are none.
    """
    found = sorted(Path(root, "solutions").glob("[0-9][0-9]_*.ipynb"))
    if not found:
        raise CourseError(f"no solutions/NN_*.ipynb in {root}; run this in the course's folder")
    return found


def blank_notebook(path: Path) -> str:
    """The text of the exercise notebook that belongs to the solution notebook ``path``.

    Raises:
        CourseError: not a notebook, or markers that do not pair, naming notebook and cell.
    """
    notebook = read(path)
    notebook["metadata"].pop("widgets", None)
    for number, cell in enumerate(notebook["cells"], 1):
        source = "".join(cell["source"])
        where = f"{path.name}, cell {number}"
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
            cell["metadata"].pop("execution", None)
            source = blank(source, where)
        elif _MENTION.search(source):
            raise CourseError(f"{where}: a solution marker in a {cell['cell_type']} cell; move it to a code cell")
        cell["source"] = source.splitlines(keepends=True)
    copies.mark(notebook)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def blank(source: str, where: str) -> str:
    """``source`` with every solution block replaced by a blank at the indentation of its BEGIN marker.

    Raises:
        CourseError: unpaired, nested or misspelt markers; ``where`` begins the message.
    """
    out: list[str] = []
    indent: str | None = None
    for line in source.split("\n"):
        marker = _MARKER.match(line)
        if marker is None and _MENTION.search(line):
            raise CourseError(f"{where}: {line.strip()!r} is no marker; write '### BEGIN SOLUTION' on its own line")
        if marker is None:
            hint = _HINT.match(line)
            if indent is None:
                out.append(line)
            elif hint:
                out.append(f"{indent}# Hint: {hint['hint']}")
        elif marker["which"] == "BEGIN":
            if indent is not None:
                raise CourseError(f"{where}: BEGIN SOLUTION inside a solution; close the first with END SOLUTION")
            indent = marker["indent"]
            out.append(f"{indent}# YOUR CODE HERE")
        else:
            if indent is None:
                raise CourseError(f"{where}: END SOLUTION without BEGIN SOLUTION; add or remove a marker")
            out.append(f"{indent}raise NotImplementedError")
            indent = None
    if indent is not None:
        raise CourseError(f"{where}: BEGIN SOLUTION without END SOLUTION; add the END marker")
    return "\n".join(out)


def read(path: Path) -> dict[str, Any]:
    """A notebook as plain JSON.

    Raises:
        CourseError: it cannot be read, or is no notebook.
    """
    try:
        notebook = json.loads(Path(path).read_text(encoding="utf-8"))
        if not all({"cell_type", "source", "metadata"} <= cell.keys() for cell in notebook["cells"]):
            raise KeyError("a cell lacks its type, source or metadata")
        return {**notebook, "cells": list(notebook["cells"]), "metadata": dict(notebook["metadata"])}
    except OSError as error:
        raise CourseError(f"cannot read {path}: {error.strerror}; check the path") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CourseError(f"{path} is not a notebook ({error}); restore it from git") from error


def _compare(root: Path, made: dict[str, str]) -> int:
    lines = []
    for name, text in made.items():
        file = root / "exercises" / name
        if not file.is_file():
            lines.append(f"exercises/{name} is missing")
        elif file.read_bytes() != text.encode():
            lines.append(f"exercises/{name} is out of step with solutions/{name}")
    lines += [f"exercises/{file.name} has no solution notebook" for file in _left_over(root, made)]
    for line in lines:
        print(f"{line}; run: dltutorial exercises build", file=sys.stderr)
    return 1 if lines else 0


def _write(root: Path, made: dict[str, str], force: bool) -> int:
    for file in _left_over(root, made):
        if copies.look(file).is_pristine:
            file.unlink()
            print(f"removed exercises/{file.name}: it has no solution notebook any more")
        else:
            print(f"exercises/{file.name} has no solution notebook any more; yours is kept", file=sys.stderr)
    for name, text in made.items():
        file = root / "exercises" / name
        copy = copies.look(file)
        if copy.is_pristine or copy.cells == copies.version(text):
            if not file.is_file() or file.read_bytes() != text.encode():
                paths.write_text(file, text)
                print(f"wrote exercises/{name}")
        elif force:
            print(f"exercises/{name}: new; yours is kept as {copies.replace(file, text).relative_to(root)}")
        elif copy.version != copies.version(text):
            _put_beside(file, text)
    return 0


def _put_beside(file: Path, text: str) -> None:
    """Write a newer version beside a copy that stays as it is, and tell it once."""
    new = copies.beside(file)
    if new.is_file() and new.read_bytes() == text.encode():
        return
    if not copies.look(new).is_pristine:  # somebody went on working in the new one
        copies.keep(new)
    paths.write_text(new, text)
    print(f"exercises/{file.name} holds your work and stays; its new version is exercises/{new.name}")


def _left_over(root: Path, made: dict[str, str]) -> list[Path]:
    """Exercises that no solution notebook makes; new versions beside them are none."""
    found = sorted((root / "exercises").glob("[0-9][0-9]_*.ipynb"))
    return [file for file in found if file.name not in made and not copies.is_new_version(file)]
