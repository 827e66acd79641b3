"""What a collective takes, rounds, messages and bytes in closed form, and what that costs by three prices.

In: a collective's name, ranks, bytes. Out: ``Counts``, the very numbers that a communicator's ``Traffic`` counts while
it runs, of all ranks together; and from them seconds, by the α–β–γ model

    T = α max(rounds, messages / lanes) + max(path bytes, all bytes / lanes) / β + max(path sums, all sums / lanes) γ

A *lane* carries one message at a time. On a cluster each rank has a link of its own: as many lanes as ranks, and the
longest path counts, as in the textbooks. Ranks that share a processor share its cores and its memory: with one lane,
every message of every rank counts. Nor is time one line in n: copies that fit the cache are quicker, so a machine is
fitted in two regimes.

Source: R. Thakur, R. Rabenseifner, W. Gropp 2005, doi:10.1177/1094342005051521; lanes are this course's addition.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np


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


Sample = tuple[int, Counts, float]  # bytes of the tensor, what its collective takes, measured seconds


@dataclass(frozen=True)
class Prices:
    """A machine's α, 1/β and γ, and how many messages it carries at once.

    Attributes:
        message_s: α, seconds of a message, however small.
        byte_s: 1/β, seconds of a byte on its way.
        reduced_byte_s: γ, seconds of a byte added to another.
        lanes: messages under way at once without standing in each other's way.
    """

    message_s: float
    byte_s: float
    reduced_byte_s: float
    lanes: float = 1

    def seconds(self, taken: Counts) -> float:
        """What the model predicts."""
        return float(_terms(taken, self.lanes) @ (self.message_s, self.byte_s, self.reduced_byte_s))


@dataclass(frozen=True)
class Regimes:
    """Prices of small tensors, up to ``kink_bytes``, and of larger ones, which do not fit the cache."""

    small: Prices
    large: Prices
    kink_bytes: int

    def seconds(self, n_bytes: float, taken: Counts) -> float:
        """What the model predicts for a tensor of ``n_bytes``."""
        return (self.small if n_bytes <= self.kink_bytes else self.large).seconds(taken)

    def residuals(self, samples: Sequence[Sample]) -> np.ndarray:
        """Predicted over measured, minus 1, of each sample."""
        return np.array([self.seconds(n_bytes, taken) / measured_s - 1 for n_bytes, taken, measured_s in samples])


def fit(samples: Sequence[Sample], lanes: float = 1, message_s: float | None = None) -> Prices:
    """The prices, none negative, with the least squares of *relative* errors: short times count as much as long ones.

    Args:
        samples: what was measured.
        lanes: of the machine.
        message_s: α, if it is known already.
    """
    terms_M3 = np.stack([_terms(taken, lanes) / measured_s for _, taken, measured_s in samples])
    if message_s is None:
        message_s, byte_s, reduced_byte_s = _nnls(terms_M3, np.ones(len(samples)))
    else:
        byte_s, reduced_byte_s = _nnls(terms_M3[:, 1:], 1 - message_s * terms_M3[:, 0])
    return Prices(message_s, byte_s, reduced_byte_s, lanes)


def fit_regimes(samples: Sequence[Sample], lanes: float = 1) -> Regimes:
    """Two fits, split at the size that leaves the least error; each has at least two sizes.

    Small tensors tell α; in large ones it drowns, and is taken over from the small.
    ValueError: fewer than four sizes.
    """
    sizes = sorted({n_bytes for n_bytes, *_ in samples})
    if len(sizes) < 4:
        raise ValueError(f"two regimes need at least four sizes, two in each; there are {len(sizes)}")
    found = []
    for kink_bytes in sizes[1:-2]:
        small = fit([sample for sample in samples if sample[0] <= kink_bytes], lanes)
        large = fit([sample for sample in samples if sample[0] > kink_bytes], lanes, small.message_s)
        found.append(Regimes(small, large, kink_bytes))
    return min(found, key=lambda regimes: float((regimes.residuals(samples) ** 2).sum()))


def rms(residuals: np.ndarray) -> float:
    """Root mean square: the typical relative error."""
    return float(np.sqrt(np.mean(np.square(residuals))))


def _terms(taken: Counts, lanes: float) -> np.ndarray:
    """What α, 1/β and γ are multiplied by: the longest path, or all there is over the lanes, if that is more."""
    path_3, total_3 = np.split(np.array(astuple(taken)), 2)
    return np.maximum(path_3, total_3 / lanes)


def _nnls(terms: np.ndarray, wanted_M: np.ndarray) -> list[float]:
    """Prices of the terms by least squares, none negative; the columns brought to one scale first."""
    from scipy.optimize import nnls

    scale = np.maximum(terms.max(0), 1e-300)
    return (nnls(terms / scale, wanted_M)[0] / scale).tolist()
