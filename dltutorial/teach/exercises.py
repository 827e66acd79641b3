"""Exercise notebooks, generated from solution notebooks.

In: ``solutions/NN_*.ipynb``, whose code cells hold blocks between ``### BEGIN SOLUTION`` and ``### END SOLUTION``
(the markers of nbgrader, nbgrader.readthedocs.io). Out: ``exercises/NN_*.ipynb``, the same notebooks with a blank
for each block and no outputs. A copy in which a learner has changed a cell is not overwritten without asking.
"""

import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.errors import CourseError

_MARKER = re.compile(r"^(?P<indent>[ \t]*)#+ ?(?P<which>BEGIN|END) SOLUTION\s*$")
_MENTION = re.compile(r"(BEGIN|END) SOLUTION")
_HINT = re.compile(r"^\s*# HINT:\s*(?P<hint>.+?)\s*$")
_LEDGER = ".generated.json"


def build(root: Path | None = None, check: bool = False, force: bool = False) -> int:
    """Write ``root/exercises`` from ``root/solutions``; with ``check`` only say what is out of step.

    Args:
        root: the folder that holds ``solutions/`` and ``exercises/``; None: found from here upwards.
        check: write nothing; list the notebooks that a build would change.
        force: overwrite copies that were edited.

    Returns:
        0 when all is in step afterwards, 1 otherwise: an edited copy was kept, or ``check`` found a difference.

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
        elif file.read_text(encoding="utf-8") != text:
            lines.append(f"exercises/{name} is out of step with solutions/{name}")
    lines += [f"exercises/{name} has no solution notebook" for name in _left_over(root, made)]
    if not lines and _ledger(root) != {name: _digest(text) for name, text in made.items()}:
        lines.append(f"exercises/{_LEDGER} is out of step")
    for line in lines:
        print(f"{line}; run: dltutorial exercises build", file=sys.stderr)
    return 1 if lines else 0


def _write(root: Path, made: dict[str, str], force: bool) -> int:
    ledger = _ledger(root)
    kept = 0
    for name in _left_over(root, made):
        if force or not _edited(root / "exercises" / name, "", ledger.get(name)):
            (root / "exercises" / name).unlink()
            ledger.pop(name, None)
            print(f"removed exercises/{name}: it has no solution notebook")
        else:
            kept += 1
            print(f"exercises/{name} has no solution notebook and was edited: kept", file=sys.stderr)
    for name, text in made.items():
        file = root / "exercises" / name
        if _edited(file, text, ledger.get(name)) and not force and not _may_overwrite(name):
            kept += 1
            continue
        if not file.is_file() or file.read_bytes() != text.encode():
            paths.write_text(file, text)
            print(f"wrote exercises/{name}")
        ledger[name] = _digest(text)
    if ledger != _ledger(root):
        paths.write_text(root / "exercises" / _LEDGER, json.dumps(ledger, indent=1, sort_keys=True) + "\n")
    return 1 if kept else 0


def _may_overwrite(name: str) -> bool:
    if sys.stdin is not None and sys.stdin.isatty():
        with contextlib.suppress(EOFError):  # Ctrl-D: no answer is no yes
            answer = input(f"exercises/{name} holds changes that are not ours. Overwrite it? [y/N] ")
            if answer.strip().lower() in ("y", "yes"):
                return True
    print(f"exercises/{name} was edited: kept; --force overwrites it", file=sys.stderr)
    return False


def _left_over(root: Path, made: dict[str, str]) -> Iterator[str]:
    for file in sorted((root / "exercises").glob("[0-9][0-9]_*.ipynb")):
        if file.name not in made:
            yield file.name


def _edited(file: Path, new: str, recorded: str | None) -> bool:
    """Whether a cell of ``file`` was changed since we wrote it. Outputs do not count: running is not editing."""
    if not file.is_file():
        return False
    now = _digest(file.read_text(encoding="utf-8", errors="replace"))
    return now != recorded and (not new or now != _digest(new))


def _digest(text: str) -> str:
    """A hash of the kinds and sources of the cells; of the whole text where it is no notebook."""
    try:
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        text = json.dumps(cells)
    except (ValueError, KeyError, TypeError):
        pass
    return hashlib.sha256(text.encode()).hexdigest()


def _ledger(root: Path) -> dict[str, str]:
    try:
        return dict(json.loads((root / "exercises" / _LEDGER).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
