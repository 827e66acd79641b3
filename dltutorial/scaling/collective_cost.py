"""The number of rounds, messages and bytes of each all-reduce in closed form, and a model of its time.

Inputs are the name of an all-reduce, the number p of ranks and the number n of bytes. ``counts`` returns the numbers
of rounds, messages and bytes. ``Prices.seconds`` computes the time in seconds from them, by the α–β model:

    T = α · max(rounds, messages / lanes) + 1/β · max(path bytes, sent bytes / lanes)

α is the latency of one message, and β is the bandwidth. A *lane* carries one message at a time. On a cluster each rank
has its own link, so there are as many lanes as ranks, and the longest path determines the time, as in textbooks. Ranks
on one CPU share its cores and its memory. There is one lane, and the messages of all ranks add up. The model leaves out
the time to add the received bytes.

If p is a power of two, the counts of sending are

                rounds       path bytes          messages         sent bytes
    ring        2 (p − 1)    2 n (p − 1) / p     2 p (p − 1)      2 n (p − 1)
    tree        2 log₂ p     2 n log₂ p          2 (p − 1)        2 n (p − 1)
    doubling    log₂ p       n log₂ p            p log₂ p         n p log₂ p
    server      2            2 n (p − 1)         2 (p − 1)        2 n (p − 1)

Source: R. Thakur, R. Rabenseifner, W. Gropp 2005, doi:10.1177/1094342005051521. The lanes are an addition of this
course.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """The rounds, messages and bytes of one all-reduce. The *path* is what the busiest rank does, round after round.

    Attributes:
        rounds: The rounds on the path.
        path_bytes: The bytes that are sent or received on the path.
        messages: The messages of all ranks together.
        sent_bytes: The bytes that all ranks send together.
    """

    rounds: int
    path_bytes: float
    messages: int
    sent_bytes: float


def counts(name: str, p: int, n: float, node_size: int) -> Counts:
    """Return the counts of an all-reduce in closed form.

    Args:
        name: A name from ``FORMULAS``, or hierarchical.
        p: The number of ranks.
        n: The bytes of the whole tensor. The formulas are exact if p divides the number of values.
        node_size: The number of ranks on a node, for the hierarchical all-reduce.

    Returns:
        The counts of all ranks.
    """
    if name == "hierarchical":
        return hierarchical(p, n, node_size)
    return FORMULAS[name](p, n)


def ring(p: int, n: float) -> Counts:
    """Return the counts of the ring: a reduce-scatter and an all-gather, in p − 1 rounds each.

    In each round, every rank sends a chunk of n / p bytes.
    """
    rounds = 2 * (p - 1)
    return Counts(rounds, path_bytes=rounds * n / p, messages=p * rounds, sent_bytes=rounds * n)


def tree(p: int, n: float) -> Counts:
    """Return the counts of the tree: every rank but rank 0 sends n bytes once on the way up, and receives them once."""
    depth = (p - 1).bit_length()  # log₂ p, rounded up
    messages = 2 * (p - 1)
    return Counts(rounds=2 * depth, path_bytes=2 * depth * n, messages=messages, sent_bytes=messages * n)


def server(p: int, n: float) -> Counts:
    """Return the counts of the all-reduce through rank 0, which receives and sends all messages."""
    messages = 2 * (p - 1)
    return Counts(rounds=2, path_bytes=messages * n, messages=messages, sent_bytes=messages * n)


def doubling(p: int, n: float) -> Counts:
    """Return the counts of recursive doubling, in which every rank of the core sends n bytes in each round."""
    depth = p.bit_length() - 1  # log₂ p, rounded down
    core_size = 2**depth
    n_extra = p - core_size
    rounds = depth
    if n_extra > 0:
        rounds += 2  # one before the core's rounds, and one after them
    messages = core_size * depth + 2 * n_extra
    return Counts(rounds, path_bytes=rounds * n, messages=messages, sent_bytes=messages * n)


def hierarchical(p: int, n: float, node_size: int) -> Counts:
    """Return the counts of a tree all-reduce in each node, and of a ring all-reduce of the nodes."""
    n_full_nodes, n_remaining_ranks = divmod(p, node_size)
    node_sizes = [node_size] * n_full_nodes
    if n_remaining_ranks > 0:
        node_sizes.append(n_remaining_ranks)
    trees = [tree(size, n) for size in node_sizes]
    nodes = ring(len(node_sizes), n)
    # The trees of all nodes run at the same time, so the longest path counts once, and the totals add up.
    return Counts(
        rounds=max(node.rounds for node in trees) + nodes.rounds,
        path_bytes=max(node.path_bytes for node in trees) + nodes.path_bytes,
        messages=sum(node.messages for node in trees) + nodes.messages,
        sent_bytes=sum(node.sent_bytes for node in trees) + nodes.sent_bytes,
    )


FORMULAS: Mapping[str, Callable[[int, float], Counts]] = {
    "ring": ring,
    "tree": tree,
    "server": server,
    "doubling": doubling,
}


@dataclass(frozen=True)
class Prices:
    """The parameters α and 1/β of a machine, and the number of messages that it carries at once.

    Attributes:
        message_s: The latency α of a message, in seconds.
        byte_s: The seconds 1/β to send one byte.
        lanes: The number of messages that run at the same time without slowing each other down.
    """

    message_s: float
    byte_s: float
    lanes: float

    def seconds(self, all_reduce: Counts) -> float:
        """Return the predicted time of an all-reduce with these counts."""
        messages = max(all_reduce.rounds, all_reduce.messages / self.lanes)
        n_bytes = max(all_reduce.path_bytes, all_reduce.sent_bytes / self.lanes)
        return self.message_s * messages + self.byte_s * n_bytes
