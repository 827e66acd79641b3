"""Collectives written from send and receive: who talks to whom, in which round.

In: a contiguous tensor, of any shape and dtype that adds up, and a ``Team``. Out: the tensor itself, changed in
place, as torch.distributed does it. Every rank calls the same collective with the same shape. p is the number of
ranks, n the tensor's bytes; the rounds, messages and bytes of each are counted in ``team.traffic`` and predicted in
``cost``.

``x`` is seen as p *chunks*, as even as can be: with 7 numbers on 3 ranks they hold 3, 2 and 2.

Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
doi:10.1177/1094342005051521.
"""

from collections.abc import Callable, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING

from dltutorial.comm.team import Team
from dltutorial.errors import CourseError

if TYPE_CHECKING:
    from torch import Tensor


def broadcast(x: "Tensor", team: Team, source: int = 0) -> None:
    """Every rank gets the source's ``x``, down a binary tree: in each round, all who have it pass it on.

    Raises:
        CourseError: no such source, or ``x`` is not contiguous.
    """
    place, x = _place(source, team), _flat(x)
    for distance in reversed(_distances(team.size)):
        if place % (2 * distance) == 0 and place + distance < team.size:
            team.send(x, (place + distance + source) % team.size)
        elif place % (2 * distance) == distance:
            team.receive(x, (place - distance + source) % team.size)


def reduce(x: "Tensor", team: Team, target: int = 0) -> None:
    """The target gets the sum of all, up a binary tree. On other ranks ``x`` holds a part of the sum afterwards.

    Raises:
        CourseError: no such target, or ``x`` is not contiguous.
    """
    place, x = _place(target, team), _flat(x)
    for distance in _distances(team.size):
        if place % (2 * distance) == distance:
            team.send(x, (place - distance + target) % team.size)
        elif place % (2 * distance) == 0 and place + distance < team.size:
            spare = team.spare(x)
            team.receive(spare, (place + distance + target) % team.size)
            team.add(x, spare)


def reduce_scatter(x: "Tensor", team: Team) -> "Tensor":
    """Afterwards chunk r of ``x`` is the sum on rank r, and returned; the other chunks hold parts of sums.

    Around a ring: the sum of a chunk travels from rank to rank, and each adds its own. It arrives after p − 1 rounds.

    Raises:
        CourseError: ``x`` is not contiguous.
    """
    p, me, chunks = team.size, team.rank, chunks_of(x, team.size)
    for step in range(p - 1):
        out, into = chunks[(me - step - 1) % p], chunks[(me - step - 2) % p]
        spare = team.spare(into)
        team.exchange(out, (me + 1) % p, spare, (me - 1) % p)
        team.add(into, spare)
    return chunks[me]


def all_gather(x: "Tensor", team: Team) -> None:
    """Chunk r of ``x`` is rank r's to give: afterwards every rank has all chunks. Around a ring, in p − 1 rounds.

    Raises:
        CourseError: ``x`` is not contiguous.
    """
    p, me, chunks = team.size, team.rank, chunks_of(x, team.size)
    for step in range(p - 1):
        team.exchange(chunks[(me - step) % p], (me + 1) % p, chunks[(me - step - 1) % p], (me - 1) % p)


def ring_all_reduce(x: "Tensor", team: Team) -> None:
    """Sum on every rank, with the fewest bytes: 2 (p − 1) rounds of n / p bytes, each to the next rank only.

    Raises:
        CourseError: ``x`` is not contiguous.
    """
    reduce_scatter(x, team)
    all_gather(x, team)


def tree_all_reduce(x: "Tensor", team: Team) -> None:
    """Sum on every rank: up a tree and down again, 2 log₂ p rounds, the whole of ``x`` in each.

    Raises:
        CourseError: ``x`` is not contiguous.
    """
    reduce(x, team)
    broadcast(x, team)


def server_all_reduce(x: "Tensor", team: Team, server: int = 0) -> None:
    """Sum on every rank through one of them, a parameter server: all send to it, it adds, and sends to all.

    Two rounds, whatever p is; but all bytes pass through one rank.

    Raises:
        CourseError: no such server, or ``x`` is not contiguous.
    """
    x = _flat(x)
    if _place(server, team) != 0:
        team.send(x, server)
        team.receive(x, server)
        return
    workers = [rank for rank in range(team.size) if rank != server]
    inbox = team.spare(x, len(workers), x.numel())
    team.exchange_all([], [(inbox[n], worker) for n, worker in enumerate(workers)])
    for received in inbox:
        team.add(x, received)
    team.exchange_all([(x, worker) for worker in workers], [])


def doubling_all_reduce(x: "Tensor", team: Team) -> None:
    """Sum on every rank by recursive doubling: log₂ p rounds, in which pairs at distance 1, 2, 4, … swap all they have.

    If p is no power of two, as many ranks as are too many first hand their ``x`` to a neighbour, and get the sum back
    at the end: two more rounds.

    Raises:
        CourseError: ``x`` is not contiguous.
    """
    x = _flat(x)
    too_many = team.size - 2 ** (team.size.bit_length() - 1)
    paired, odd = team.rank < 2 * too_many, team.rank % 2 == 1
    spare = team.spare(x)
    if paired and odd:
        team.send(x, team.rank - 1)
        return team.receive(x, team.rank - 1)
    if paired:
        team.receive(spare, team.rank + 1)
        team.add(x, spare)
    core = team.part([*range(0, 2 * too_many, 2), *range(2 * too_many, team.size)])
    for distance in _distances(core.size):
        peer = core.rank ^ distance
        core.exchange(x, peer, spare, peer)
        core.add(x, spare)
    if paired:
        team.send(x, team.rank + 1)


def hierarchical_all_reduce(x: "Tensor", team: Team) -> None:
    """Sum on every rank: up a tree in each node of ``team.node_size``, a ring of one rank a node, down the trees.

    Raises:
        CourseError: ``x`` is not contiguous.
    """
    nodes = [[place for place, _ in node] for _, node in groupby(enumerate(team.nodes), key=lambda pair: pair[1])]
    mine = team.part(next(node for node in nodes if team.rank in node))
    reduce(x, mine)
    if mine.rank == 0:
        ring_all_reduce(x, team.part([node[0] for node in nodes]))
    broadcast(x, mine)


ALL_REDUCES: Mapping[str, Callable[["Tensor", Team], None]] = MappingProxyType({
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "doubling": doubling_all_reduce,
    "server": server_all_reduce,
    "hierarchical": hierarchical_all_reduce,
})  # fmt: skip


def chunks_of(x: "Tensor", p: int) -> tuple["Tensor", ...]:
    """``x`` as p flat views, as even as can be, the longer ones first.

    Raises:
        CourseError: ``x`` is not contiguous.
    """
    return _flat(x).tensor_split(p)


def _flat(x: "Tensor") -> "Tensor":
    if not x.is_contiguous():
        raise CourseError(f"a tensor of strides {x.stride()} is not contiguous; pass x.contiguous()")
    return x.view(-1)


def _place(root: int, team: Team) -> int:
    """This rank's place if counting starts at ``root``."""
    if not 0 <= root < team.size:
        raise CourseError(f"no rank {root} in a team of {team.size}; choose 0 … {team.size - 1}")
    return (team.rank - root) % team.size


def _distances(p: int) -> list[int]:
    """1, 2, 4, … below p."""
    return [2**k for k in range((p - 1).bit_length())]
