"""How many rounds, messages and bytes a collective takes, in closed form.

In: a collective's name, the number of ranks p, bytes n. Out: ``Counts``, the very numbers that a communicator's
``Traffic`` counts while it runs (``tally`` brings those into the same form). ``cost`` prices them.

Source: R. Thakur, R. Rabenseifner, W. Gropp 2005, doi:10.1177/1094342005051521.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from dltutorial.comm.communicator import Traffic


@dataclass(frozen=True)
class Counts:
    """What one collective takes: three figures of the rank that is longest busy, three of all ranks together.

    Attributes:
        rounds, path_bytes, path_reduced_bytes: of the busiest rank, one exchange after the other.
        messages, sent_bytes, reduced_bytes: of all ranks together.
    """

    rounds: float = 0
    path_bytes: float = 0
    path_reduced_bytes: float = 0
    messages: float = 0
    sent_bytes: float = 0
    reduced_bytes: float = 0

    def __add__(self, other: "Counts") -> "Counts":
        """One after the other."""
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def tally(traffic: Iterable[Traffic]) -> Counts:
    """The counts of a run, from the counters of all its ranks."""
    ranks = list(traffic)
    return Counts(
        *(max(getattr(rank, name) for rank in ranks) for name in ("rounds", "path_bytes", "reduced_bytes")),
        *(sum(getattr(rank, name) for rank in ranks) for name in ("messages", "sent_bytes", "reduced_bytes")),
    )


def counts(name: str, p: int, n: float, node_size: int = 0) -> Counts:
    """A collective's counts in closed form, for ``n`` bytes that p divides.

    Args:
        name: as in ``stopwatch.OURS``.
        p: number of ranks.
        n: bytes of the whole tensor.
        node_size: ranks on a node, for the hierarchical one; 0: all.

    Raises:
        ValueError: an unknown name.
    """
    depth = (p - 1).bit_length()  # log₂ p, rounded up
    match name:
        case "broadcast":
            return Counts(depth, depth * n, 0, p - 1, (p - 1) * n, 0)
        case "reduce":
            return Counts(depth, depth * n, depth * n, p - 1, (p - 1) * n, (p - 1) * n)
        case "all_gather":
            return Counts(p - 1, (p - 1) * n / p, 0, p * (p - 1), (p - 1) * n, 0)
        case "reduce_scatter":
            return counts("all_gather", p, n) + Counts(0, 0, (p - 1) * n / p, 0, 0, (p - 1) * n)
        case "ring":
            return counts("reduce_scatter", p, n) + counts("all_gather", p, n)
        case "tree":
            return counts("reduce", p, n) + counts("broadcast", p, n)
        case "server":
            rounds = 2 if p > 1 else 0
            return Counts(rounds, 2 * (p - 1) * n, (p - 1) * n, 2 * (p - 1), 2 * (p - 1) * n, (p - 1) * n)
        case "doubling":
            return _doubling(p, n)
        case "hierarchical":
            return _hierarchical(p, n, node_size or p)
    raise ValueError(f"no formula for {name!r}")


def _doubling(p: int, n: float) -> Counts:
    depth = p.bit_length() - 1  # log₂ p, rounded down
    core, too_many = 2**depth, p - 2**depth
    odd = too_many > 0
    messages, sums = core * depth + 2 * too_many, core * depth + too_many
    return Counts(depth + 2 * odd, (depth + 2 * odd) * n, (depth + odd) * n, messages, messages * n, sums * n)


def _hierarchical(p: int, n: float, node_size: int) -> Counts:
    full, rest = divmod(p, node_size)
    kinds = {size: many for size, many in ((node_size, full), (rest, 1)) if size and many}  # nodes of each size
    trees = {size: counts("tree", size, n) for size in kinds}
    path = max(astuple(tree)[:3] for tree in trees.values())
    total = [sum(kinds[size] * astuple(tree)[which] for size, tree in trees.items()) for which in (3, 4, 5)]
    return Counts(*path, *total) + counts("ring", full + bool(rest), n)
