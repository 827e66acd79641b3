"""All that lies in a class's folder, read with distrust: learners, and what could not be read and why.

In: a folder in which many may write. Out: :class:`Learner` and :class:`Problem`. Links, pipes and devices are not
opened for reading, large files not read, names not believed; nothing found there stops the page.
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from dltutorial.course.classroom import lines
from dltutorial.course.classroom.lines import BadLine, Event
from dltutorial.errors import CourseError
from dltutorial.record import sharing

MOST_FILES = 2000
MOST_LINES = 5_000  # of one file; a day of work has a hundred or two
_MOST_TOTAL_BYTES = 256 * 2**20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SNIPPET = 60


@dataclass(frozen=True)
class Learner:
    """A pseudonym and what happened under it, in order of time."""

    name: str
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Problem:
    """What could not be read or believed: which file, why, how many of its lines (0: none of them is read; None: all
    are, but beware), and how the first of them begins."""

    file: str
    why: str
    lines: int | None = 0
    begins: str = ""


def read(folder: Path, now_s: float) -> tuple[list[Learner], list[Problem]]:
    """Everybody in the folder, by name, and everything that could not be read.

    Raises:
        CourseError: there is no such folder, or it cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted(entry.name for entry in entries)
    except OSError as error:
        advice = "only its owner may list it" if isinstance(error, PermissionError) else "name the class's folder"
        raise CourseError(f"cannot read the folder {folder}: {error.strerror}; {advice}") from error
    learners, problems, budget = [], [], _MOST_TOTAL_BYTES
    seen: dict[str, str] = {}
    for name in found[:MOST_FILES]:
        try:
            data = _content(Path(folder), name, budget)
        except BadLine as why:
            problems.append(Problem(_shown(name), str(why)))
            continue
        budget -= len(data)
        pseudonym = name.removesuffix(".jsonl")
        events, bad = _events(data, now_s)
        learners.append(Learner(pseudonym, tuple(sorted(events, key=lambda event: event.at_s))))
        problems += [Problem(name, bad[0][0], len(bad), bad[0][1])] if bad else []
        if twin := seen.get(pseudonym.lower()):
            problems.append(Problem(name, f"nearly the name of {twin}: one learner twice, or somebody pretends", None))
        seen[pseudonym.lower()] = pseudonym
    if len(found) > MOST_FILES:
        problems.append(Problem(f"{len(found) - MOST_FILES:,} more files", f"only the first {MOST_FILES:,} are read"))
    return learners, problems


def _content(folder: Path, name: str, budget: int) -> bytes:
    """The bytes of a file that is one, is small, and is in this folder.

    Raises:
        BadLine: it is not; the message says why.
    """
    if not name.endswith(".jsonl") or not _NAME.fullmatch(name):
        raise BadLine("not the name of a file of records")
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        if not stat.S_ISREG(os.lstat(folder / name).st_mode):  # opening some devices does something
            raise BadLine("not an ordinary file (a link, a folder, a pipe, a device)")
        handle = os.open(folder / name, flags)
    except (OSError, ValueError) as error:
        raise error if isinstance(error, BadLine) else BadLine(_reason(error)) from None
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
            raise BadLine("not a file of its own (another name of a file elsewhere)")
        if about.st_size > sharing.MOST_BYTES:
            raise BadLine(f"{about.st_size / 2**20:,.1f} MiB; at most {sharing.MOST_BYTES >> 20} MiB are read")
        if about.st_size > budget:
            raise BadLine(f"the files before it fill the {_MOST_TOTAL_BYTES >> 20} MiB that are read in all")
        try:
            return file.read(sharing.MOST_BYTES + 1)
        except OSError as error:
            raise BadLine(_reason(error)) from None


def _events(data: bytes, now_s: float) -> tuple[list[Event], list[tuple[str, str]]]:
    """Events, and (why, beginning) of each line that is none; a last line still being written is passed over."""
    *whole, last = data.split(b"\n")
    events: list[Event] = []
    bad: list[tuple[str, str]] = []
    if len(whole) > MOST_LINES:
        bad.append((f"{len(whole):,} lines; only the newest {MOST_LINES:,} are read", ""))
        whole = whole[-MOST_LINES:]
    for line in whole:
        if not line:
            continue
        try:
            events.append(lines.read(line, now_s))
        except BadLine as why:
            bad.append((str(why), _shown(line[:_SNIPPET].decode("utf-8", "replace"))))
    if len(last) > lines.LONGEST_LINE:
        bad.append((f"a last line of {len(last):,} bytes", _shown(last[:_SNIPPET].decode("utf-8", "replace"))))
    return events, bad


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _shown(name: str) -> str:
    """A file's name, whatever bytes it is made of, in printable characters."""
    text = lines.printable(name.encode("utf-8", "replace").decode("utf-8"))
    return text if len(text) <= _SNIPPET else text[: _SNIPPET - 1] + "…"
