"""Collectives built from send and receive. The code shows which rank sends what to which rank, and in which round.

All ranks call the same collective with a contiguous tensor ``x`` of the same shape and dtype, and with a
``Communicator``. The collective changes ``x`` in place, as those of torch.distributed do. ``comm.traffic`` counts the
rounds, messages and bytes, and the module ``cost`` predicts them.

Legend: p ranks, N values in ``x``. ``x_N`` is the same memory with one dimension. For the ring, ``x`` is divided into p
*chunks* whose lengths differ by at most one. For example, 7 values on 3 ranks form chunks of 3, 2 and 2.

The ring all-reduce of three ranks has four rounds. In each round every rank sends one chunk to the next rank. The
chunks are a, b and c, and ``b02`` is the sum of the chunks b of ranks 0 and 2:

                      rank 0              rank 1              rank 2
    start             a0    b0    c0      a1    b1    c1      a2    b2    c2
    reduce-scatter    a0    b02   c0      a1    b1    c01     a12   b2    c2
                      a012  b02   c0      a1    b012  c01     a12   b2    c012
    all-gather        a012  b02   c012    a012  b012  c01     a12   b012  c012
                      a012  b012  c012    a012  b012  c012    a012  b012  c012

Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
doi:10.1177/1094342005051521.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dltutorial.comm.communicator import Communicator

if TYPE_CHECKING:
    from torch import Tensor


def broadcast(x: "Tensor", comm: Communicator) -> None:
    """Copy rank 0's ``x`` to all ranks, down a binary tree of log₂ p rounds.

    In each round, every rank that already has the values sends them to one rank that does not.
    """
    x_N = x.view(-1)
    for distance in reversed(_powers_of_two_below(comm.size)):
        position = comm.rank % (2 * distance)
        if position == 0 and comm.rank + distance < comm.size:
            comm.send(x_N, comm.rank + distance)
        elif position == distance:
            comm.receive(x_N, comm.rank - distance)


def reduce(x: "Tensor", comm: Communicator) -> None:
    """Compute the sum over all ranks on rank 0, up a binary tree of log₂ p rounds.

    On the other ranks, ``x`` holds the sum over some of the ranks afterwards.
    """
    x_N = x.view(-1)
    for distance in _powers_of_two_below(comm.size):
        position = comm.rank % (2 * distance)
        if position == distance:
            comm.send(x_N, comm.rank - distance)
        elif position == 0 and comm.rank + distance < comm.size:
            received_N = comm.scratch(x_N)
            comm.receive(received_N, comm.rank + distance)
            comm.add(x_N, received_N)


def reduce_scatter(x: "Tensor", comm: Communicator) -> "Tensor":
    """Give each rank the sum of one chunk, around a ring of p − 1 rounds.

    The sum of a chunk travels from rank to rank, and each rank adds its own chunk to it.

    Returns:
        Chunk number ``comm.rank`` of ``x``, which holds the sum over all ranks. The other chunks of ``x`` hold sums
        over some of the ranks.
    """
    p, rank = comm.size, comm.rank
    chunks = chunks_of(x, p)
    for step in range(p - 1):
        outgoing = chunks[(rank - step - 1) % p]
        own = chunks[(rank - step - 2) % p]
        received = comm.scratch(own)
        comm.exchange(outgoing, (rank + 1) % p, received, (rank - 1) % p)
        comm.add(own, received)
    return chunks[rank]


def all_gather(x: "Tensor", comm: Communicator) -> None:
    """Give all ranks chunk 0 of rank 0, chunk 1 of rank 1, and so on, around a ring of p − 1 rounds.

    In each round, a rank sends on the chunk that it received in the round before.
    """
    p, rank = comm.size, comm.rank
    chunks = chunks_of(x, p)
    for step in range(p - 1):
        outgoing = chunks[(rank - step) % p]
        incoming = chunks[(rank - step - 1) % p]
        comm.exchange(outgoing, (rank + 1) % p, incoming, (rank - 1) % p)


def ring_all_reduce(x: "Tensor", comm: Communicator) -> None:
    """Compute the sum on every rank in 2 (p − 1) rounds of N / p values.

    No other all-reduce sends fewer bytes, and each rank sends to its next rank only.
    """
    reduce_scatter(x, comm)
    all_gather(x, comm)


def tree_all_reduce(x: "Tensor", comm: Communicator) -> None:
    """Compute the sum on every rank, up a tree and down again, in 2 log₂ p rounds of N values."""
    reduce(x, comm)
    broadcast(x, comm)


def server_all_reduce(x: "Tensor", comm: Communicator) -> None:
    """Compute the sum on every rank through rank 0, which is a parameter server.

    All ranks send ``x`` to rank 0, which adds the tensors and sends the sum back. There are two rounds for any p, but
    rank 0 receives and sends all of the bytes.
    """
    x_N = x.view(-1)
    if comm.rank > 0:
        comm.send(x_N, 0)
        comm.receive(x_N, 0)
        return
    workers = range(1, comm.size)
    received_WN = comm.scratch(x_N, len(workers), x_N.numel())
    comm.exchange_all([], list(zip(received_WN, workers, strict=True)))
    for received_N in received_WN:
        comm.add(x_N, received_N)
    comm.exchange_all([(x_N, worker) for worker in workers], [])


def doubling_all_reduce(x: "Tensor", comm: Communicator) -> None:
    """Compute the sum on every rank by recursive doubling, in log₂ p rounds of N values.

    In round k, pairs of ranks at distance 2ᵏ exchange their sums. This needs a power of two. If p is none, the largest
    power of two below p is the size of a *core*. Each extra rank first sends its ``x`` to a neighbour in the core, and
    receives the sum at the end. These are two more rounds.
    """
    x_N = x.view(-1)
    core_size = 2 ** (comm.size.bit_length() - 1)
    n_extra = comm.size - core_size
    # Ranks 0 and 1, 2 and 3, … form n_extra pairs. The even rank of a pair is in the core, and the odd rank is extra.
    is_in_pair = comm.rank < 2 * n_extra
    if is_in_pair and comm.rank % 2 == 1:
        comm.send(x_N, comm.rank - 1)
        comm.receive(x_N, comm.rank - 1)
        return
    received_N = comm.scratch(x_N)
    if is_in_pair:
        comm.receive(received_N, comm.rank + 1)
        comm.add(x_N, received_N)
    core = comm.subset([*range(0, 2 * n_extra, 2), *range(2 * n_extra, comm.size)])
    for distance in _powers_of_two_below(core.size):
        peer = core.rank ^ distance
        core.exchange(x_N, peer, received_N, peer)
        core.add(x_N, received_N)
    if is_in_pair:
        comm.send(x_N, comm.rank + 1)


def hierarchical_all_reduce(x: "Tensor", comm: Communicator) -> None:
    """Compute the sum on every rank with little communication between nodes of ``comm.node_size`` ranks.

    A tree reduces ``x`` inside each node. The first ranks of all nodes then form a ring. Finally, a tree in each node
    broadcasts the sum.
    """
    ranks_by_node = _ranks_by_node(comm.nodes)
    own_node = next(ranks for ranks in ranks_by_node if comm.rank in ranks)
    node = comm.subset(own_node)
    reduce(x, node)
    if node.rank == 0:
        first_ranks = comm.subset([ranks[0] for ranks in ranks_by_node])
        ring_all_reduce(x, first_ranks)
    broadcast(x, node)


ALL_REDUCES: Mapping[str, Callable[["Tensor", Communicator], None]] = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "doubling": doubling_all_reduce,
    "server": server_all_reduce,
    "hierarchical": hierarchical_all_reduce,
}


def chunks_of(x: "Tensor", p: int) -> tuple["Tensor", ...]:
    """Divide ``x`` into p flat views, of which the first ones may be longer by one value."""
    return x.view(-1).tensor_split(p)


def _powers_of_two_below(p: int) -> list[int]:
    """Return 1, 2, 4, … as far as they are below p."""
    n_powers = (p - 1).bit_length()
    return [2**k for k in range(n_powers)]


def _ranks_by_node(nodes: Sequence[int]) -> list[list[int]]:
    """Return the ranks of each node, from the list that has the node of each rank."""
    ranks_of: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        ranks_of.setdefault(node, []).append(rank)
    return list(ranks_of.values())
