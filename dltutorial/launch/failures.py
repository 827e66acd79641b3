"""What is told when ranks fail or hang: which rank, which error, which line.

In: exceptions, where they were raised; exit codes; stacks as ``faulthandler`` prints them. Out: one exception, in the
caller, which knows the numbers of its notebook's cells.
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

_PACKAGE = str(Path(__file__).parents[1])
_WORKER = str(Path(__file__).with_name("worker.py"))
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_PLACE = re.compile(r'(?<=^  )File "(.*)", line (\d+)', re.MULTILINE)
# What a rank says when another one went away: an effect, not the cause.
_PEER = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|broken pipe|socket (closed|error|timeout)"
    r"|remote process (has )?(exited|terminated)|ncclRemoteError|failed to recv",
    re.IGNORECASE,
)
_SHOWN = 10  # ranks, or places, that are listed one by one
_PEER_KINDS = {"RuntimeError", "DistError", "DistBackendError", "DistNetworkError", "DistStoreError", "ConnectionError"}


class RankFailed(CourseError):
    """A rank raised, or died. The text has one line, then that rank's own traceback.

    Attributes:
        rank: the one that failed first.
        kind: name of its exception's class, or of the signal, or "exit".
        message: the exception's own words.
    """

    def __init__(self, text: str, rank: int, kind: str, message: str) -> None:
        super().__init__(text)
        self.rank, self.kind, self.message = rank, kind, message


class RanksHang(CourseError):
    """The deadline has passed. The text says where each rank is; ``waiting``: ranks that had not returned."""

    def __init__(self, text: str, waiting: Sequence[int]) -> None:
        super().__init__(text)
        self.waiting = tuple(waiting)


@dataclass(frozen=True)
class Failure:
    """One rank's end without a value, at a time of the machine's monotonic clock."""

    kind: str
    message: str
    headline: str
    traceback: str = ""
    at_s: float = field(default_factory=time.monotonic)

    @property
    def is_effect(self) -> bool:
        """Whether another rank's end is the likely cause."""
        return self.kind == "AnotherRankFailed" or lost_another_rank(self.kind, self.message)


def lost_another_rank(kind: str, message: str) -> bool:
    """Whether an exception of this class, with these words, only says that another rank is gone."""
    return kind in _PEER_KINDS and bool(_PEER.search(message))


def from_error(error: BaseException) -> Failure:
    """An exception, in the rank that raised it; the traceback is without the frames of ``worker``, if it has others."""
    kind = type(error).__name__
    try:
        message = str(error)
    except Exception as in_str:
        message = f"its text cannot be had: {type(in_str).__name__} in {kind}.__str__"
    first_line = message.partition("\n")[0]
    told = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = told
    has_place = isinstance(error, SyntaxError)
    while link is not None:
        link.stack[:] = [frame for frame in link.stack if frame.filename != _WORKER]
        has_place = has_place or bool(link.stack)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    if has_place:
        return Failure(kind, message, f"{kind}: {first_line}", "".join(told.format()).rstrip())
    # The launcher's own word on what cannot be sent needs no name.
    return Failure(kind, message, first_line if isinstance(error, CourseError) else f"{kind}: {first_line}")


def from_exit(code: int) -> Failure:
    """A rank that ended without a word: by a signal (negative code) or an exit."""
    if code >= 0:
        told = f"its process ended with exit code {code} before the launch did"
        return Failure("exit", told, told)
    name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
    told = f"killed by {name}" + ("; killed for want of memory, or by hand?" if name == "SIGKILL" else "")
    return Failure(name, told, told)


def as_exception(failed: Mapping[int, Failure], world_size: int) -> RankFailed:
    """The first real failure, with a line for every other real one."""
    rank, first = min(failed.items(), key=lambda item: (item[1].is_effect, item[1].at_s))
    real = {other: failure for other, failure in failed.items() if other != rank and not failure.is_effect}
    also = [_headline(n, other, world_size) for n, other in real.items() if other.headline != first.headline][:_SHOWN]
    if same := sorted(n for n, other in real.items() if other.headline == first.headline):
        also.append(f"{_named(same)} failed in the same way")
    told = first.traceback.replace("Traceback (most", f"Traceback of rank {rank} (most")
    told = _PLACE.sub(lambda match: _shown(match[1], int(match[2])), told)
    text = "\n\n".join(filter(None, [_headline(rank, first, world_size), told, "\n".join(also)]))
    return RankFailed(text, rank, first.kind, first.message)


def hang(timeout_s: float, stacks: dict[int, str], world_size: int) -> RanksHang:
    """What to say at the deadline, from the stack of every rank that has not returned."""
    done = sorted(set(range(world_size)) - set(stacks))
    lines = [f"{_named(done)} had returned"] if done else []
    places: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        places.setdefault(_place(stack), []).append(rank)
    for place, (rank, *others) in [*places.items()][:_SHOWN]:
        lines += [f"rank {rank} {place}" + (f"; {_named(others)} too" if others else "")]
    text = (
        f"{_named(sorted(stacks))} of {world_size} did not end within {timeout_s:g} s; every rank must call the same "
        "collectives in the same order; if the work is only long, raise timeout_s\n\n" + "\n".join(lines)
    )
    return RanksHang(text, sorted(stacks))


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) <= _SHOWN + 2:
        return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
    first = ranks[:_SHOWN]
    shown = f"{first[0]}–{first[-1]}" if first[-1] - first[0] == _SHOWN - 1 else ", ".join(map(str, first))
    return f"ranks {shown} and {len(ranks) - _SHOWN} others"


def _headline(rank: int, failure: Failure, world_size: int) -> str:
    return f"rank {rank} of {world_size} failed: {failure.headline}"


def _place(stack: str) -> str:
    """Where a rank is: the learner's innermost line, and what is called there. ``stack`` has the newest call first."""
    frames = [(file, int(line), name) for file, line, name in _STACK_LINE.findall(stack)]
    for course in (_PACKAGE + os.sep, "\0"):  # where no line is the learner's, the course's own will do
        inner = (_is_library(file) or file.startswith(course) for file, _, _ in frames)
        place = next((n for n, is_inner in enumerate(inner) if not is_inner), None)
        if place is None:
            continue
        file, line, name = frames[place]
        called = [n for _, _, n in frames[:place] if n not in ("wrapper", "_wrapped_call_impl", "_call_impl")]
        source = linecache.getline(file, line).strip()
        what = f"waits in {called[-1]}, called at" if called else "is at"
        return f"{what} {_shown(file, line)}, in {name}" + (f": {source}" if source else "")
    return f"is in {frames[-1][2]}, called by no code of yours" if frames else "does not say where it is"


def _is_library(file: str) -> bool:
    if file in (_WORKER, "<string>") or file.startswith("<frozen"):
        return True
    return file.startswith(_LIBRARIES) and not file.startswith(_PACKAGE + os.sep)


def _shown(file: str, line: int) -> str:
    """A file and line as the learner knows them; a notebook's cell by its number."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    name = shell.compile.format_code_name(file) if shell is not None else None
    return f"{name[0]} {name[1]}, line {line}" if name else f'File "{file}", line {line}'
