"""Limit the time of a learner's function, and describe in a few words what the function returned or raised.

The time limit uses the alarm signal of Unix (https://docs.python.org/3/library/signal.html#signal.setitimer).
"""

import contextlib
import reprlib
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from dltutorial import paths

_SHORT = reprlib.Repr()
_SHORT.maxstring = 200
_SHORT.maxlong = 200


class TooLate(BaseException):
    """The time limit has passed. It is not an ``Exception``, so a learner's ``except Exception`` does not catch it."""


@contextlib.contextmanager
def deadline(limit_s: float) -> Iterator[None]:
    """Limit the time of the block.

    A bare ``except`` in the block can catch :class:`TooLate`. In this case the block runs until the learner stops it.

    Args:
        limit_s: The limit in seconds.

    Raises:
        TooLate: The block was still running after ``limit_s`` seconds.
    """

    def raise_too_late(number: int, frame: FrameType | None) -> None:
        raise TooLate

    previous_handler = signal.signal(signal.SIGALRM, raise_too_late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)


@contextlib.contextmanager
def exit_raises() -> Iterator[None]:
    """Let ``exit()`` in a notebook raise ``SystemExit``, as it does in a program. IPython would end the kernel."""
    from IPython import get_ipython

    shell = get_ipython()
    if not hasattr(shell, "ask_exit"):  # this is no notebook
        yield
        return
    ask_exit = shell.ask_exit
    shell.ask_exit = sys.exit
    try:
        yield
    finally:
        shell.ask_exit = ask_exit


def last_words(error: BaseException) -> str:
    """Return the last line of an error message, such as ``ZeroDivisionError: division by zero``."""
    summary = traceback.TracebackException(type(error), error, None)
    summary.__notes__ = None  # a check added the notes, so they are not part of the error's own message
    text = "".join(summary.format_exception_only()).strip()
    return text.split("\n")[-1][:300]


def learners_frames(error: BaseException, case: Callable) -> str:
    """Return the last five lines of a traceback that are in the learner's own code, or an empty string.

    Stack frames of the test case, the checks, this package, Python and installed packages are left out.

    Args:
        error: The exception.
        case: The test case that called the learner's function.

    Returns:
        One line per frame, with the line number, the name of the function and the source.
    """
    learners = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        is_check = Path(file).parent.parts[-2:] == ("solutions", "checks")
        is_case = frame.f_code is getattr(case, "__code__", None)
        if paths.is_learners(file) and not (is_check or is_case):
            learners.append((frame, line))
    stack = traceback.StackSummary.extract(learners)
    lines = [f"line {frame.lineno}, in {frame.name}:  {frame.line or ''}".rstrip(": ") for frame in stack]
    return "\n".join(lines[-5:])


def brief(value: Any) -> str:
    """Return ``repr(value)`` cut to a readable length. An array or tensor is shown with its shape and dtype."""
    try:
        if isinstance(value, BaseException):
            return last_words(value)
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            numbers = _SHORT.repr(value.reshape(-1)[:6].tolist()) if value.size else "[]"
            return f"{type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}: {numbers}"
        return _SHORT.repr(value)
    except Exception:  # a learner's own class may not have a repr that works
        return f"an object of type {type(value).__name__}"
