"""What to do about an error of torch, Python, CUDA, NCCL, HDF5 or git, in plain words.

The input is an exception, or the name of its class and its message. The output is one sentence of ``advice.toml``. For
a command the output is its exit status and its last line. An error of the course says itself what to do. Therefore it
gets no advice, except if it passes on the error of a rank. TROUBLESHOOTING.md shows the whole table.
"""

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from dltutorial import errors

_OF_A_RANK = re.compile(r"rank \d+ of \d+ failed: ([^\n]*)")
# These say what to do themselves. Those that are not in errors.py are made of what ranks and jobs say.
_COURSE = frozenset(
    {name for name, kind in vars(errors).items() if isinstance(kind, type)} | {"RankFailed", "RanksHang", "JobFailed"}
)


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
    """All advice, in the order in which it is searched."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(Advice(**entry) for entry in tomllib.loads(text)["advice"])


def of(error: BaseException) -> Advice | None:
    """What to do about an exception; None where nobody foresaw it, or it says so itself."""
    if isinstance(error, errors.CourseError):
        rank_says = (getattr(error, "kind", None), getattr(error, "message", None))
        return None if None in rank_says else _search(*map(str, rank_says))
    return _search(type(error).__name__, str(error))


def of_words(kind: str, message: str) -> Advice | None:
    """The same for an exception that is only known by the name of its class and its words."""
    if kind == "RankFailed" and (match := _OF_A_RANK.match(message)):
        kind, _, message = match[1].partition(": ")
    return _search(kind, message)


def exit_status(error: BaseException) -> tuple[int, str] | None:
    """How a command ends with this error.

    An error that is known, but likely to be a mistake in somebody's code, gets its advice as a note: the traceback,
    which says where the mistake is, ends with it.

    Returns:
        The exit status and the line to print, or None if the traceback is to be shown. Status 2 means that the line
        says what to do, and 130 that it was Ctrl-C.
    """
    if isinstance(error, KeyboardInterrupt):
        return 130, str(error) or "interrupted"
    found = of(error)
    if isinstance(error, errors.CourseError):
        return 2, f"{error}\n\n{found.do}" if found else str(error)
    if found is None:
        return None
    if found.outside or isinstance(error, OSError):
        first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return 2, f"{first_line.rstrip('.')}. {found.do}"
    error.add_note(found.do)
    return None


def _search(kind: str, message: str) -> Advice | None:
    if kind in _COURSE:
        return None
    words = f"{kind}: {message}" if kind else message
    return next((advice for advice in table() if re.search(advice.pattern, words)), None)
