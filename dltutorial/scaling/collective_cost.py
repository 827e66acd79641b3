"""The number of rounds, messages and bytes of each collective in closed form, and a model of its time.

Inputs are the name of a collective, the number p of ranks and the number n of bytes. ``counts`` returns the numbers
of rounds, messages and bytes. ``Prices.seconds`` computes the time in seconds from them, by the α–β–γ model:

    T = α · max(rounds, messages / lanes)
      + 1/β · max(path bytes, sent bytes / lanes)
      + γ · max(path reduced bytes, reduced bytes / lanes)

α is the latency of one message, β is the bandwidth, and γ is the time to add one byte. A *lane* carries one message at
a time. On a cluster each rank has its own link, so there are as many lanes as ranks, and the longest path determines
the time, as in textbooks. Ranks on one CPU share its cores and its memory. There is one lane, and the messages of all
ranks add up.

For an all-reduce of n bytes on p ranks, if p is a power of two, the counts of sending are

                rounds       path bytes          messages         sent bytes
    ring        2 (p − 1)    2 n (p − 1) / p     2 p (p − 1)      2 n (p − 1)
    tree        2 log₂ p     2 n log₂ p          2 (p − 1)        2 n (p − 1)
    doubling    log₂ p       n log₂ p            p log₂ p         n p log₂ p
    server      2            2 n (p − 1)         2 (p − 1)        2 n (p − 1)

Source: R. Thakur, R. Rabenseifner, W. Gropp 2005, doi:10.1177/1094342005051521. The lanes are an addition of this
course.
"""

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass

import numpy as np


@dataclass(frozen=True)
class Counts:
    """The rounds, messages and bytes of one collective. The *path* is what the busiest rank does, round after round.

    Attributes:
        rounds: The rounds on the path.
        path_bytes: The bytes that are sent or received on the path.
        path_reduced_bytes: The bytes that are added on the path.
        messages: The messages of all ranks together.
        sent_bytes: The bytes that all ranks send together.
        reduced_bytes: The bytes that all ranks add together.
    """

    rounds: float = 0
    path_bytes: float = 0
    path_reduced_bytes: float = 0
    messages: float = 0
    sent_bytes: float = 0
    reduced_bytes: float = 0

    def __add__(self, other: "Counts") -> "Counts":
        """Return the counts of two collectives of which one runs after the other."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Counts(*(a + b for a, b in pairs))


def counts(name: str, p: int, n: float, node_size: int = 0) -> Counts:
    """Return the counts of a collective in closed form.

    Args:
        name: A name from ``FORMULAS``, or hierarchical.
        p: The number of ranks.
        n: The bytes of the whole tensor. The formulas are exact if p divides the number of values.
        node_size: The number of ranks on a node, for the hierarchical all-reduce. With 0, all ranks are on one node.

    Returns:
        The counts of all ranks.
    """
    if name == "hierarchical":
        return hierarchical(p, n, node_size or p)
    return FORMULAS[name](p, n)


def tree_depth(p: int) -> int:
    """Return log₂ p, rounded up."""
    return (p - 1).bit_length()


def broadcast(p: int, n: float) -> Counts:
    """Return the counts of a tree: each rank but rank 0 receives n bytes once."""
    depth = tree_depth(p)
    return Counts(rounds=depth, path_bytes=depth * n, messages=p - 1, sent_bytes=(p - 1) * n)


def reduce(p: int, n: float) -> Counts:
    """Return the counts of a broadcast in the other direction, in which each received tensor is added."""
    sums = Counts(path_reduced_bytes=tree_depth(p) * n, reduced_bytes=(p - 1) * n)
    return broadcast(p, n) + sums


def all_gather(p: int, n: float) -> Counts:
    """Return the counts of a ring: in p − 1 rounds every rank sends a chunk of n / p bytes."""
    return Counts(rounds=p - 1, path_bytes=(p - 1) * n / p, messages=p * (p - 1), sent_bytes=(p - 1) * n)


def reduce_scatter(p: int, n: float) -> Counts:
    """Return the counts of the same ring, in which each received chunk is added."""
    sums = Counts(path_reduced_bytes=(p - 1) * n / p, reduced_bytes=(p - 1) * n)
    return all_gather(p, n) + sums


def ring(p: int, n: float) -> Counts:
    """Return the counts of the ring all-reduce."""
    return reduce_scatter(p, n) + all_gather(p, n)


def tree(p: int, n: float) -> Counts:
    """Return the counts of the tree all-reduce."""
    return reduce(p, n) + broadcast(p, n)


def server(p: int, n: float) -> Counts:
    """Return the counts of the all-reduce through rank 0, which receives and sends all messages."""
    workers = p - 1
    return Counts(
        rounds=2 if workers > 0 else 0,
        path_bytes=2 * workers * n,
        path_reduced_bytes=workers * n,
        messages=2 * workers,
        sent_bytes=2 * workers * n,
        reduced_bytes=workers * n,
    )


def doubling(p: int, n: float) -> Counts:
    """Return the counts of recursive doubling, in which every rank of the core sends n bytes in each round."""
    depth = p.bit_length() - 1  # log₂ p, rounded down
    core_size = 2**depth
    n_extra = p - core_size
    extra_rounds = 1 if n_extra > 0 else 0  # one before the core's rounds, and one after them
    rounds = depth + 2 * extra_rounds
    messages = core_size * depth + 2 * n_extra
    return Counts(
        rounds=rounds,
        path_bytes=rounds * n,
        path_reduced_bytes=(depth + extra_rounds) * n,
        messages=messages,
        sent_bytes=messages * n,
        reduced_bytes=(core_size * depth + n_extra) * n,
    )


def hierarchical(p: int, n: float, node_size: int) -> Counts:
    """Return the counts of a tree all-reduce in each node, and of a ring all-reduce of the nodes."""
    n_full_nodes, n_remaining_ranks = divmod(p, node_size)
    node_sizes = [node_size] * n_full_nodes
    if n_remaining_ranks > 0:
        node_sizes.append(n_remaining_ranks)
    trees = [tree(size, n) for size in node_sizes]
    # The trees of all nodes run at the same time, so the longest path counts once, and the totals add up.
    all_trees = Counts(
        rounds=max(node.rounds for node in trees),
        path_bytes=max(node.path_bytes for node in trees),
        path_reduced_bytes=max(node.path_reduced_bytes for node in trees),
        messages=sum(node.messages for node in trees),
        sent_bytes=sum(node.sent_bytes for node in trees),
        reduced_bytes=sum(node.reduced_bytes for node in trees),
    )
    return all_trees + ring(len(node_sizes), n)


FORMULAS: Mapping[str, Callable[[int, float], Counts]] = {
    "broadcast": broadcast,
    "reduce": reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "ring": ring,
    "tree": tree,
    "server": server,
    "doubling": doubling,
}


@dataclass(frozen=True)
class Prices:
    """The parameters α, 1/β and γ of a machine, and the number of messages that it carries at once.

    Attributes:
        message_s: The latency α of a message, in seconds.
        byte_s: The seconds 1/β to send one byte.
        reduced_byte_s: The seconds γ to add one byte.
        lanes: The number of messages that run at the same time without slowing each other down.
    """

    message_s: float
    byte_s: float
    reduced_byte_s: float
    lanes: float = 1

    def seconds(self, collective: Counts) -> float:
        """Return the predicted time of a collective with these counts."""
        prices_3 = (self.message_s, self.byte_s, self.reduced_byte_s)
        return float(_terms(collective, self.lanes) @ prices_3)


def _terms(collective: Counts, lanes: float) -> np.ndarray:
    """Return the factors of α, 1/β and γ: the longest path, or the total over the lanes if that is more."""
    path_3 = np.array([collective.rounds, collective.path_bytes, collective.path_reduced_bytes])
    total_3 = np.array([collective.messages, collective.sent_bytes, collective.reduced_bytes])
    return np.maximum(path_3, total_3 / lanes)
