"""Exercise notebooks, made from solution notebooks; and a learner's copies of them, which are never overwritten.

In: ``solutions/NN_*.ipynb``, whose code cells hold blocks between ``### BEGIN SOLUTION`` and ``### END SOLUTION``
(the markers of nbgrader, nbgrader.readthedocs.io). Out: ``exercises/NN_*.ipynb``, the same notebooks with a blank
for each block and no outputs. Each carries its version, a hash of what a person can change in it: so a copy tells by
itself whether it was changed since, whatever brought it here. A newer version of an edited copy is put beside it, as
``NN_*.new.ipynb``.
"""

import contextlib
import datetime
import hashlib
import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.course import notebooks
from dltutorial.errors import CourseError

_BLOCK = re.compile(
    r"^(?P<indent>[ \t]*)### BEGIN SOLUTION\s*\n(?P<inside>.*?)^[ \t]*### END SOLUTION[ \t]*$", re.MULTILINE | re.DOTALL
)
_MENTION = re.compile(r"(BEGIN|END) SOLUTION")
_KNOWN = re.compile(r"cells|metadata|nbformat(_minor)?|cell_type|source|outputs|execution_count|id|attachments")
# Metadata that programs write unasked when a notebook is opened, run or looked at; all other is a person's.
_OF_PROGRAMS = {"kernelspec", "language_info", "widgets", "execution", "trusted", "collapsed", "scrolled", "jupyter"}
_HINT = re.compile(r"^\s*# HINT:\s*(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Copy:
    """What a file is: ``state`` is "missing", "as it came", "run", "edited" or "unreadable".

    ``version``: of the exercise it was made from; ``now``: what its version as it is now would be. Both are empty where
    the file does not tell. ``text``: all that it holds.
    """

    state: str
    version: str = ""
    now: str = ""
    text: str | None = None

    @property
    def is_pristine(self) -> bool:
        """Whether it holds nothing of the learner's that could be lost, no results either."""
        return self.state in ("missing", "as it came")


def build(root: Path | None = None, check: bool = False, force: bool = False) -> int:
    """Write ``root/exercises`` from ``root/solutions``; with ``check`` only say what is out of step.

    Args:
        root: the folder that holds ``solutions/`` and ``exercises/``; None: found from here upwards.
        check: write nothing; list the notebooks that a build would change.
        force: replace copies that were edited, too; each is kept under another name.

    Returns:
        1 when ``check`` found a difference, else 0. An exercise whose solution is gone is git's to remove.

    Raises:
        CourseError: no solutions, a notebook that cannot be read, or markers that do not pair.
    """
    root = paths.course_folder("solutions") if root is None else Path(root)
    wrong = _out_of_step(root)
    if check:
        for file in wrong:
            told = f"exercises/{file.name} is out of step with solutions/"
            print(f"{told}; run: dltutorial exercises build", file=sys.stderr)
        return int(bool(wrong))
    for file, text in wrong.items():
        _write(file, text, force)
    return 0


def _out_of_step(root: Path) -> dict[Path, str]:
    """The exercises whose files are not what the solutions make, and what they make."""
    made = {root / "exercises" / path.name: blank_notebook(path) for path in notebooks.chapters(root / "solutions")}
    return {file: text for file, text in made.items() if look(file).text != text}


def _write(file: Path, text: str, force: bool) -> None:
    """Bring one exercise up to date; a copy with work in it stays, and the newer version is put beside it."""
    copy, newest, new = look(file), look_at(text).version, look(beside(file))
    is_old = copy.version != newest
    if copy.is_pristine:
        paths.write_text(file, text)
        print(f"wrote exercises/{file.name}")
    elif force or (is_old and (copy.state == "run" or copy.now == newest)):
        kept = keep(file)
        paths.write_text(file, text)
        print(f"exercises/{file.name}: new; yours is kept as exercises/kept/{kept.name}")
    elif is_old and new.version != newest:
        if not new.is_pristine:  # somebody went on working in the new one
            keep(beside(file))
        paths.write_text(beside(file), text)
        told = "is not a whole notebook" if copy.state == "unreadable" else "holds your work"
        print(f"exercises/{file.name} {told} and stays; its new version is exercises/{beside(file).name}")


def blank_notebook(path: Path) -> str:
    """The text of the exercise notebook that belongs to the solution notebook ``path``.

    CourseError: not a notebook, or markers that do not pair, naming notebook and cell.
    """
    notebook = notebooks.read(path)
    notebook["metadata"].pop("widgets", None)
    for part in (notebook, *notebook["cells"]):  # what no program writes would count as a learner's work
        for key in [key for key in part if not _KNOWN.fullmatch(key)]:
            del part[key]
    for number, cell in enumerate(notebook["cells"], 1):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
            cell["metadata"].pop("execution", None)
            source = blank(source)
        else:  # only what was run has outputs
            cell.pop("outputs", None)
            cell.pop("execution_count", None)
        if _MENTION.search(source):
            told = "each ### BEGIN SOLUTION of a code cell needs its ### END SOLUTION, both on lines of their own"
            raise CourseError(f"{path.name}, cell {number}: {told}")
        cell["source"] = source.splitlines(keepends=True)
    notebook["metadata"]["dltutorial"] = notebook["metadata"].get("dltutorial", {}) | {"version": _digest(notebook)}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def blank(source: str) -> str:
    """``source`` with a blank for every solution block; markers that do not pair stay."""

    def hide(block: re.Match) -> str:
        if _MENTION.search(block["inside"]):
            return block[0]
        hints = [f"# Hint: {hint}" for hint in _HINT.findall(block["inside"])]
        return "\n".join(block["indent"] + line for line in ["# YOUR CODE HERE", *hints, "raise NotImplementedError"])

    return _BLOCK.sub(hide, source)


def look(file: Path) -> Copy:
    """What ``file`` is; never raises for what is in it."""
    if not file.exists():
        return Copy("missing")
    try:
        return look_at(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        return Copy("unreadable")


def look_at(text: str) -> Copy:
    """What a notebook with this text is. Outputs do not count: running is not editing."""
    try:
        notebook = json.loads(text)
        now, version = _digest(notebook), str(notebook["metadata"].get("dltutorial", {}).get("version", ""))
        ran = any(cell.get("outputs") or cell.get("execution_count") for cell in notebook["cells"])
        ran = ran or bool(notebook["metadata"].get("widgets"))  # what a learner has set there is a result, too
        ran = ran or not all(_KNOWN.fullmatch(key) for part in (notebook, *notebook["cells"]) for key in part)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Copy("unreadable", text=text)
    return Copy("edited" if now != version else "run" if ran else "as it came", version, now, text)


def beside(file: Path) -> Path:
    """Where the new version of ``file`` is put if ``file`` stays: ``NN_name.new.ipynb``."""
    return file.with_name(f"{file.stem}.new{file.suffix}")


def keep(file: Path) -> Path:
    """Copy ``file``, as it is, into the folder ``kept`` beside it, under a name with date and time.

    CourseError: it cannot be copied.
    """
    time = f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S.%f}"
    kept = file.parent / "kept" / f"{file.stem}.{time}{file.suffix}"
    try:
        kept.parent.mkdir(exist_ok=True)
        return Path(shutil.copy2(file, kept))
    except OSError as error:
        with contextlib.suppress(OSError):
            kept.unlink()
        why = f"{error.strerror or error}; make room, or move it away yourself; then again"
        raise CourseError(f"cannot keep a copy of {file} in {kept.parent}: {why}") from error


def _digest(notebook: dict[str, Any]) -> str:
    """A hash of what a person can change: kind, source, attachments and metadata of each cell, and the notebook's."""

    def own(metadata: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in metadata.items() if key not in _OF_PROGRAMS}

    cells = [
        (cell["cell_type"], "".join(cell["source"]), cell.get("attachments") or {}, own(cell["metadata"]))
        for cell in notebook["cells"]
    ]
    course = {key: value for key, value in notebook["metadata"].get("dltutorial", {}).items() if key != "version"}
    whole = [cells, own(notebook["metadata"] | {"dltutorial": course})]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
