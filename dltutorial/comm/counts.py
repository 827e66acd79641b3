"""How many rounds, messages and bytes a collective takes, in closed form.

In: a collective's name, the number of ranks p, bytes n. Out: ``Counts``, the very numbers that a communicator's
``Traffic`` counts while it runs (``tally`` brings those into the same form). ``cost`` prices them.

Source: R. Thakur, R. Rabenseifner, W. Gropp 2005, doi:10.1177/1094342005051521.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from dltutorial.comm.communicator import Traffic
from dltutorial.errors import CourseError


@dataclass(frozen=True)
class Counts:
    """What one collective takes: of the rank that is longest busy, and of all ranks together.

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

    @property
    def paths(self) -> tuple[float, float, float]:
        """Rounds, bytes and reduced bytes of the busiest rank."""
        return self.rounds, self.path_bytes, self.path_reduced_bytes

    @property
    def totals(self) -> tuple[float, float, float]:
        """Messages, bytes and reduced bytes of all ranks."""
        return self.messages, self.sent_bytes, self.reduced_bytes


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
        CourseError: an unknown name, or no ranks.
    """
    if p < 1:
        raise CourseError(f"p={p}: a collective needs at least 1 rank")
    if name == "hierarchical":
        return _hierarchical(p, n, node_size or p)
    formulas = {"broadcast": _broadcast, "reduce": _reduce, "reduce_scatter": _reduce_scatter, "server": _server}
    formulas |= {"all_gather": _all_gather, "doubling": _doubling}
    formulas |= {"ring": lambda p, n: _reduce_scatter(p, n) + _all_gather(p, n)}
    formulas |= {"tree": lambda p, n: _reduce(p, n) + _broadcast(p, n)}
    if name not in formulas:
        raise CourseError(f"no formula for {name!r}; there are: hierarchical, {', '.join(formulas)}")
    return formulas[name](p, n)


def _broadcast(p: int, n: float) -> Counts:
    depth = (p - 1).bit_length()  # log₂ p, rounded up
    return Counts(depth, depth * n, 0, p - 1, (p - 1) * n, 0)


def _reduce(p: int, n: float) -> Counts:
    depth = (p - 1).bit_length()
    return Counts(depth, depth * n, depth * n, p - 1, (p - 1) * n, (p - 1) * n)


def _all_gather(p: int, n: float) -> Counts:
    return Counts(p - 1, (p - 1) * n / p, 0, p * (p - 1), (p - 1) * n, 0)


def _reduce_scatter(p: int, n: float) -> Counts:
    return _all_gather(p, n) + Counts(0, 0, (p - 1) * n / p, 0, 0, (p - 1) * n)


def _server(p: int, n: float) -> Counts:
    rounds = 2 if p > 1 else 0
    return Counts(rounds, 2 * (p - 1) * n, (p - 1) * n, 2 * (p - 1), 2 * (p - 1) * n, (p - 1) * n)


def _doubling(p: int, n: float) -> Counts:
    depth = p.bit_length() - 1  # log₂ p, rounded down
    core, too_many = 2**depth, p - 2**depth
    odd = too_many > 0
    messages, sums = core * depth + 2 * too_many, core * depth + too_many
    return Counts(depth + 2 * odd, (depth + 2 * odd) * n, (depth + odd) * n, messages, messages * n, sums * n)


def _hierarchical(p: int, n: float, node_size: int) -> Counts:
    full, rest = divmod(p, node_size)
    kinds = {size: many for size, many in ((node_size, full), (rest, 1)) if size and many}  # nodes of each size
    nodes = {size: _reduce(size, n) + _broadcast(size, n) for size in kinds}
    ring = counts("ring", full + bool(rest), n)
    totals = [sum(kinds[size] * node.totals[which] for size, node in nodes.items()) for which in range(3)]
    return Counts(*max(node.paths for node in nodes.values()), *totals) + ring
