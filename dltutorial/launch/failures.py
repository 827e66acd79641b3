"""The messages that a learner reads when ranks fail or hang: which rank, which error, which line.

Input: exceptions, where they were raised; exit codes; and stack traces, as ``faulthandler`` prints them.
Output: one exception in the caller. It shows a line of a notebook cell with the number of the cell.

Source: https://docs.python.org/3/library/faulthandler.html
"""

import linecache
import os
import re
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from dltutorial import paths
from dltutorial.errors import CourseError

STACK_TRACE_SIGNAL = signal.SIGUSR2  # after this signal, a rank writes its stack trace
_LAUNCHER = str(Path(__file__).parent) + os.sep
_STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_TRACEBACK_LINE = re.compile(r'(?<=^  )File "(.*)", line (\d+)', re.MULTILINE)
_WRAPPERS = ("wrapper", "_wrapped_call_impl", "_call_impl")  # functions of torch that only call another function
# The error of a rank that has lost the connection to another rank. It is a secondary failure.
_LOST_CONNECTION = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|broken pipe|socket (closed|error|timeout)"
    r"|remote process (has )?(exited|terminated)|ncclRemoteError|failed to recv",
    re.IGNORECASE,
)


class RankFailed(CourseError):
    """A rank raised an exception, or its process died. The text has one line, and then the traceback of the rank.

    Attributes:
        rank: The rank that failed first.
        kind: The name of its exception's class, or of the signal, or "exit".
        message: The message of the exception.
    """

    def __init__(self, text: str, rank: int, kind: str, message: str) -> None:
        super().__init__(text)
        self.rank = rank
        self.kind = kind
        self.message = message


class RanksHang(CourseError):
    """The deadline has passed. The text says where each rank waits.

    Attributes:
        waiting: The ranks that had not returned.
    """

    def __init__(self, text: str, waiting: Sequence[int]) -> None:
        super().__init__(text)
        self.waiting = tuple(waiting)


@dataclass(frozen=True)
class Failure:
    """How one rank ended without a value.

    Attributes:
        kind: The name of the exception's class, or of the signal, or "exit".
        message: The message of the exception.
        headline: One line for the learner.
        traceback: The traceback without the frames of the launcher. It is empty if the rank died.
    """

    kind: str
    message: str
    headline: str
    traceback: str = ""

    @property
    def is_secondary(self) -> bool:
        """Whether this rank has probably failed only because it has lost the connection to another rank."""
        return bool(_LOST_CONNECTION.search(self.message))


def pickled(value: Any, what: str) -> bytes:
    """Pickle a value that is sent to a rank or comes from a rank.

    Args:
        value: The value. It may contain functions and classes of notebook cells.
        what: The beginning of the error message.

    Raises:
        CourseError: The value cannot be pickled.
    """
    try:
        return cloudpickle.dumps(value)
    except Exception as error:  # each class may raise its own exception
        reason = str(error).partition("\n")[0] or type(error).__name__
        text = f"{what} that cannot be sent ({reason}); use numbers, arrays, tensors, plain objects"
        raise CourseError(text) from None


def from_error(error: BaseException) -> Failure:
    """Describe an exception, in the rank that raised it."""
    kind = type(error).__name__
    message = str(error)
    first_line = message.partition("\n")[0]
    report = traceback.TracebackException.from_exception(error)
    report.stack[:] = [frame for frame in report.stack if not frame.filename.startswith(_LAUNCHER)]
    for frame in report.stack:
        frame.colno = None  # no line of "^^^^" below the source
    text = ""
    if report.stack:
        text = "".join(report.format()).rstrip()
    return Failure(kind, message, f"{kind}: {first_line}", text)


def from_exit(code: int | None) -> Failure:
    """Describe a process that ended without a message.

    Args:
        code: The exit code of the process. After a signal, it is the number of the signal with a minus sign. It is None
            if the process has closed its pipe and still does not end.
    """
    if code is None:
        text = "its process closed its pipe before the function returned, and then did not end"
        return Failure("exit", text, text)
    if code >= 0:
        text = f"its process ended with exit code {code} before the function returned"
        return Failure("exit", text, text)
    name = signal.Signals(-code).name
    text = f"killed by {name}"
    if name == "SIGKILL":
        text += "; the machine may have run out of memory"
    return Failure(name, text, text)


def rank_failed(failed: Mapping[int, Failure], world_size: int) -> RankFailed:
    """Return the exception about the first primary failure.

    Args:
        failed: The failures by rank, in the order in which they arrived.
        world_size: The number of ranks.
    """
    # ``min`` takes the first primary failure. If all failures are secondary, it takes the first one.
    rank, first = min(failed.items(), key=lambda item: item[1].is_secondary)
    text = f"rank {rank} of {world_size} failed: {first.headline}"
    if first.traceback:
        report = first.traceback.replace("Traceback (most", f"Traceback of rank {rank} (most")
        text += "\n\n" + _TRACEBACK_LINE.sub(lambda match: _location(match[1], int(match[2])), report)
    return RankFailed(text, rank, first.kind, first.message)


def ranks_hang(timeout_s: float, stack_traces: Mapping[int, str], world_size: int) -> RanksHang:
    """Return the exception after a deadline.

    Args:
        timeout_s: The deadline, in seconds after the start of the last rank.
        stack_traces: The stack trace of each rank that has not returned.
        world_size: The number of ranks.
    """
    waiting = sorted(stack_traces)
    lines = []
    for rank in range(world_size):
        what = "had returned"
        if rank in stack_traces:
            what = _place(stack_traces[rank])
        lines.append(f"rank {rank} {what}")
    numbers = ", ".join(str(rank) for rank in waiting)
    noun = "ranks"
    if len(waiting) == 1:
        noun = "rank"
    text = (
        f"{noun} {numbers} of {world_size} did not end within {timeout_s:g} s; every rank must call "
        "the same collectives in the same order; if the work is only long, raise timeout_s\n\n" + "\n".join(lines)
    )
    return RanksHang(text, waiting)


def _place(stack_trace: str) -> str:
    """Describe the innermost line of the learner's code in a stack trace, and the function that is called there.

    The stack trace starts with the newest call. It is empty if the rank died before it could write it.
    """
    called = ""  # the function of torch, or of another package, that the learner's code called
    for file, line, function in _STACK_LINE.findall(stack_trace):
        if paths.is_learners(file):
            place = f"{_location(file, int(line))}, in {function}"
            source = linecache.getline(file, int(line)).strip()
            if source:
                place += f": {source}"
            if called:
                return f"waits in {called}, called at {place}"
            return f"is at {place}"
        if function not in _WRAPPERS:
            called = function
    return "is at no line of your code"


def _location(file: str, line: int) -> str:
    """Return a file and a line. A notebook cell is shown with its number."""
    shell = None
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
    if shell is not None:
        cell = shell.compile.format_code_name(file)  # such as ("Cell", "In[3]"), or None for a file
        if cell is not None:
            return f"{cell[0]} {cell[1]}, line {line}"
    return f'File "{file}", line {line}'
