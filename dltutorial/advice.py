"""Say what to do about an error of torch, Python, CUDA, NCCL, HDF5 or git, in plain words.

The input is an exception, or the name of its class and its message. The output is an entry of ``advice.toml``, which
has one line with the cause and what to do. For a command, the output is its exit status and its last line. An error of
the course says itself what to do. Therefore it gets no advice, unless it passes on the error of a rank.
TROUBLESHOOTING.md shows the whole table.
"""

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from dltutorial import errors

_RANK_FAILED = re.compile(r"rank \d+ of \d+ failed: ([^\n]*)")
# The messages of these errors say what to do.
_COURSE_ERRORS = ("CourseError", "DataError", "RecipeError", "RankFailed", "RanksHang")


@dataclass(frozen=True)
class Advice:
    """What to do about one kind of error. The first lines of ``advice.toml`` explain the attributes."""

    name: str
    group: str
    pattern: str
    example: str
    do: str
    outside: bool = False


@functools.cache
def table() -> tuple[Advice, ...]:
    """Return all advice, in the order in which it is searched."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(Advice(**entry) for entry in tomllib.loads(text)["advice"])


def of(error: BaseException) -> Advice | None:
    """Return the advice for an exception.

    Returns:
        The advice, or None if the table has none, or if the message of the exception itself says what to do.
    """
    if not isinstance(error, errors.CourseError):
        return _search(type(error).__name__, str(error))
    if type(error).__name__ == "RankFailed":
        return _search(error.kind, error.message)  # type: ignore[attr-defined]  # the error of the rank itself
    return None


def of_words(kind: str, message: str) -> Advice | None:
    """Return the advice for an exception of another process.

    Args:
        kind: The name of its class.
        message: Its message.
    """
    rank_error = _RANK_FAILED.match(message)
    if rank_error:
        kind, _, message = rank_error[1].partition(": ")
    return _search(kind, message)


def exit_status(error: BaseException) -> tuple[int, str] | None:
    """Say how a command ends with this error.

    If the cause is probably a mistake in code, the advice becomes a note of the exception. The traceback, which shows
    where the mistake is, then ends with the advice.

    Returns:
        The exit status and the line to print, or None if the traceback is to be shown. Status 2 means that the line
        says what to do, and status 130 means Ctrl-C.
    """
    if isinstance(error, KeyboardInterrupt):
        return 130, str(error) or "interrupted"
    advice = of(error)
    if isinstance(error, errors.CourseError):
        return 2, f"{error}\n\n{advice.do}" if advice else str(error)
    if advice is None:
        return None
    if advice.outside or isinstance(error, OSError):
        first_line = str(error).strip().partition("\n")[0] or type(error).__name__
        return 2, f"{first_line.rstrip('.')}. {advice.do}"
    error.add_note(advice.do)
    return None


def _search(kind: str, message: str) -> Advice | None:
    """Return the first entry whose pattern occurs in the name of a class and its message."""
    if kind in _COURSE_ERRORS:
        return None
    text = f"{kind}: {message}" if kind else message
    for entry in table():
        if re.search(entry.pattern, text):
            return entry
    return None
