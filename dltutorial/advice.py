"""Errors of others, in plain words: what to do about what torch, Python, CUDA, NCCL or git says.

In: an exception, or its kind and words. Out: one sentence. An error of the course says by itself what to do, so it
gets none, except where it passes on a rank's. ``page()`` is the whole table as TROUBLESHOOTING.md shows it.
"""

import re

from dltutorial import errors
from dltutorial.advice_table import TABLE, Advice

_OF_A_RANK = re.compile(r"rank \d+ of \d+ failed: ([^\n]*)")
# These say what to do themselves. Those that are not in errors.py are made of what ranks and jobs say.
_COURSE = frozenset(
    {name for name, kind in vars(errors).items() if isinstance(kind, type)} | {"RankFailed", "RanksHang", "JobFailed"}
)


def of(error: BaseException) -> Advice | None:
    """What to do about an exception; None where nobody foresaw it, or it says so itself."""
    if isinstance(error, errors.CourseError):
        rank_says = (getattr(error, "kind", None), getattr(error, "message", None))
        return None if None in rank_says else _search(*rank_says)
    return _search(type(error).__name__, str(error))


def of_words(kind: str, message: str) -> Advice | None:
    """The same for an exception that is only known by the name of its class and its words."""
    if kind == "RankFailed" and (match := _OF_A_RANK.match(message)):
        kind, _, message = match[1].partition(": ")
    return _search(kind, message)


def page() -> str:
    """The table as a page in Markdown."""
    lines = [
        "# Troubleshooting",
        "",
        "What you may see, and what to do. In a course notebook the sentence also appears below the traceback; the",
        "`dltutorial` commands end with it. Made by `python -m dltutorial.advice > TROUBLESHOOTING.md`.",
    ]
    for group in dict.fromkeys(advice.group for advice in TABLE):
        lines += ["", f"## {group}", "| you see | what to do |", "|---|---|"]
        lines += [f"| `{advice.seen}` | {_cell(advice.do)} |" for advice in TABLE if advice.group == group]
    return "\n".join(lines) + "\n"


def _search(kind: str, message: str) -> Advice | None:
    if kind in _COURSE:
        return None
    words = f"{kind}: {message}" if kind else message
    return next((advice for advice in TABLE if re.search(advice.pattern, words)), None)


def _cell(text: str) -> str:
    """Text that stays as it is in a cell of a Markdown table."""
    return re.sub(r"([|*_<>])", r"\\\1", text)


if __name__ == "__main__":
    print(page(), end="")
