"""Make the exercise notebooks from the solution notebooks.

The input is ``solutions/NN_*.ipynb``. The code cells of these notebooks have blocks between ``### BEGIN SOLUTION`` and
``### END SOLUTION``, which are the markers of nbgrader (nbgrader.readthedocs.io). The output is
``exercises/NN_*.ipynb``. These are the same notebooks with a blank in place of each block. Both folders are in git, so
learners have the exercises without a build. Authors run the build after they have changed a solution. Before the build
writes a file that exists, it copies the old file into ``exercises/kept``.
"""

import datetime
import json
import re
import shutil
import sys
from pathlib import Path

from dltutorial import paths
from dltutorial.course import notebooks
from dltutorial.errors import CourseError

_BLOCK = re.compile(
    r"^(?P<indent>[ \t]*)### BEGIN SOLUTION\s*\n(?P<inside>.*?)^[ \t]*### END SOLUTION[ \t]*$", re.MULTILINE | re.DOTALL
)
_MARKER = re.compile(r"(BEGIN|END) SOLUTION")
_HINT = re.compile(r"^\s*# HINT:\s*(.+?)\s*$", re.MULTILINE)


def build(check: bool = False) -> int:
    """Write ``exercises/`` from ``solutions/`` in the course's folder.

    A file that exists and differs is first copied (see ``keep``), because it may hold a learner's answer.

    Args:
        check: If true, write nothing, and print the names of the files that a build would change.

    Returns:
        1 if ``check`` is true and an exercise differs from the one that a build would make, else 0.

    Raises:
        CourseError: There are no solutions, a notebook cannot be read, or a marker in a notebook has no partner.
    """
    root = paths.course_folder("solutions")
    texts = {solution.name: blank_notebook(solution) for solution in notebooks.chapters(root / "solutions")}
    status = 0
    for name, text in texts.items():
        file = root / "exercises" / name
        if file.exists() and file.read_bytes() == text.encode():
            continue
        if check:
            out_of_step = f"exercises/{file.name} is not what its solution makes"
            print(f"{out_of_step}; run: dltutorial exercises build", file=sys.stderr)
            status = 1
        else:
            if file.exists():
                print(f"the old exercises/{file.name} is now exercises/kept/{keep(file).name}")
            paths.write_text(file, text)
            print(f"wrote exercises/{file.name}")
    return status


def blank_notebook(solution: Path) -> str:
    """Return the text of the exercise notebook that belongs to a solution notebook.

    Raises:
        CourseError: The file is not a notebook, or a marker in one of its cells has no partner.
    """
    notebook = notebooks.read(solution)
    for number, cell in enumerate(notebook["cells"], 1):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            cell["outputs"] = []
            cell["execution_count"] = None
            source = blank(source)
        if _MARKER.search(source):
            rule = "each ### BEGIN SOLUTION of a code cell needs its ### END SOLUTION, both on lines of their own"
            raise CourseError(f"{solution.name}, cell {number}: {rule}")
        cell["source"] = source.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def blank(source: str) -> str:
    """Return ``source`` with a blank in place of every solution block. A marker without a partner stays."""

    def hide(block: re.Match) -> str:
        if _MARKER.search(block["inside"]):
            return block[0]
        hints = [f"# Hint: {hint}" for hint in _HINT.findall(block["inside"])]
        lines = ["# YOUR CODE HERE", *hints, "raise NotImplementedError"]
        return "\n".join(block["indent"] + line for line in lines)

    return _BLOCK.sub(hide, source)


def keep(file: Path) -> Path:
    """Copy a learner's ``file`` into the folder ``kept`` beside it. The copy's name has the date and the time.

    Returns:
        The path of the copy.

    Raises:
        CourseError: The file cannot be copied.
    """
    now = f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S.%f}"
    copy = file.parent / "kept" / f"{file.stem}.{now}{file.suffix}"
    try:
        copy.parent.mkdir(exist_ok=True)
        shutil.copy2(file, copy)
    except OSError as error:
        raise CourseError(f"cannot copy {file} to {copy.parent}: {error.strerror or error}; make room there") from error
    return copy
