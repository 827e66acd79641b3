"""Running a learner's function without letting it break the notebook: a deadline, a short traceback, a safe repr.

In: any callable. Out: strings that are short enough to read, whatever the function did.
"""

import contextlib
import faulthandler
import reprlib
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_PACKAGE = str(Path(__file__).resolve().parents[1])
_INSTALLED = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib"))
_GIVE_UP_S = 60  # beyond a deadline
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = 200


class TooLate(BaseException):
    """The deadline passed. No ``Exception``, so that a learner's ``except Exception`` does not swallow it."""


@contextlib.contextmanager
def deadline(limit_s: float) -> Iterator[None]:
    """Raise :class:`TooLate` inside the block after ``limit_s``, and again twice a second until the block ends.

    A bare ``except`` swallows it. So every second time it comes at one of the next lines instead, each time a later
    one, until that line is outside of the ``try``. Python raises it between two steps of its own: one call into C, such
    as ``sum(range(10**11))``, nothing interrupts. Where such a call lasts a minute more, the process ends, and
    standard error says in which line it was.

    Works in the main thread of a system with SIGALRM; elsewhere there is no deadline. A timer that was already
    running (a test's own) goes on afterwards.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    n_late, tracer = 0, sys.gettrace()

    def late(number: int, frame: FrameType | None) -> None:
        nonlocal n_late
        n_late, lines_left = n_late + 1, n_late

        def trace(where: FrameType, event: str, arg: object) -> Callable | None:
            nonlocal lines_left
            if where.f_code.co_filename.startswith((_PACKAGE, *_INSTALLED)):
                return None  # not in what ends this block
            lines_left -= event == "line"
            if lines_left <= 0:
                raise TooLate
            return trace

        if n_late % 2:
            raise TooLate
        while frame and not frame.f_code.co_filename.startswith(_PACKAGE):
            frame.f_trace = trace
            frame = frame.f_back
        sys.settrace(trace)

    handler = signal.signal(signal.SIGALRM, late)
    before_s = signal.setitimer(signal.ITIMER_REAL, limit_s, 0.5)
    if sys.__stderr__:
        faulthandler.dump_traceback_later(limit_s + _GIVE_UP_S, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.settrace(tracer)
        signal.setitimer(signal.ITIMER_REAL, *before_s)
        signal.signal(signal.SIGALRM, handler)


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Torch with its own dtype, device and gradients, whatever a cell or an answer sets; afterwards as it was."""
    import torch

    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None if device.type == "cpu" else device)


def last_words(error: BaseException) -> str:
    """The error's last line, such as ``ZeroDivisionError: division by zero``, even where ``str(error)`` fails."""
    told = traceback.TracebackException(type(error), error, None)
    told.__notes__ = None  # what was added to it are not its own words
    line = "".join(told.format_exception_only()).strip().split("\n")[-1][:300]
    return line.encode(errors="replace").decode()


def learners_frames(error: BaseException, case: Callable) -> str:
    """The lines of the learner's own code that led to ``error``; empty where there is none.

    Frames of the case, the checks, this package, Python and installed packages are left out: the learner wrote none
    of them.
    """
    not_theirs = (_PACKAGE, *_INSTALLED, "<frozen")
    stack = traceback.StackSummary.extract(
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code is not getattr(case, "__code__", None)
        and not frame.f_code.co_filename.startswith(not_theirs)
        and Path(frame.f_code.co_filename).parent.parts[-2:] != ("solutions", "checks")
    )
    lines = [f"line {frame.lineno}, in {frame.name}:  {frame.line or ''}".rstrip(": ") for frame in stack]
    return "\n".join(lines[-5:])


def brief(value: Any) -> str:
    """What ``value`` is, short: arrays and tensors with shape and dtype, long strings cut; never raises."""
    try:
        if isinstance(value, BaseException):
            return last_words(value)
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            numbers = _SHORT.repr(value.reshape(-1)[:6].tolist()) if value.size else "[]"
            return f"{type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}: {numbers}"
        return _SHORT.repr(value)
    except (Exception, SystemExit, GeneratorExit):
        return f"an object of type {type(value).__name__}"
