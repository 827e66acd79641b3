"""Find the notebooks of the course, read their metadata and the files that they write, and check parameters for them.

The input is a folder, and a chapter by number or name. The output is paths, titles, parameters and the metadata:

    "dltutorial": {"chapter": "01", "minutes": 40, "smoke_s": 55, "better_with": ["cuda"]}

``minutes`` is a learner's time, and ``smoke_s`` is the time of a run in preset smoke in seconds. ``better_with`` lists
hardware that ``doctor.has`` knows. The core chapters are ``notebooks/NN_….ipynb``. Material beyond the core is in
``notebooks/further/NN_….ipynb``, and its number is ``NN-further``. Source of the format: https://nbformat.readthedocs.io.
This module does not load torch.
"""

import ast
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.course.execute import quick_imports
from dltutorial.errors import CourseError, RecipeError

WRITES = "%%writefile "
FURTHER = "further"  # the folder of the notebooks beyond the core, below the folder of the core chapters
_PATTERN = "[0-9][0-9]_*.ipynb"
_COPY = re.compile(r"-Copy\d+$|__\d{8,}")  # the names of copies that JupyterLab and nbgitpuller make
_HEADING = re.compile(r"^#+\s*(?:\d+\W+)?(.*)")


def folder() -> Path:
    """Return the folder ``notebooks`` in the course's folder.

    Raises:
        CourseError: There is no such folder.
    """
    return paths.course_folder("notebooks") / "notebooks"


def chapters(where: Path | None = None) -> list[Path]:
    """Return the notebooks of a folder in the order of their numbers. A further notebook follows its core chapter.

    The capstone of the exercises is last. Copies that JupyterLab or nbgitpuller make (``-Copy1``, ``__20261122…``) are
    a learner's own and are left out.

    Args:
        where: The folder. None means the folder of the course's notebooks.

    Raises:
        CourseError: There are no notebooks.
    """
    where = folder() if where is None else Path(where)
    files = [*where.glob(_PATTERN), *where.glob(f"{FURTHER}/{_PATTERN}")]
    files = [file for file in files if not _COPY.search(file.stem)]
    files.sort(key=lambda file: (number(file), file.stem))
    files += where.glob("capstone.ipynb")
    if not files:
        raise CourseError(f"no notebooks NN_*.ipynb in {where}; run this in the course's folder")
    return files


def number(path: Path) -> str:
    """Return the number of a notebook, such as "03", or "03-further" if it is in the folder ``further``."""
    if path.parent.name == FURTHER:
        return f"{path.stem[:2]}-{FURTHER}"
    return path.stem[:2]


def place(path: Path) -> str:
    """Return where a notebook is below the folder of notebooks, such as "03_feed.ipynb" or "further/03_feed.ipynb"."""
    if path.parent.name == FURTHER:
        return f"{FURTHER}/{path.name}"
    return path.name


def find(wanted: str, among: Sequence[Path] | None = None) -> Path:
    """Find one notebook.

    Args:
        wanted: Its number ("03", "3"), its name ("03_feed") or its file name. For a further notebook, its number
            ("03-further") or its path ("notebooks/further/03_feed.ipynb").
        among: The notebooks. None means all notebooks of the course.

    Raises:
        CourseError: There is no such notebook, and the message lists all of them.
    """
    among = chapters() if among is None else among
    is_further = FURTHER in wanted
    name = Path(wanted).name.removesuffix(".ipynb").removesuffix(f"-{FURTHER}")
    for path in among:
        if (path.parent.name == FURTHER) == is_further and name.zfill(2) in (path.stem, path.stem[:2]):
            return path
    names = ", ".join(place(path).removesuffix(".ipynb") for path in among)
    raise CourseError(f"no notebook {wanted!r}; choose a number or name of: {names}")


def read(path: Path) -> dict[str, Any]:
    """Return a notebook as plain JSON."""
    return json.loads(path.read_text(encoding="utf-8"))


def about(path: Path) -> dict[str, Any]:
    """Return the metadata of a notebook. They have at least the key "chapter", such as "03" or "03-further"."""
    return {"chapter": number(path), **read(path)["metadata"].get("dltutorial", {})}


def title(notebook: Mapping[str, Any]) -> str:
    """Return the first heading without its number, or an empty string."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            for line in "".join(cell["source"]).splitlines():
                heading = _HEADING.match(line.strip())
                if heading:
                    return heading[1]
    return ""


def written(notebook: Path) -> dict[str, str]:
    """Return the texts of the files that the cells of a notebook write. The keys are the names of the files."""
    files = {}
    for cell in read(notebook)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and source.startswith(WRITES):
            name, _, text = source.removeprefix(WRITES).partition("\n")
            files[name.strip()] = text.rstrip("\n") + "\n"
    return files


def checked(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check parameters for a notebook, and convert text to the type of the default.

    Args:
        path: The notebook. Its cell with the tag ``parameters`` has the defaults.
        given: The parameters. Text becomes a number, list or truth value if it can be read as one, unless the default
            is text.

    Returns:
        The converted parameters.

    Raises:
        RecipeError: The notebook has no parameter of that name.
    """
    if not given:
        return {}
    quick_imports()
    import papermill

    known = papermill.inspect_notebook(str(path))
    parameters = {}
    for name, value in given.items():
        if name not in known:
            raise RecipeError(f"{path.stem} has no parameter {name!r}; it has: {', '.join(known) or 'none'}")
        parameters[name] = value
        if isinstance(value, str) and known[name]["default"][0] not in "'\"":
            with contextlib.suppress(ValueError, SyntaxError):
                parameters[name] = ast.literal_eval(value)
    return parameters
