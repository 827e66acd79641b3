"""What a collective costs: its counted rounds, messages and bytes, priced by latency, bandwidth and speed of adding.

In: ``Counts``. Out: seconds, by the α–β–γ model

    T = α max(rounds, messages / lanes) + max(path bytes, all bytes / lanes) / β + max(path sums, all sums / lanes) γ

A *lane* carries one message at a time. On a cluster each rank has a link of its own: as many lanes as ranks, and the
longest path counts, as in the textbooks. Ranks that share a processor share its cores and its memory: with one lane,
every message of every rank counts. Nor is time one line in n: copies that fit the cache are quicker, so a machine is
fitted in two regimes.

Source: R. Thakur, R. Rabenseifner, W. Gropp 2005, doi:10.1177/1094342005051521; lanes are this course's addition.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dltutorial.comm.counts import Counts

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

    def seconds(self, counts: Counts) -> float:
        """What the model predicts."""
        return float(_terms(counts, self.lanes) @ (self.message_s, self.byte_s, self.reduced_byte_s))


@dataclass(frozen=True)
class Regimes:
    """Prices of small tensors, up to ``kink_bytes``, and of larger ones, which do not fit the cache."""

    small: Prices
    large: Prices
    kink_bytes: int

    def seconds(self, n_bytes: float, counts: Counts) -> float:
        """What the model predicts for a tensor of ``n_bytes``."""
        return (self.small if n_bytes <= self.kink_bytes else self.large).seconds(counts)

    def with_lanes(self, lanes: float) -> "Regimes":
        """The same prices on a machine that carries more messages, or fewer, at once."""
        small, large = (dataclasses.replace(prices, lanes=lanes) for prices in (self.small, self.large))
        return Regimes(small, large, self.kink_bytes)

    def residuals(self, samples: Sequence[Sample]) -> np.ndarray:
        """Predicted over measured, minus 1, of each sample."""
        return np.array([self.seconds(n_bytes, counts) / measured_s - 1 for n_bytes, counts, measured_s in samples])


def fit(samples: Sequence[Sample], lanes: float = 1, message_s: float | None = None) -> Prices:
    """The prices, none negative, with the least squares of *relative* errors: short times count as much as long ones.

    Args:
        samples: what was measured.
        lanes: of the machine.
        message_s: α, if it is known already.
    """
    terms_M3 = np.stack([_terms(counts, lanes) / measured_s for _, counts, measured_s in samples])
    if message_s is None:
        message_s, byte_s, reduced_byte_s = _nnls(terms_M3, np.ones(len(samples)))
    else:
        byte_s, reduced_byte_s = _nnls(terms_M3[:, 1:], 1 - message_s * terms_M3[:, 0])
    return Prices(message_s, byte_s, reduced_byte_s, lanes)


def fit_regimes(samples: Sequence[Sample], lanes: float = 1) -> Regimes:
    """Two fits, split at the size that leaves the least error; each has at least two sizes.

    Small tensors tell α; in large ones it drowns, and is taken over from the small.

    Raises:
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


def _terms(counts: Counts, lanes: float) -> np.ndarray:
    """What α, 1/β and γ are multiplied by: the longest path, or all there is over the lanes, if that is more."""
    path_3, total_3 = np.split(np.array(dataclasses.astuple(counts)), 2)
    return np.maximum(path_3, total_3 / lanes)


def _nnls(terms: np.ndarray, wanted_M: np.ndarray) -> list[float]:
    """Prices of the terms by least squares, none negative; the columns brought to one scale first."""
    from scipy.optimize import nnls

    scale = np.maximum(terms.max(0), 1e-300)
    return (nnls(terms / scale, wanted_M)[0] / scale).tolist()
