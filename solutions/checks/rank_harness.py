"""Run a learner's answer on several ranks, record its communication and compare the results of all ranks.

An exercise on ranks uses this file in three steps. A function of the exercise runs on each rank: it calls the answer,
if necessary inside a ``CommunicationRecorder``, and returns what the answer computed. ``run_on_ranks`` starts the ranks
and returns one result per rank. ``expect_close_on_ranks`` compares these results with the expected ones.

Every problem ends in a ``Wrong`` that a learner can read. If an answer raises an exception on a rank, the learner sees
the rank, the exception and the lines of the answer. If ranks hang, the learner sees where each rank waits. If a value
is wrong, the learner sees the relative error of each rank. The ranks are real processes of this machine that
communicate by gloo, so that an answer runs on any machine.

Source: https://docs.pytorch.org/docs/stable/distributed.html
"""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dltutorial.course.checks import Wrong
from dltutorial.course.checks.expect import as_numbers, expect_close
from dltutorial.launch import RankFailed, RanksHang, launch

PATIENCE_S = 20.0  # so long because ranks may share busy cores
DIFFERENT_CALLS = "One rank sends or waits where the other does not: all must call the same, in the same order."
# A stack frame of the learner's code in the traceback of a rank: a cell, or code that was compiled from a string.
_LEARNERS_FRAME = re.compile(r'^  (?:Cell In|File "<(?!frozen)).*(line \d+, in [\w<>]+)(?:\n    (.*))?', re.MULTILINE)
_SHOWN_FRAMES = 3
_WITHOUT_DATA = ("barrier", "wait")

Mistakes = Sequence[tuple[Any, str]]  # pairs of the value that a known mistake gives and the hint for it


class RankError(Wrong):
    """An answer raised an exception on a rank, or a signal ended the rank.

    Attributes:
        kind: The name of the exception's class, or of the signal.
        message: The message of the exception.
    """

    def __init__(self, failed: RankFailed) -> None:
        """Describe the failure with the last lines of the answer that led to it."""
        frames = _LEARNERS_FRAME.findall(str(failed))[-_SHOWN_FRAMES:]
        trace = "\n".join(f"{place}:  {line}".rstrip(": ") for place, line in frames)
        # gloo ends a process if its messages do not match those of the other ranks.
        hint = DIFFERENT_CALLS if failed.kind.startswith("SIG") else ""
        super().__init__("no error", f"{failed.kind} on rank {failed.rank}: {failed.message.strip()}", hint, trace)
        self.kind = failed.kind
        self.message = failed.message


class Message(NamedTuple):
    """One call of a collective, or of send or receive, on one rank.

    Attributes:
        kind: The name of the operation in torch's c10d library, such as "allreduce" or "broadcast".
        n_bytes: The bytes of the complete tensor. For an all-gather, this is the gathered tensor.
    """

    kind: str
    n_bytes: int


class CommunicationRecorder(TorchDispatchMode):
    """Records the messages that torch passes to its process group inside a ``with`` block.

    Attributes:
        messages: The messages in the order of their calls. Barriers are not recorded, because they carry no data.
    """

    def __init__(self) -> None:
        """The recorder has no messages yet."""
        super().__init__()
        self.messages: list[Message] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the operation if it communicates, and run it."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        kind = operation._opname.strip("_")
        if "c10d" in operation.namespace and tensors and not kind.startswith(_WITHOUT_DATA):
            sizes_bytes = [tensor.nbytes for tensor in tensors]
            # The tensors of an all-to-all are all sent. Other operations have the same data in several arguments.
            n_bytes = sum(sizes_bytes) if kind == "alltoall" else max(sizes_bytes)
            self.messages.append(Message(kind, n_bytes))
        return operation(*args, **(kwargs or {}))


def run_on_ranks(
    on_rank: Callable[..., Any], world_size: int, *arguments: Any, hang_hint: str = DIFFERENT_CALLS
) -> list[Any]:
    """Run a function on several ranks that communicate by gloo.

    Args:
        on_rank: The function. It calls the learner's answer, which is one of its arguments.
        world_size: The number of ranks.
        arguments: The arguments of the function, the same on all ranks.
        hang_hint: The hint for an answer that does not end within ``PATIENCE_S`` seconds.

    Returns:
        The results of the function, in the order of the ranks.

    Raises:
        NotImplementedError: A part of the answer is still blank.
        RankError: The answer raised an exception, or a signal ended a rank.
        Wrong: The answer did not end in time.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*ranks share")
            return launch(on_rank, world_size, *arguments, timeout_s=PATIENCE_S, backend="gloo")
    except RanksHang as hang:
        summary, _, places = str(hang).partition("\n\n")
        raise Wrong("all ranks end", summary.split(";")[0], hang_hint, places) from None
    except RankFailed as failed:
        if failed.kind == "NotImplementedError" and not failed.message:
            raise NotImplementedError from None
        raise RankError(failed) from None


def expect_close_on_ranks(
    got_by_rank: Sequence[Any],
    expected_by_rank: Sequence[Any],
    hint: str = "",
    mistakes_by_rank: Sequence[Mistakes] = (),
    *,
    rtol: float = 1e-4,
    atol: float = 0.0,
) -> None:
    """Compare the value of each rank with the expected one, as ``expect_close`` does.

    Args:
        got_by_rank: The answer's value on each rank.
        expected_by_rank: The correct value on each rank.
        hint: The hint for any wrong value.
        mistakes_by_rank: For each rank the values of known mistakes and the hint for each.
        rtol: The relative tolerance.
        atol: The absolute tolerance, in the unit of the values.

    Raises:
        Wrong: The value of a rank is wrong. The exception describes the first such rank, and its trace has a line with
            the relative error of each rank.
    """
    first_wrong = None
    lines = []
    for rank, (got, expected) in enumerate(zip(got_by_rank, expected_by_rank, strict=True)):
        mistakes = mistakes_by_rank[rank] if mistakes_by_rank else ()
        try:
            expect_close(got, expected, hint, mistakes, rtol, atol)
            lines.append(f"rank {rank}: correct")
        except Wrong as wrong:
            first_wrong = first_wrong or wrong
            lines.append(f"rank {rank}: {_describe_error(got, expected)}")
    if first_wrong is not None:
        first_wrong.trace = "\n".join(lines)
        raise first_wrong


def _describe_error(got: Any, expected: Any) -> str:
    """Return the relative error of a rank's value, or why it has none."""
    numbers = as_numbers(got)
    expected_numbers = as_numbers(expected)
    if numbers is None or expected_numbers is None:
        return f"no numbers, but {type(got).__name__}"
    if numbers.shape != expected_numbers.shape:
        return f"shape {numbers.shape} instead of {expected_numbers.shape}"
    error = np.linalg.norm(numbers - expected_numbers)
    norm = np.linalg.norm(expected_numbers)
    if norm == 0:
        return f"error {error:.2g}, where 0 is correct"
    return f"relative error {error / norm:.2g}"
