"""The book's pages of exercises: the exercise as a learner gets it, each blank followed by its solution in a fold.

In: a solution notebook. Out: a notebook without outputs for myst-nb, which folds cells tagged ``hide-input``
(myst-nb.readthedocs.io/en/latest/render/hiding.html).
"""

import json
import re
from pathlib import Path
from typing import Any

from dltutorial.course import exercises

_MARK = re.compile(r"^[ \t]*#+ ?(BEGIN|END) SOLUTION[ \t]*\n?|^[ \t]*# HINT:.*\n?", re.MULTILINE)
_FOLD = {"code_prompt_show": "Show a solution", "code_prompt_hide": "Hide the solution"}


def notebook(solution: Path) -> dict[str, Any]:
    """The exercise with its folded solutions.

    Raises:
        CourseError: not a notebook, or markers that do not pair.
    """
    blank = json.loads(exercises.blank_notebook(solution))
    cells = []
    for open_cell, solved in zip(blank["cells"], exercises.read(solution)["cells"], strict=True):
        cells.append(open_cell)
        source = "".join(solved["source"])
        if source != "".join(open_cell["source"]):
            fold = {"tags": ["hide-input"], "mystnb": _FOLD}
            solution = {"id": f"{open_cell['id']}-solved", "metadata": fold, "source": solution_of(source)}
            cells.append({**open_cell, **solution})
    return {**blank, "cells": cells}


def solution_of(source: str) -> str:
    """The cell without its markers and hints."""
    return _MARK.sub("", source).strip("\n")
