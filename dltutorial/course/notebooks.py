"""The course's notebooks: find them, read what they say about themselves, check what they are asked.

In: a folder, a chapter by number or name. Out: paths, titles, parameters, and the metadata. Loads no torch.

    "dltutorial": {"chapter": "01", "minutes": 40, "smoke_s": 55, "better_with": ["cuda"]}

There ``minutes`` are a learner's, ``smoke_s`` the seconds of a run in preset smoke; ``better_with`` names what
``doctor.has`` knows.
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

_COPY = re.compile(r"-Copy\d+$|__\d{8,}")


def folder() -> Path:
    """The folder of the notebooks: ``DLTUTORIAL_NOTEBOOKS``, else ``notebooks`` of the course here or above.

    CourseError: there is none.
    """
    named = paths.of_variable("DLTUTORIAL_NOTEBOOKS")
    if named and not named.is_dir():
        raise CourseError(f"DLTUTORIAL_NOTEBOOKS {str(named)!r} is not a folder; name the one with the notebooks")
    return named.resolve() if named else paths.course_folder("notebooks") / "notebooks"


def chapters(where: Path | None = None) -> list[Path]:
    """The notebooks in the order of their numbers. The capstone, in a folder of exercises, comes last.

    Copies that JupyterLab or nbgitpuller make beside them (``-Copy1``, ``__20261122…``) are a learner's own.

    Raises:
        CourseError: There are none.
    """
    where = folder() if where is None else Path(where)
    numbered = sorted(file for file in where.glob("[0-9][0-9]_*.ipynb") if not _COPY.search(file.stem))
    found = [*numbered, *where.glob("capstone.ipynb")]
    if not found:
        raise CourseError(f"no notebooks NN_*.ipynb in {where}; run this in the course's folder")
    return found


def find(wanted: str, among: Sequence[Path] | None = None, kind: str = "chapter") -> Path:
    """The notebook of this ``kind`` with this number ("03", "3"), name ("03_feed", "feed") or file name.

    Raises:
        CourseError: there is none, and the message lists those there are; or there are several.
    """
    among = chapters() if among is None else among
    name = Path(wanted).name.removesuffix(".ipynb")
    number = [path for path in among if name and name.zfill(2) == path.stem[:2]]
    found = [path for path in among if path.stem == name] or number or [path for path in among if path.stem[3:] == name]
    if len(found) == 1:
        return found[0]
    there, several = ", ".join(path.stem for path in among), " or ".join(path.stem for path in found)
    which = f"{kind} {wanted!r} may be {several}; give the whole name of one"
    raise CourseError(which if found else f"no {kind} {wanted!r}; choose a number or name of: {there}")


def read(path: Path) -> dict[str, Any]:
    """A notebook as plain JSON.

    Raises:
        CourseError: The file cannot be read, or it is no notebook.
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
    """What a notebook says about itself, its number at least, such as "03", as its records have it."""
    return {"chapter": path.stem[:2], **read(path)["metadata"].get("dltutorial", {})}


def title(notebook: Mapping[str, Any]) -> str:
    """The first heading, without a number in front; empty where there is none."""
    texts = ("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    lines = (line.strip() for text in texts for line in text.splitlines())
    return next((re.sub(r"^#+\s*(\d+\W+)?", "", line) for line in lines if line.startswith("#")), "")


def checked(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given parameters of a notebook, in the type of their defaults in its cell tagged ``parameters``.

    Text becomes a number, list or truth value where it reads as one, unless the default is text.
    RecipeError: the notebook has no parameter of that name.
    """
    if not given:
        return {}
    quick_imports()
    import papermill

    try:
        known, made = papermill.inspect_notebook(str(path)), dict(given)
    except ValueError as error:
        raise RecipeError(f"{path}: {error} Restore its metadata from git to give it parameters") from error
    for name, value in given.items():
        if name not in known:
            raise RecipeError(f"{path.stem} has no parameter {name!r}; it has: {', '.join(known) or 'none'}")
        if isinstance(value, str) and known[name]["default"][0] not in "'\"":
            with contextlib.suppress(ValueError, SyntaxError):
                made[name] = ast.literal_eval(value)
    return made
