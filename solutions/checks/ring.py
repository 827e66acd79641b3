"""Checks of chapter 08's exercise: a ring all-reduce written from send and receive, on real ranks.

The vector of rank r holds 10 to the power r, so every digit of a sum tells how often that rank has been added; in one
case its numbers grow from place to place, too. What ranks send is counted on its way into torch.distributed; a deadlock
ends at the deadline of the launch.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from dltutorial.comm.communicator import Communicator
from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.launch import RankFailed, RanksHang, launch

PATIENCE_S = 20.0  # for ranks that share busy cores
_HANGS = (
    "A deadlock: every rank waits for another, and none goes on. If all are in send, nobody receives: start both with "
    "batch_isend_irecv, then wait. Else some rank has fewer rounds than its neighbour."
)
_OTHER_SIZE = (
    "A message was longer than the place for it. The chunk you receive must be as long as the one your neighbour "
    "sends, and of its dtype: torch.empty_like(chunk)."
)
_UNEVEN = "The numbers do not divide by the ranks. x.tensor_split(p) cuts 7 into 3, 2 and 2."
_MISSING = (
    "A 0 among the digits: a rank's numbers are missing in a chunk. In every round of the first half a rank must pass "
    "on the chunk it has just added to; in the second half start with the chunk whose sum you have."
)


@dataclass
class Sent:
    """What a rank has sent: to whom, and how many bytes each."""

    peers: list[int] = field(default_factory=list)
    sizes_bytes: list[int] = field(default_factory=list)

    def note(self, send: Callable) -> Callable:
        """``send`` of torch.distributed, which tells this one of each call."""

        @functools.wraps(send)
        def noted(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
            peer = args[0] if args and args[0] is not None else options.get("dst", options.get("group_dst"))
            self.peers.append(int(peer))
            self.sizes_bytes.append(tensor.nbytes)
            return send(tensor, *args, **options)

        return noted


def _refuse(*args: Any, **options: Any) -> None:
    """In place of what the course's own ring stands on."""
    raise RuntimeError("the course's own collectives are no answer: write yours")


def _on_ranks(packed: bytes, jobs: Sequence[tuple[int, str]], step: int) -> list[tuple[list, Sent]]:
    """On one rank, for each (length, dtype): the vector afterwards, and what was sent.

    All numbers of a rank's vector are alike, or grow by ``step`` from place to place.
    """
    now = [Sent()]
    for name in ("send", "isend"):
        send = getattr(distributed_c10d, name)
        noted = functools.wraps(send)(lambda *args, _send=send, **options: now[0].note(_send)(*args, **options))
        for module in (dist, distributed_c10d):  # a P2POp takes only what the second one calls isend
            setattr(module, name, noted)
    Communicator.exchange_all = _refuse  # type: ignore[method-assign]
    fn = cloudpickle.loads(packed)  # only now: it may hold a send of its own
    found = []
    for n, dtype in jobs:
        now[0] = Sent()
        x = (10 ** dist.get_rank() + step * torch.arange(n)).to(getattr(torch, dtype))
        fn(x)
        found.append((x.tolist(), now[0]))
    return found


def _run(
    fn: Callable, p: int, *jobs: tuple[int, str], uneven: bool = False, step: int = 0
) -> list[list[tuple[list, Sent]]]:
    """The answer on p ranks: for each rank, for each job, what ``_on_ranks`` found."""
    try:
        packed = cloudpickle.dumps(fn)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*ranks share")
            return launch(_on_ranks, p, packed, jobs, step, timeout_s=PATIENCE_S, backend="gloo")
    except RanksHang as hang:
        raise Wrong(f"an end within {PATIENCE_S:g} s on {p} ranks", _place(str(hang)), _HANGS) from None
    except RankFailed as failed:
        if failed.kind == "NotImplementedError" and not failed.message:
            raise NotImplementedError from None
        said = str(failed).splitlines()[0]
        raise Wrong(
            f"an end without an error on {p} ranks", said, _hint_of(failed.kind, failed.message, uneven)
        ) from None


def _hint_of(kind: str, message: str, uneven: bool) -> str:
    """What an error in a rank comes from."""
    if kind == "SIGABRT" or "preamble" in message or "nbytes" in message:  # gloo, of a message longer than its place
        return _OTHER_SIZE
    if "item assignment" in message:
        return "The chunks come as a tuple: chunks[i] += … wants to put a new one there. Use chunks[i].add_(…)."
    return _UNEVEN if uneven and kind in ("RuntimeError", "ValueError", "IndexError") else ""


def _place(text: str) -> str:
    """The last line of a hang: where a rank waits."""
    return text.splitlines()[-1]


def _sums(fn: Callable, p: int, *jobs: tuple[int, str], uneven: bool = False) -> None:
    """All ranks must hold the sum after every job."""
    found = _run(fn, p, *jobs, uneven=uneven)
    for job, (n, _) in enumerate(jobs):
        vectors = [rank[job][0] for rank in found]
        wanted = [sum(10**rank for rank in range(p))] * n
        for rank, got in enumerate(vectors):
            if got != wanted:
                hint = _diagnosis(vectors, n, p, len(found[rank][job][1].peers))
                raise Wrong(f"{wanted} on rank {rank} of {p}", f"{got}", hint)


def _diagnosis(vectors: list[list[float]], n: int, p: int, messages: int) -> str:
    """Which well-known mistake leaves these vectors."""
    total = sum(10**rank for rank in range(p))
    own = [[10**rank] * n for rank in range(p)]
    right = [[value == total for value in vector] for vector in vectors]
    if vectors == own:
        return "x is as it was. Work in place: add into x, receive into x; what you return does not count."
    if all(value == total / p or value == total // p for vector in vectors for value in vector):
        return "That is the mean. An all-reduce sums; who wants a mean divides later."
    if all(vector[-1] == 10**rank for rank, vector in enumerate(vectors)) and n % p:
        return f"The last numbers were never sent. {_UNEVEN}"
    if all(sum(row) <= -(-n // p) for row in right) and any(map(any, right)) and messages < 2 * (p - 1):
        return "Each rank has the sum of one chunk: half of the work. Now hand the sums around: the all-gather."
    values = [value for vector in vectors for value in vector]
    if any(digit not in "01" for value in values for digit in str(int(value))):
        return (
            "A digit above 1: a rank was added twice. The first half takes p − 1 rounds, no more; in the second half "
            "sums are only copied, not added."
        )
    return _MISSING


def _in_place(fn: Callable) -> None:
    """Every number is summed with those of its own place"""
    wanted = [111 + 3 * 1000 * place for place in range(6)]
    for rank, ((got, _),) in enumerate(_run(fn, 3, (6, "float32"), step=1000)):
        if got != wanted:
            hint = (
                "Numbers of different places were added. Chunk c of a rank goes with chunk c of all others: which "
                "chunk does the rank before you send in this round?"
            )
            raise Wrong(f"{wanted} on rank {rank} of 3", f"{got}", hint)


def _traffic(fn: Callable) -> None:
    """Each rank sends 2 (p − 1) chunks, only to the next"""
    for p, n in ((4, 8), (3, 7)):
        for rank, ((_, sent),) in enumerate(_run(fn, p, (n, "float32"))):
            _expect_traffic(rank, p, n, sent.peers, sum(sent.sizes_bytes))


def _expect_traffic(rank: int, p: int, n: int, peers: list[int], sent_bytes: int) -> None:
    longest, messages = -(-n // p), 2 * (p - 1)
    if not peers:
        hint = (
            "Nothing was sent. Use isend and irecv (batch_isend_irecv starts both), no collective: the point is to see "
            "inside."
        )
        raise Wrong(f"{messages} messages of rank {rank}", 0, hint)
    if set(peers) != {(rank + 1) % p}:
        hint = "In a ring each rank sends only to the next, (rank + 1) % size, and receives only from the one before."
        raise Wrong(f"messages of rank {rank} to rank {(rank + 1) % p}", f"to {sorted(set(peers))}", hint)
    too_many = sent_bytes > messages * longest * 4
    if len(peers) > messages or (len(peers) < messages and not too_many):
        hint = "p − 1 rounds to sum, p − 1 to hand around, no more: one message of a whole chunk in each."
        raise Wrong(f"{messages} messages sent by rank {rank} of {p}", len(peers), hint)
    if too_many:
        hint = "Too many bytes. Send one chunk in each round, not the whole vector, and nothing twice."
        raise Wrong(f"at most {messages * longest * 4} bytes sent by rank {rank}", sent_bytes, hint)


_HINTS = (
    "What must a chunk have gathered when it arrives? Which chunk have you just added to: is it the one to pass on?",
    "x.tensor_split(p) gives views of x: changing one changes x. What does it do when p does not divide the length?",
    "Which rank holds which whole chunk after p − 1 rounds? The second half starts from there, and only copies.",
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
        case("Two ranks sum six numbers", _sums, 2, (6, "float32")),
        case("Four ranks sum eight numbers", _sums, 4, (8, "float32")),
        _in_place,
        case(
            "Three ranks sum 7, 4, 2, 1 and no numbers, whole ones too",
            _sums,
            3,
            (7, "float32"),
            (4, "int64"),
            (2, "float64"),
            (1, "float32"),
            (0, "float32"),
            uneven=True,
        ),
        _traffic,
    ),
    hints=_HINTS,
    code=_CODE,
    deadline_s=180.0,
)
