"""The course's notebooks: find them, check what they are asked, and run them without a browser.

In: chapters by number or name, a preset, parameters. Out: ``runs/<time>/`` with the executed notebooks, their records
(``records.jsonl``), a summary (``run.json``) and an ``index.html``; a table; 0, 1 if a chapter failed, 130 if
interrupted. Everything that can be known to be wrong is told before anything runs. Loads no torch.
"""

import ast
import datetime
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dltutorial import config, node, paths
from dltutorial.course import course_run, exercises
from dltutorial.errors import CourseError, RecipeError

_PATTERN = "[0-9][0-9]_*.ipynb"


def folder() -> Path:
    """The folder of the notebooks: ``DLTUTORIAL_NOTEBOOKS``, else ``notebooks`` of the course here or above.

    Raises:
        CourseError: there is none.
    """
    named = os.environ.get("DLTUTORIAL_NOTEBOOKS")
    if named and not Path(named).is_dir():
        raise CourseError(f"DLTUTORIAL_NOTEBOOKS {named!r} is not a folder; name the one with the notebooks")
    return Path(named).resolve() if named else paths.course_folder("notebooks") / "notebooks"


def chapters(where: Path | None = None) -> list[Path]:
    """The notebooks, in the order of their numbers.

    Raises:
        CourseError: there are none.
    """
    where = folder() if where is None else Path(where)
    found = sorted(where.glob(_PATTERN))
    if not found:
        raise CourseError(f"no notebooks NN_*.ipynb in {where}; run this in the course's folder")
    return found


def find(wanted: str, among: Sequence[Path] | None = None) -> Path:
    """The notebook with this number ("03", "3"), name ("03_feed", "feed") or file name.

    Raises:
        CourseError: there is none; the message lists those there are.
    """
    among = chapters() if among is None else among
    name = Path(wanted).name.removesuffix(".ipynb")
    for path in among:
        if (name and name.zfill(2) == path.stem[:2]) or name in (path.stem, path.stem[3:]):
            return path
    there = ", ".join(path.stem for path in among)
    raise CourseError(f"no chapter {wanted!r}; choose a number or name of: {there}")


def parameters(path: Path) -> dict[str, Any]:
    """Names and defaults of a notebook's parameters: the assignments in its cell tagged ``parameters``.

    A default that is no plain value (a call, a sum) is given as ``...``.
    """
    known: dict[str, Any] = {}
    for cell in exercises.read(path)["cells"]:
        if "parameters" not in cell["metadata"].get("tags", ()):
            continue
        for statement in ast.parse("".join(cell["source"])).body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name):
                    known[target.id] = _plain(statement.value)
    return known


def checked(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given parameters, in the type of their defaults.

    Text becomes a number, list or truth value where it reads as one, unless the default is text.

    Raises:
        RecipeError: the notebook has no parameter of that name.
    """
    known = parameters(path)
    for name in given:
        if name not in known:
            raise RecipeError(f"{path.stem} has no parameter {name!r}; it has: {', '.join(known) or 'none'}")
    return {name: _typed(value, known[name]) for name, value in given.items()}


def run(
    wanted: Iterable[str] = (),
    preset: str = "auto",
    jobs: int = 1,
    parameters: Mapping[str, Any] | None = None,
    out: Path | None = None,
    timeout_s: float = 1800.0,
) -> int:
    """Run chapters and write what came of it; see the module's first lines.

    Args:
        wanted: chapters by number or name; none: all.
        preset: sizes; also the kernels' ``DLTUTORIAL_PRESET``.
        jobs: notebooks at a time.
        parameters: of the notebooks, as in their cell tagged ``parameters``.
        out: folder for the results; None: ``runs/<date and time>``.
        timeout_s: for each cell.

    Returns:
        0, 1 if a chapter failed, 130 if interrupted.

    Raises:
        CourseError: unknown chapter or parameter, a folder that cannot be used, a login node; nothing has run then.
    """
    there = chapters()
    selected = list(dict.fromkeys(find(one, there) for one in wanted)) or there
    chosen = config.preset(preset).name
    values = {path: checked(path, parameters or {}) for path in selected}
    if jobs < 1 or timeout_s <= 0:
        raise CourseError(f"--jobs {jobs}, --timeout {timeout_s:g}: both must be positive")
    node.refuse_on_login("a whole chapter", "run it in a job: sbatch -N 1 --wrap '.venv/bin/dltutorial run 01'")
    return course_run.go(course_run.Plan(values, chosen, jobs, new_folder(out), timeout_s))


def new_folder(out: Path | None) -> Path:
    """An empty folder for a run's results, made now.

    Raises:
        CourseError: it cannot be made, or holds something already.
    """
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    target = Path(out).absolute() if out else paths.runs_dir().absolute() / stamp
    if not out:
        tries = (target.with_name(f"{stamp}-{n}") for n in range(2, 100))
        target = target if not target.exists() else next(path for path in tries if not path.exists())
    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise CourseError(f"{target} is not empty; choose another folder for --out, or remove it")
        (target / "work").mkdir()
    except OSError as error:
        raise CourseError(f"cannot write to {target}: {error.strerror}; choose another folder with --out") from error
    return target


def _plain(node: ast.expr | None) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ...


def _typed(value: Any, default: Any) -> Any:
    if not isinstance(value, str) or isinstance(default, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
