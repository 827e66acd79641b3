"""Errors of others, in plain words: what to do about what torch, Python, CUDA, NCCL or git says.

In: an exception, or its kind and words. Out: one sentence of ``advice.toml``; for a command, its exit status and last
line. An error of the course says by itself what to do, so it gets none, except where it passes on a rank's.
TROUBLESHOOTING.md shows the whole table.
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
    """What to do about one kind of error; ``advice.toml`` begins with what each means."""

    name: str
    group: str
    pattern: str
    seen: str
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
    """(exit status, what to print) of a command that ends with this error; None where nobody foresaw it.

    Status 2: it can be mended, and the line says how; 75: a signal ended training, with a checkpoint; 130: Ctrl-C;
    141: nobody reads the output any more. An error that is known, but likely to be a mistake in somebody's code, gets
    its advice as a note: the traceback, which says where, ends with it.
    """
    found = of(error)
    if isinstance(error, errors.CourseError):
        status = error.exit_status if isinstance(error, errors.Interrupted) else 2
        return status, f"{error}\n\n{found.do}" if found else str(error)
    if isinstance(error, KeyboardInterrupt):
        return 130, str(error) or "interrupted; what was finished is kept"
    if isinstance(error, BrokenPipeError):
        return 141, ""
    if found and (found.outside or isinstance(error, OSError)):
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return 2, f"{said.rstrip('.')}. {found.do}"
    if isinstance(error, OSError):  # a place that nobody thought of: a full disk, a folder where a file should be
        return 2, f"{error}; make sure that you may write there and that the disk has room"
    if found:
        error.add_note(found.do)
    return None


def _search(kind: str, message: str) -> Advice | None:
    if kind in _COURSE:
        return None
    words = f"{kind}: {message}" if kind else message
    return next((advice for advice in table() if re.search(advice.pattern, words)), None)
