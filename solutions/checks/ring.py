"""Checks of chapter 08's exercise: a ring all-reduce that is written with send and receive.

The answer runs on two, three and four ranks. The vector of rank r holds the number 10 to the power r, so each digit of
a sum shows how often the numbers of that rank were added. The checks compare the sums of all ranks, and the receivers
and the bytes of all messages. In one case the numbers also grow from place to place, so that a mistake between chunks
becomes visible.

Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.rank_harness import RankError, run_on_ranks

Job = tuple[int, str]  # the length and the dtype of a vector

_HANGS = (
    "A deadlock: every rank waits for another rank. If all ranks are in send, nobody receives. Start the send and the "
    "receive together with batch_isend_irecv, and then wait for both. Otherwise, check that all ranks make equally "
    "many steps."
)
_OTHER_SIZE = (
    "A message was longer than the tensor that received it. The received chunk must have the length and the dtype of "
    "the chunk that the other rank sends. Use torch.empty_like(chunk)."
)
_UNEVEN = "The elements do not divide evenly among the ranks. x.tensor_split(p) splits 7 elements into 3, 2 and 2."
_MISSING = (
    "A digit is 0, so the values of a rank are missing in a chunk. In each step of the first half, a rank must send "
    "the chunk to which it has just added. The second half must begin with the chunk whose sum is complete."
)


_NO_REMAINDER = f"The last elements were never sent. {_UNEVEN}"
_MIXED_CHUNKS = (
    "Elements of different places were added. Chunk c of one rank must be added to chunk c of another rank. Which "
    "chunk does the previous rank send in this step?"
)
_IMMUTABLE = (
    "tensor_split returns a tuple, and chunks[i] += … tries to replace an element of the tuple. Use chunks[i].add_(…)."
)
_NOT_IN_PLACE = "x has not changed. Work in place: add into x and receive into x. The returned value is not used."
_MEAN = "That is the mean. An all-reduce computes the sum. The caller divides if the mean is needed."
_HALF = (
    "Each rank has the complete sum of one chunk, which is half of the work. Now send the complete sums around the "
    "ring (all-gather)."
)
_ADDED_TWICE = (
    "A digit is larger than 1, so a rank was added twice. The first half needs p − 1 steps and no more. In the second "
    "half, the sums are only copied, not added."
)
_NOTHING_SENT = (
    "Nothing was sent with send or isend. Do not use a collective. Start isend and irecv with batch_isend_irecv."
)
_NEIGHBOURS = (
    "In a ring, each rank sends only to the next rank, (rank + 1) % p, and receives only from the previous rank."
)
_ROUNDS = "Each half needs p − 1 steps and no more. In each step, a rank sends one message with one chunk."
_TOO_MANY_BYTES = "Too many bytes. In each step, send one chunk and not the complete tensor."


@dataclass
class SentMessages:
    """The messages that a rank sends.

    Attributes:
        receivers: The receiving rank of each message.
        sizes_bytes: The bytes of each message.
    """

    receivers: list[int] = field(default_factory=list)
    sizes_bytes: list[int] = field(default_factory=list)

    def record(self, tensor: torch.Tensor, *args: Any, **options: Any) -> None:
        """Record a call of ``send`` or ``isend`` with these arguments."""
        receiver: Any = options.get("dst", options.get("group_dst"))
        if args and args[0] is not None:
            receiver = args[0]
        self.receivers.append(int(receiver))
        self.sizes_bytes.append(tensor.nbytes)


@dataclass
class JobResult:
    """The result of the answer on one rank: the vector after the call, and what the rank sent."""

    vector: list[float]
    sent: SentMessages


def _record_sends() -> list[SentMessages]:
    """Record all later messages of this process in the last entry of the returned list."""
    records = [SentMessages()]

    def recorded(send: Callable) -> Callable:
        @functools.wraps(send)
        def record_and_send(*args: Any, **options: Any) -> Any:
            records[-1].record(*args, **options)
            return send(*args, **options)

        return record_and_send

    for name in ("send", "isend"):
        function = recorded(getattr(distributed_c10d, name))
        setattr(dist, name, function)
        setattr(distributed_c10d, name, function)  # P2POp compares its operation with this one
    return records


def _sum_on_rank(packed: bytes, jobs: Sequence[Job], step: int) -> list[JobResult]:
    """Run the answer once for each job.

    Args:
        packed: The answer. It is unpacked after ``send`` was replaced, because it may refer to ``send`` itself.
        jobs: The vectors to sum.
        step: The difference of two neighbouring numbers of a vector.

    Returns:
        The result of each job.
    """
    records = _record_sends()
    fn = cloudpickle.loads(packed)
    results = []
    for n, dtype in jobs:
        records.append(SentMessages())
        x = (10 ** dist.get_rank() + step * torch.arange(n)).to(getattr(torch, dtype))
        fn(x)
        results.append(JobResult(x.tolist(), records[-1]))
    return results


def _run(
    fn: Callable, world_size: int, jobs: Sequence[Job], uneven: bool = False, step: int = 0
) -> list[list[JobResult]]:
    """Return the results of all jobs for each rank."""
    try:
        return run_on_ranks(_sum_on_rank, world_size, cloudpickle.dumps(fn), jobs, step, hang_hint=_HANGS)
    except RankError as error:
        error.hint = _hint_for_error(error, uneven)
        raise


def _hint_for_error(error: RankError, uneven: bool) -> str:
    """Return the hint for an exception. gloo aborts if a message is longer than its receive buffer."""
    if error.kind == "SIGABRT" or "preamble" in error.message or "nbytes" in error.message:
        return _OTHER_SIZE
    if "item assignment" in error.message:
        return _IMMUTABLE
    if uneven and error.kind in ("RuntimeError", "ValueError", "IndexError"):
        return _UNEVEN
    return ""


def _check_sums(fn: Callable, world_size: int, *jobs: Job, uneven: bool = False) -> None:
    """All ranks must hold the sum after every job."""
    results = _run(fn, world_size, jobs, uneven)
    for index, (n, _) in enumerate(jobs):
        of_job = [of_rank[index] for of_rank in results]
        expected = [_total(world_size)] * n
        for rank, result in enumerate(of_job):
            if result.vector != expected:
                hint = _hint_for_vectors([other.vector for other in of_job], n, len(result.sent.receivers))
                raise Wrong(f"{expected} on rank {rank} of {world_size}", f"{result.vector}", hint, _by_rank(of_job))


def _by_rank(results: Sequence[JobResult]) -> str:
    """Return a line with the vector of each rank."""
    return "\n".join(f"rank {rank}: {result.vector}" for rank, result in enumerate(results))


def _total(world_size: int) -> int:
    return sum(10**rank for rank in range(world_size))


def _hint_for_vectors(vectors: list[list[float]], n: int, n_messages: int) -> str:
    """Return the hint for the mistake that leaves these vectors of n numbers on the ranks."""
    world_size = len(vectors)
    total = _total(world_size)
    values = [value for vector in vectors for value in vector]
    longest_chunk = -(-n // world_size)
    most_correct = max(vector.count(total) for vector in vectors)
    if _have_own_values(vectors):
        return _NOT_IN_PLACE
    if set(values) <= {total / world_size, total // world_size}:
        return _MEAN
    if n % world_size and _have_own_values([vector[-1:] for vector in vectors]):
        return _NO_REMAINDER
    if 0 < most_correct <= longest_chunk and n_messages < 2 * (world_size - 1):
        return _HALF
    return _hint_for_digits(values)


def _hint_for_digits(values: list[float]) -> str:
    """Return the hint for wrong sums, whose digits show how often each rank was added."""
    digits = "".join(str(int(value)) for value in values)
    if set(digits) <= {"0", "1"}:
        return _MISSING
    return _ADDED_TWICE


def _have_own_values(vectors: list[list[float]]) -> bool:
    """Return whether each rank has only its initial number."""
    return all(set(vector) <= {10**rank} for rank, vector in enumerate(vectors))


def _check_places(fn: Callable) -> None:
    """Each number is added to the numbers at the same place"""
    step = 1000
    expected = [111 + 3 * step * place for place in range(6)]
    results = [of_rank[0] for of_rank in _run(fn, 3, [(6, "float32")], step=step)]
    for rank, result in enumerate(results):
        if result.vector != expected:
            raise Wrong(f"{expected} on rank {rank} of 3", f"{result.vector}", _MIXED_CHUNKS, _by_rank(results))


def _check_traffic(fn: Callable) -> None:
    """Each rank sends 2 (p − 1) chunks, only to the next rank"""
    for world_size, n in ((4, 8), (3, 7)):
        for rank, (result,) in enumerate(_run(fn, world_size, [(n, "float32")])):
            _check_messages_of_rank(result.sent, rank, world_size, n)


def _check_messages_of_rank(sent: SentMessages, rank: int, world_size: int, n: int) -> None:
    """The messages of one rank must be one chunk of n float32 numbers per round, all for the next rank."""
    n_messages = 2 * (world_size - 1)
    longest_chunk = -(-n // world_size)
    most_bytes = n_messages * longest_chunk * torch.float32.itemsize
    next_rank = (rank + 1) % world_size
    if not sent.receivers:
        raise Wrong(f"{n_messages} messages of rank {rank}", 0, _NOTHING_SENT)
    if set(sent.receivers) != {next_rank}:
        receivers = sorted(set(sent.receivers))
        raise Wrong(f"messages of rank {rank} to rank {next_rank}", f"to {receivers}", _NEIGHBOURS)
    sent_bytes = sum(sent.sizes_bytes)
    too_many_bytes = sent_bytes > most_bytes
    if len(sent.receivers) > n_messages or (len(sent.receivers) < n_messages and not too_many_bytes):
        raise Wrong(f"{n_messages} messages sent by rank {rank} of {world_size}", len(sent.receivers), _ROUNDS)
    if too_many_bytes:
        raise Wrong(f"at most {most_bytes} bytes sent by rank {rank}", sent_bytes, _TOO_MANY_BYTES)


_HINTS = (
    "Which sum must a chunk contain when it arrives? To which chunk has this rank just added? Does it "
    "send this chunk next?",
    "x.tensor_split(p) returns parts of x, so a change of a part changes x. How long are the parts if p does not "
    "divide the length?",
    "Which rank holds which complete sum after p − 1 steps? The second half begins with these chunks, and it only "
    "copies.",
)
_CODE = (
    "ops = [dist.P2POp(dist.isend, out, after), dist.P2POp(dist.irecv, into, before)]",
    "for step in range(p - 1): out, into = chunks[(rank - step - 1) % p], chunks[(rank - step - 2) % p]",
    "for step in range(p - 1): out, into = chunks[(rank - step) % p], chunks[(rank - step - 1) % p]",
)
EXERCISE = Exercise(
    name="ring",
    chapter="08",
    cases=(
        case("Two ranks sum six numbers", _check_sums, 2, (6, "float32")),
        case("Four ranks sum eight numbers", _check_sums, 4, (8, "float32")),
        _check_places,
        case(
            "Three ranks sum 7, 4, 2, 1 and 0 numbers, also integers",
            _check_sums,
            3,
            (7, "float32"),
            (4, "int64"),
            (2, "float64"),
            (1, "float32"),
            (0, "float32"),
            uneven=True,
        ),
        _check_traffic,
    ),
    hints=_HINTS,
    code=_CODE,
    deadline_s=180.0,
)
