"""Find the notebooks of the course, read their metadata, and check parameters for them.

The input is a folder, and a chapter by number or name. The output is paths, titles, parameters and the metadata:

    "dltutorial": {"chapter": "01", "minutes": 40, "smoke_s": 55, "better_with": ["cuda"]}

``minutes`` is a learner's time, and ``smoke_s`` is the time of a run in preset smoke in seconds. ``better_with`` lists
hardware that ``doctor.has`` knows. Source of the format: https://nbformat.readthedocs.io. This module does not load
torch.
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

_COPY = re.compile(r"-Copy\d+$|__\d{8,}")  # the names of copies that JupyterLab and nbgitpuller make
WRITES = "%%writefile "
_HEADING = re.compile(r"^#+\s*(?:\d+\W+)?(.*)")


def folder() -> Path:
    """Return the folder of the notebooks: ``DLTUTORIAL_NOTEBOOKS``, or else ``notebooks`` in the course's folder.

    Raises:
        CourseError: There is no such folder.
    """
    from_environment = paths.of_variable("DLTUTORIAL_NOTEBOOKS")
    if from_environment is None:
        return paths.course_folder("notebooks") / "notebooks"
    if not from_environment.is_dir():
        name = str(from_environment)
        raise CourseError(f"DLTUTORIAL_NOTEBOOKS {name!r} is not a folder; name the one with the notebooks")
    return from_environment.resolve()


def chapters(where: Path | None = None) -> list[Path]:
    """Return the notebooks of a folder in the order of their numbers. The capstone of the exercises is last.

    Copies that JupyterLab or nbgitpuller make (``-Copy1``, ``__20261122…``) are a learner's own and are left out.

    Args:
        where: The folder. None means the folder of the course's notebooks.

    Raises:
        CourseError: There are no notebooks.
    """
    where = folder() if where is None else Path(where)
    files = sorted(file for file in where.glob("[0-9][0-9]_*.ipynb") if not _COPY.search(file.stem))
    files += where.glob("capstone.ipynb")
    if not files:
        raise CourseError(f"no notebooks NN_*.ipynb in {where}; run this in the course's folder")
    return files


def find(wanted: str, among: Sequence[Path] | None = None, kind: str = "chapter") -> Path:
    """Find one notebook.

    Args:
        wanted: Its number ("03", "3"), its name ("03_feed", "feed") or its file name.
        among: The notebooks. None means all chapters.
        kind: The word for such a notebook in a message.

    Raises:
        CourseError: There is no such notebook, and the message lists all of them. Or there are several.
    """
    among = chapters() if among is None else among
    name = Path(wanted).name.removesuffix(".ipynb")
    matches = [path for path in among if path.stem == name]
    if not matches and name:
        matches = [path for path in among if path.stem[:2] == name.zfill(2)]
    if not matches:
        matches = [path for path in among if path.stem[3:] == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        several = " or ".join(path.stem for path in matches)
        raise CourseError(f"{kind} {wanted!r} may be {several}; give the whole name of one")
    names = ", ".join(path.stem for path in among)
    raise CourseError(f"no {kind} {wanted!r}; choose a number or name of: {names}")


def read(path: Path) -> dict[str, Any]:
    """Return a notebook as plain JSON.

    Raises:
        CourseError: The file cannot be read, or it is not a notebook.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CourseError(f"cannot read {path}: {error.strerror}; check the path") from error
    except ValueError as error:
        raise CourseError(f"{path} is not a notebook ({error}); restore it from git") from error
    if not isinstance(notebook, dict) or not {"cells", "metadata"} <= notebook.keys():
        raise CourseError(f"{path} is not a notebook; restore it from git")
    return notebook


def about(path: Path) -> dict[str, Any]:
    """Return the metadata of a notebook. They have at least the key "chapter", such as "03"."""
    return {"chapter": path.stem[:2], **read(path)["metadata"].get("dltutorial", {})}


def written(notebook: Path) -> dict[str, str]:
    """Return the texts of the files that the cells of a notebook write. The keys are the names of the files."""
    files = {}
    for cell in read(notebook)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and source.startswith(WRITES):
            name, _, text = source.removeprefix(WRITES).partition("\n")
            files[name.strip()] = text.rstrip("\n") + "\n"
    return files


def title(notebook: Mapping[str, Any]) -> str:
    """Return the first heading without its number, or an empty string."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            for line in "".join(cell["source"]).splitlines():
                heading = _HEADING.match(line.strip())
                if heading:
                    return heading[1]
    return ""


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

    try:
        known = papermill.inspect_notebook(str(path))
    except ValueError as error:
        raise RecipeError(f"{path}: {error} Restore its metadata from git to give it parameters") from error
    parameters = {}
    for name, value in given.items():
        if name not in known:
            raise RecipeError(f"{path.stem} has no parameter {name!r}; it has: {', '.join(known) or 'none'}")
        parameters[name] = value
        if isinstance(value, str) and known[name]["default"][0] not in "'\"":
            with contextlib.suppress(ValueError, SyntaxError):
                parameters[name] = ast.literal_eval(value)
    return parameters
