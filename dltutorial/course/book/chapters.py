"""The book's chapters: for each notebook of today its newest executed copy, made ready to be read.

In: the folder of the notebooks, and one folder or several with executed copies. Out: notebooks whose outputs are those
of today's cells, without widgets (they need a kernel; a picture stands beside each), without places of the machine
that ran them, with a line that says what machine that was.
"""

import contextlib
import copy
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dltutorial.course import exercises
from dltutorial.errors import CourseError

_WIDGET = "application/vnd.jupyter.widget-view+json"
_ADDED = "injected-parameters"  # papermill's tag for the cell it puts in
_PLACES = "|".join(("home", "root", "work", "tmp", "mnt", "Users", "scratch", "pscratch", "global", "opt", "srv"))
_PLACE = re.compile(rf"(?<![\w.~}})/:-])/(?:{_PLACES})/[\w.@/~-]*")
_DATA = re.compile(r"([A-Za-z0-9+/=]{200,})")  # an encoded picture or trace


@dataclass(frozen=True)
class Printed:
    """A chapter for the book: the notebook of today, its executed copy or None, and a line about where it ran."""

    source: Path
    executed: Path | None
    ran: str = ""


def choose(sources: Sequence[Path], runs: Sequence[Path], partial: bool = False) -> list[Printed]:
    """For each notebook its copy in the first of the folders whose copy can be printed.

    Args:
        sources: the notebooks of today.
        runs: folders with executed copies, newest first.
        partial: take a chapter without outputs where none can be printed.

    Raises:
        CourseError: a chapter has no copy that can be printed, and ``partial`` is not set; one line that names the
            chapters, says what is wrong with the newest copy of the first, and what to run.
    """
    chosen, wrong = [], {}
    for source in sources:
        reasons = []
        for run in runs:
            reason = unfit(source, run / source.name)
            if not reason:
                chosen.append(Printed(source, run / source.name, _ran(run)))
                break
            reasons.append(reason)
        else:
            told = [reason for reason in reasons if reason != "not executed"]
            wrong[source] = told[0] if told else "not executed"
            chosen.append(Printed(source, None))
    if wrong and not partial:
        first = next(iter(wrong))
        others = f"; {len(wrong) - 1} more of {len(sources)} chapters are not fit either" if len(wrong) > 1 else ""
        again = "" if len(wrong) == len(sources) else " " + " ".join(source.stem[:2] for source in wrong)
        raise CourseError(f"{first.name}: {wrong[first]}{others}; run: dltutorial run{again}, or give --partial")
    return chosen


def unfit(source: Path, copy_: Path) -> str:
    """Why the executed copy of a notebook cannot be printed; empty if it can."""
    if not copy_.is_file():
        return "not executed"
    try:
        done = _own_cells(exercises.read(copy_))
    except CourseError:
        return "its executed copy cannot be read"
    for number, cell in enumerate(done, 1):
        for output in cell.get("outputs", ()):
            if output.get("output_type") == "error":
                return f"cell {number} failed: {_line(output)}"
    today = exercises.read(source)["cells"]
    for number, (now, then) in enumerate(zip(today, done, strict=False), 1):
        if _text(now) != _text(then):
            return f"executed before cell {number} was changed"
    if len(today) != len(done):
        return "executed before cells were added or removed"
    for number, cell in enumerate(done, 1):
        if cell["cell_type"] == "code" and "".join(cell["source"]).strip() and not cell.get("execution_count"):
            return f"cell {number} was not executed"
    return ""


def notebook(printed: Printed) -> dict[str, Any]:
    """The chapter as the book shows it, with its number in its title."""
    made = exercises.read(printed.executed or printed.source)
    cells = copy.deepcopy(_own_cells(made))
    for cell in cells:
        if cell["cell_type"] == "code":
            kept = [output for output in cell["outputs"] if _WIDGET not in output.get("data", {})]
            cell["outputs"] = [_without_places(output) for output in kept]
    about = printed.ran or "**Not executed.** This chapter is printed without its results: run it to see them."
    first = "".join(cells[0]["source"]).removeprefix("# ")
    cells[0]["source"] = f"# {printed.source.stem[:2]} · {first}\n\n:::{{container}} ran\n{about}\n:::\n"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    kept = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": kept, "nbformat": 4, "nbformat_minor": 5}


def _own_cells(executed: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in executed["cells"] if _ADDED not in cell["metadata"].get("tags", ())]


def _text(cell: dict[str, Any]) -> tuple[str, str]:
    return cell["cell_type"], "".join(cell["source"])


def _line(output: dict[str, Any]) -> str:
    text = f"{output.get('ename', 'Error')}: {output.get('evalue', '')}".strip()
    return text.splitlines()[0][:200]


def _ran(run: Path) -> str:
    """When and on what machine a run was made; empty if its folder does not say."""
    try:
        about = json.loads((run / "run.json").read_text(encoding="utf-8"))
        torch = about["versions"].get("torch")
        where = f"{about['machine']}, preset `{about['preset']}`" + (f", torch {torch}" if torch else "")
    except (OSError, ValueError, KeyError, AttributeError):
        return "Executed on a machine that its folder does not name."
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(run / "records.jsonl") as records:
        where += f", {json.loads(records.readline())['time'][:10]}"
    return f"Executed on {where}."


def _without_places(output: dict[str, Any]) -> dict[str, Any]:
    """The output, in which a place on the machine is left with its last name only."""
    if isinstance(output, dict):
        return {key: _without_places(value) for key, value in output.items()}
    if isinstance(output, list):
        return [_without_places(value) for value in output]
    if not isinstance(output, str):
        return output
    parts = _DATA.split(output)
    parts[::2] = [_PLACE.sub(lambda hit: "…/" + hit[0].rstrip("/").rpartition("/")[2], part) for part in parts[::2]]
    return "".join(parts)
