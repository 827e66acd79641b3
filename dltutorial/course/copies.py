"""A learner's copy of an exercise: what was done to it, and how it is kept.

In: a notebook file. Out: a :class:`Copy`: edited, only run, or as it came. An exercise carries the version it was
made as in its metadata, a hash of the kinds and sources of its cells. So a file tells by itself whether a cell was
changed since, whatever brought it here: git, nbgitpuller, an archive. Outputs do not count: running is not editing.
"""

import contextlib
import datetime
import hashlib
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.errors import CourseError

KEPT = "kept"
_KEY = "version"


@dataclass(frozen=True)
class Copy:
    """What a file is: ``state`` is "missing", "as it came", "run", "edited" or "unreadable".

    ``version``: of the exercise it was made from; ``cells``: what the version of its cells as they are now would be.
    Both are empty where the file does not tell.
    """

    state: str
    version: str = ""
    cells: str = ""

    @property
    def is_pristine(self) -> bool:
        """Whether it holds no work that could be lost."""
        return self.state in ("missing", "as it came", "run")


def mark(notebook: dict[str, Any]) -> None:
    """Write the version of a notebook into its metadata."""
    about = dict(notebook["metadata"].get("dltutorial", {}))
    notebook["metadata"]["dltutorial"] = about | {_KEY: _digest(notebook)}


def version(text: str) -> str:
    """The version of a marked notebook's text; empty where it tells none."""
    return look_at(text).version


def look(file: Path) -> Copy:
    """What ``file`` is; never raises for what is in it."""
    try:
        return look_at(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Copy("missing")
    except (OSError, UnicodeDecodeError):
        return Copy("unreadable")


def look_at(text: str) -> Copy:
    """What a notebook with this text is."""
    try:
        notebook = json.loads(text)
        now, about = _digest(notebook), notebook["metadata"].get("dltutorial", {})
        version = str(about.get(_KEY, ""))
        ran = any(cell.get("outputs") or cell.get("execution_count") for cell in notebook["cells"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Copy("unreadable")
    return Copy("edited" if now != version else "run" if ran else "as it came", version, now)


def beside(file: Path) -> Path:
    """Where the new version of ``file`` is put if ``file`` stays: ``NN_name.new.ipynb``."""
    return file.with_name(f"{file.stem}.new{file.suffix}")


def is_new_version(file: Path) -> bool:
    """Whether ``file`` is one that was put beside another."""
    return file.stem.endswith(".new")


def keep(file: Path) -> Path:
    """Copy ``file``, as it is, into the folder ``kept`` beside it, under a name with date and time that no file has.

    Raises:
        CourseError: it cannot be copied.
    """
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = file.parent / KEPT
    try:
        data = file.read_bytes()
        folder.mkdir(exist_ok=True)
        for number in itertools.count(1):
            again = f"-{number}" if number > 1 else ""
            kept = folder / f"{file.stem}.{stamp}{again}{file.suffix}"
            with contextlib.suppress(FileExistsError):
                _write_new(kept, data)
                return kept
    except OSError as error:
        why = f"{error.strerror}; nothing has changed; make room, or copy the file yourself"
        raise CourseError(f"cannot keep a copy of {file} in {folder}: {why}") from error
    raise AssertionError("count never ends")


def replace(file: Path, text: str) -> Path:
    """Write ``text`` to ``file``; returns where the old file is kept.

    Raises:
        CourseError: the old one cannot be kept, or the new one not written; then ``file`` is as it was.
    """
    kept = keep(file)
    paths.write_text(file, text)
    return kept


def _write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet, through to the disk.

    Raises:
        FileExistsError: it is there.
        OSError: it cannot be written; then nothing is left of it.
    """
    with open(path, "xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink()
            raise


def _digest(notebook: dict[str, Any]) -> str:
    """A hash of the kinds and sources of the cells."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]
