"""Collectives written from send and receive: who talks to whom, in which round.

In: a contiguous tensor, of any shape and dtype that adds up, and a ``Communicator``. Out: the tensor itself, changed in
place, as torch.distributed does it. Every rank calls the same collective with the same shape. p is the number of
ranks, n the tensor's bytes; the rounds, messages and bytes of each are counted in ``comm.traffic`` and predicted in
``cost``. A tensor that is not contiguous is a ValueError.

``x`` is seen as p *chunks*, as even as can be: with 7 numbers on 3 ranks they hold 3, 2 and 2.

Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
doi:10.1177/1094342005051521.
"""

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from dltutorial.comm.communicator import Communicator

if TYPE_CHECKING:
    from torch import Tensor


def broadcast(x: "Tensor", comm: Communicator) -> None:
    """Every rank gets rank 0's ``x``, down a binary tree: in each round, all who have it pass it on."""
    me, x = comm.rank, _flat(x)
    for distance in reversed(_distances(comm.size)):
        if me % (2 * distance) == 0 and me + distance < comm.size:
            comm.send(x, me + distance)
        elif me % (2 * distance) == distance:
            comm.receive(x, me - distance)


def reduce(x: "Tensor", comm: Communicator) -> None:
    """Rank 0 gets the sum of all, up a binary tree. On other ranks ``x`` holds a part of the sum afterwards."""
    me, x = comm.rank, _flat(x)
    for distance in _distances(comm.size):
        if me % (2 * distance) == distance:
            comm.send(x, me - distance)
        elif me % (2 * distance) == 0 and me + distance < comm.size:
            spare = comm.spare(x)
            comm.receive(spare, me + distance)
            comm.add(x, spare)


def reduce_scatter(x: "Tensor", comm: Communicator) -> "Tensor":
    """Afterwards chunk r of ``x`` is the sum on rank r, and returned; the other chunks hold parts of sums.

    Around a ring: the sum of a chunk travels from rank to rank, and each adds its own. It arrives after p − 1 rounds.
    """
    p, me, chunks = comm.size, comm.rank, chunks_of(x, comm.size)
    for step in range(p - 1):
        out, into = chunks[(me - step - 1) % p], chunks[(me - step - 2) % p]
        spare = comm.spare(into)
        comm.exchange(out, (me + 1) % p, spare, (me - 1) % p)
        comm.add(into, spare)
    return chunks[me]


def all_gather(x: "Tensor", comm: Communicator) -> None:
    """Chunk r of ``x`` is rank r's to give: afterwards every rank has all chunks. Around a ring, in p − 1 rounds."""
    p, me, chunks = comm.size, comm.rank, chunks_of(x, comm.size)
    for step in range(p - 1):
        comm.exchange(chunks[(me - step) % p], (me + 1) % p, chunks[(me - step - 1) % p], (me - 1) % p)


def ring_all_reduce(x: "Tensor", comm: Communicator) -> None:
    """Sum on every rank, with the fewest bytes: 2 (p − 1) rounds of n / p bytes, each to the next rank only."""
    reduce_scatter(x, comm)
    all_gather(x, comm)


def tree_all_reduce(x: "Tensor", comm: Communicator) -> None:
    """Sum on every rank: up a tree and down again, 2 log₂ p rounds, the whole of ``x`` in each."""
    reduce(x, comm)
    broadcast(x, comm)


def server_all_reduce(x: "Tensor", comm: Communicator) -> None:
    """Sum on every rank through rank 0, a parameter server: all send to it, it adds, and sends to all.

    Two rounds, whatever p is; but all bytes pass through one rank.
    """
    x = _flat(x)
    if comm.rank > 0:
        comm.send(x, 0)
        comm.receive(x, 0)
        return
    workers = range(1, comm.size)
    inbox = comm.spare(x, len(workers), x.numel())
    comm.exchange_all([], [(inbox[n], worker) for n, worker in enumerate(workers)])
    for received in inbox:
        comm.add(x, received)
    comm.exchange_all([(x, worker) for worker in workers], [])


def doubling_all_reduce(x: "Tensor", comm: Communicator) -> None:
    """Sum on every rank by recursive doubling: log₂ p rounds, in which pairs at distance 1, 2, 4, … swap all they have.

    If p is no power of two, as many ranks as are too many first hand their ``x`` to a neighbour, and get the sum back
    at the end: two more rounds.
    """
    x = _flat(x)
    too_many = comm.size - 2 ** (comm.size.bit_length() - 1)
    paired, odd = comm.rank < 2 * too_many, comm.rank % 2 == 1
    spare = comm.spare(x)
    if paired and odd:
        comm.send(x, comm.rank - 1)
        return comm.receive(x, comm.rank - 1)
    if paired:
        comm.receive(spare, comm.rank + 1)
        comm.add(x, spare)
    core = comm.subset([*range(0, 2 * too_many, 2), *range(2 * too_many, comm.size)])
    for distance in _distances(core.size):
        peer = core.rank ^ distance
        core.exchange(x, peer, spare, peer)
        core.add(x, spare)
    if paired:
        comm.send(x, comm.rank + 1)


def hierarchical_all_reduce(x: "Tensor", comm: Communicator) -> None:
    """Sum on every rank: up a tree in each node of ``comm.node_size``, a ring of one rank a node, down the trees."""
    nodes = [[place for place, _ in node] for _, node in groupby(enumerate(comm.nodes), key=lambda pair: pair[1])]
    mine = comm.subset(next(node for node in nodes if comm.rank in node))
    reduce(x, mine)
    if mine.rank == 0:
        ring_all_reduce(x, comm.subset([node[0] for node in nodes]))
    broadcast(x, mine)


ALL_REDUCES: Mapping[str, Callable[["Tensor", Communicator], None]] = {
    "ring": ring_all_reduce, "tree": tree_all_reduce, "doubling": doubling_all_reduce, "server": server_all_reduce,
    "hierarchical": hierarchical_all_reduce,
}  # fmt: skip


def chunks_of(x: "Tensor", p: int) -> tuple["Tensor", ...]:
    """``x`` as p flat views, as even as can be, the longer ones first."""
    return _flat(x).tensor_split(p)


def _flat(x: "Tensor") -> "Tensor":
    if not x.is_contiguous():
        raise ValueError(f"a tensor of strides {x.stride()} is not contiguous; pass x.contiguous()")
    return x.view(-1)


def _distances(p: int) -> list[int]:
    """1, 2, 4, … below p."""
    return [2**k for k in range((p - 1).bit_length())]
