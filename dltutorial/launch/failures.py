"""The messages that a learner reads when ranks fail or hang: which rank, which error, which line.

Input: exceptions, where they were raised; exit codes; and stacks, as ``faulthandler`` prints them.
Output: one exception in the caller. It shows a line of a notebook cell with the number of the cell.

Source: https://docs.python.org/3/library/faulthandler.html
"""

import linecache
import os
import re
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dltutorial.errors import CourseError

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_WORKER = str(Path(__file__).with_name("worker.py"))
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_TRACEBACK_LINE = re.compile(r'(?<=^  )File "(.*)", line (\d+)', re.MULTILINE)
_WRAPPERS = ("wrapper", "_wrapped_call_impl", "_call_impl")  # functions of torch that only call another function
# The error of a rank that has lost the connection to another rank. It is an effect, and not the cause.
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
        at_s: The time of the failure by the monotonic clock of the machine.
    """

    kind: str
    message: str
    headline: str
    traceback: str = ""
    at_s: float = field(default_factory=time.monotonic)

    @property
    def is_effect(self) -> bool:
        """Whether the end of another rank is the likely cause."""
        return bool(_LOST_CONNECTION.search(self.message))


def from_error(error: BaseException) -> Failure:
    """Describe an exception, in the rank that raised it."""
    kind = type(error).__name__
    message = str(error)
    first_line = message.partition("\n")[0]
    report = traceback.TracebackException.from_exception(error)
    report.stack[:] = [frame for frame in report.stack if frame.filename != _WORKER]
    text = "".join(report.format()).rstrip() if report.stack else ""
    return Failure(kind, message, f"{kind}: {first_line}", text)


def from_exit(code: int) -> Failure:
    """Describe a process that ended without a message.

    Args:
        code: The exit code of the process. After a signal, it is the number of the signal with a minus sign.
    """
    if code >= 0:
        text = f"its process ended with exit code {code} before the function returned"
        return Failure("exit", text, text)
    name = signal.Signals(-code).name
    text = f"killed by {name}"
    if name == "SIGKILL":
        text += "; the machine may have run out of memory"
    return Failure(name, text, text)


def rank_failed(failures: Mapping[int, Failure], world_size: int) -> RankFailed:
    """Return the exception about the first failure that is a cause, with one line for each other cause."""
    rank, first = min(failures.items(), key=lambda item: (item[1].is_effect, item[1].at_s))
    report = first.traceback.replace("Traceback (most", f"Traceback of rank {rank} (most")
    report = _TRACEBACK_LINE.sub(lambda match: _location(match[1], int(match[2])), report)
    paragraphs = [_headline(rank, first, world_size), report]
    for other, failure in sorted(failures.items()):
        if other != rank and not failure.is_effect:
            paragraphs.append(_headline(other, failure, world_size))
    return RankFailed("\n\n".join(filter(None, paragraphs)), rank, first.kind, first.message)


def ranks_hang(timeout_s: float, stacks: Mapping[int, str], world_size: int) -> RanksHang:
    """Return the exception after a deadline.

    Args:
        timeout_s: The deadline, in seconds after the start of the last rank.
        stacks: The stack of each rank that has not returned.
        world_size: The number of ranks.
    """
    returned = sorted(set(range(world_size)) - set(stacks))
    lines = [f"{_ranks(returned)} had returned"] if returned else []
    ranks_at: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        ranks_at.setdefault(_place(stack), []).append(rank)
    for place, (rank, *others) in ranks_at.items():
        lines.append(f"rank {rank} {place}" + (f"; {_ranks(others)} too" if others else ""))
    text = (
        f"{_ranks(sorted(stacks))} of {world_size} did not end within {timeout_s:g} s; every rank must call the same "
        "collectives in the same order; if the work is only long, raise timeout_s\n\n" + "\n".join(lines)
    )
    return RanksHang(text, sorted(stacks))


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def _headline(rank: int, failure: Failure, world_size: int) -> str:
    return f"rank {rank} of {world_size} failed: {failure.headline}"


def _place(stack: str) -> str:
    """Describe the innermost line of the learner's code in a stack, and the function that is called there.

    If no line is the learner's, a line of the course is shown. The stack starts with the newest call.
    """
    frames = [(file, int(line), name) for file, line, name in _STACK_LINE.findall(stack)]
    outside_libraries = [n for n, (file, _, _) in enumerate(frames) if not _is_library(file)]
    learners = [n for n in outside_libraries if not frames[n][0].startswith(_PACKAGE)]
    candidates = learners or outside_libraries
    if not frames:
        return "does not say where it is"
    if not candidates:
        return f"is in {frames[-1][2]}, which none of your code called"
    file, line, function = frames[candidates[0]]
    called = [name for _, _, name in frames[: candidates[0]] if name not in _WRAPPERS]
    what = f"waits in {called[-1]}, called at" if called else "is at"
    source = linecache.getline(file, line).strip()
    return f"{what} {_location(file, line)}, in {function}" + (f": {source}" if source else "")


def _is_library(file: str) -> bool:
    """Return whether a file belongs to Python, to an installed package, or to the start of a rank."""
    if file in (_WORKER, "<string>") or file.startswith("<frozen"):
        return True
    return file.startswith(_LIBRARIES) and not file.startswith(_PACKAGE)


def _location(file: str, line: int) -> str:
    """Return a file and a line. A notebook cell is shown with its number."""
    cell = None
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
        cell = shell.compile.format_code_name(file) if shell is not None else None
    if cell is None:
        return f'File "{file}", line {line}'
    return f"{cell[0]} {cell[1]}, line {line}"
