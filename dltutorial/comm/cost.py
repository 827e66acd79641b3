"""The number of rounds, messages and bytes of each collective in closed form, and a model of its time.

Inputs are the name of a collective, the number p of ranks and the number n of bytes. ``counts`` returns the numbers
that the ``Traffic`` of all ranks counts while the collective runs. ``Prices.seconds`` computes the time in seconds from
them, by the α–β–γ model:

    T = α · max(rounds, messages / lanes)
      + 1/β · max(path bytes, sent bytes / lanes)
      + γ · max(path reduced bytes, reduced bytes / lanes)

α is the latency of one message, β is the bandwidth, and γ is the time to add one byte. A *lane* carries one message at
a time. On a cluster each rank has its own link, so there are as many lanes as ranks, and the longest path determines
the time, as in textbooks. Ranks on one CPU share its cores and its memory. There is one lane, and the messages of all
ranks add up.

Copies of small tensors are faster, because they fit into the cache. Therefore a machine is fitted in two regimes, one
for small and one for large tensors.

Source: R. Thakur, R. Rabenseifner, W. Gropp 2005, doi:10.1177/1094342005051521. The lanes are an addition of this
course.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np


@dataclass(frozen=True)
class Counts:
    """The rounds, messages and bytes of one collective.

    Attributes:
        rounds: The rounds of the rank that has most of them.
        path_bytes: The bytes that this rank sends or receives in all rounds, one round after the other.
        path_reduced_bytes: The bytes that this rank adds.
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
        name: A name from ``stopwatch.OURS``.
        p: The number of ranks.
        n: The bytes of the whole tensor. The formulas are exact if p divides the number of values.
        node_size: The number of ranks on a node, for the hierarchical all-reduce. With 0, all ranks are on one node.

    Returns:
        The counts of all ranks.

    Raises:
        ValueError: There is no formula for this name.
    """
    if name == "hierarchical":
        return _hierarchical(p, n, node_size or p)
    if name not in _FORMULAS:
        raise ValueError(f"no formula for {name!r}")
    return _FORMULAS[name](p, n)


def _tree_depth(p: int) -> int:
    """Return log₂ p, rounded up."""
    return (p - 1).bit_length()


def _broadcast(p: int, n: float) -> Counts:
    depth = _tree_depth(p)
    return Counts(rounds=depth, path_bytes=depth * n, messages=p - 1, sent_bytes=(p - 1) * n)


def _reduce(p: int, n: float) -> Counts:
    sums = Counts(path_reduced_bytes=_tree_depth(p) * n, reduced_bytes=(p - 1) * n)
    return _broadcast(p, n) + sums


def _all_gather(p: int, n: float) -> Counts:
    return Counts(rounds=p - 1, path_bytes=(p - 1) * n / p, messages=p * (p - 1), sent_bytes=(p - 1) * n)


def _reduce_scatter(p: int, n: float) -> Counts:
    sums = Counts(path_reduced_bytes=(p - 1) * n / p, reduced_bytes=(p - 1) * n)
    return _all_gather(p, n) + sums


def _ring(p: int, n: float) -> Counts:
    return _reduce_scatter(p, n) + _all_gather(p, n)


def _tree(p: int, n: float) -> Counts:
    return _reduce(p, n) + _broadcast(p, n)


def _server(p: int, n: float) -> Counts:
    workers = p - 1
    return Counts(
        rounds=2 if workers > 0 else 0,
        path_bytes=2 * workers * n,
        path_reduced_bytes=workers * n,
        messages=2 * workers,
        sent_bytes=2 * workers * n,
        reduced_bytes=workers * n,
    )


def _doubling(p: int, n: float) -> Counts:
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


def _hierarchical(p: int, n: float, node_size: int) -> Counts:
    n_full_nodes, n_remaining_ranks = divmod(p, node_size)
    node_sizes = [node_size] * n_full_nodes
    if n_remaining_ranks > 0:
        node_sizes.append(n_remaining_ranks)
    trees = [_tree(size, n) for size in node_sizes]
    # The trees of all nodes run at the same time, so the longest path counts once, and the totals add up.
    all_trees = Counts(
        rounds=max(tree.rounds for tree in trees),
        path_bytes=max(tree.path_bytes for tree in trees),
        path_reduced_bytes=max(tree.path_reduced_bytes for tree in trees),
        messages=sum(tree.messages for tree in trees),
        sent_bytes=sum(tree.sent_bytes for tree in trees),
        reduced_bytes=sum(tree.reduced_bytes for tree in trees),
    )
    return all_trees + _ring(len(node_sizes), n)


_FORMULAS: Mapping[str, Callable[[int, float], Counts]] = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "ring": _ring,
    "tree": _tree,
    "server": _server,
    "doubling": _doubling,
}

Sample = tuple[int, Counts, float]  # bytes of the tensor, counts of its collective, measured seconds


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

    def seconds(self, taken: Counts) -> float:
        """Return the predicted time of a collective with these counts."""
        prices_3 = (self.message_s, self.byte_s, self.reduced_byte_s)
        return float(_terms(taken, self.lanes) @ prices_3)


@dataclass(frozen=True)
class Regimes:
    """The prices of small tensors, of at most ``kink_bytes``, and of large tensors, which do not fit into the cache."""

    small: Prices
    large: Prices
    kink_bytes: int

    def seconds(self, n_bytes: float, taken: Counts) -> float:
        """Return the predicted time for a tensor of ``n_bytes``."""
        prices = self.small if n_bytes <= self.kink_bytes else self.large
        return prices.seconds(taken)

    def residuals(self, samples: Sequence[Sample]) -> np.ndarray:
        """Return the relative error of the prediction, predicted / measured − 1, for each sample."""
        errors = []
        for n_bytes, taken, measured_s in samples:
            predicted_s = self.seconds(n_bytes, taken)
            errors.append(predicted_s / measured_s - 1)
        return np.array(errors)


def fit(samples: Sequence[Sample], lanes: float = 1, message_s: float | None = None) -> Prices:
    """Fit the prices to measured times, by least squares with no negative price.

    The squares are those of *relative* errors, so short times count as much as long ones.

    Args:
        samples: The measurements.
        lanes: The lanes of the machine.
        message_s: The latency α, if it is known. The default fits it, too.

    Returns:
        The prices with the least error.
    """
    rows = [_terms(taken, lanes) / measured_s for _, taken, measured_s in samples]
    terms_M3 = np.stack(rows)
    targets_M = np.ones(len(samples))
    if message_s is None:
        message_s, byte_s, reduced_byte_s = _nnls(terms_M3, targets_M)
    else:
        targets_M = targets_M - message_s * terms_M3[:, 0]
        byte_s, reduced_byte_s = _nnls(terms_M3[:, 1:], targets_M)
    return Prices(message_s, byte_s, reduced_byte_s, lanes)


def fit_regimes(samples: Sequence[Sample], lanes: float = 1) -> Regimes:
    """Fit small and large tensors separately, and choose the limit between them that gives the least error.

    Both regimes get at least two sizes. The latency α is fitted to the small tensors only, because the time of large
    tensors hardly depends on it.

    Args:
        samples: The measurements.
        lanes: The lanes of the machine.

    Returns:
        The prices of both regimes.

    Raises:
        ValueError: There are fewer than four sizes.
    """
    sizes_bytes = sorted({n_bytes for n_bytes, *_ in samples})
    if len(sizes_bytes) < 4:
        raise ValueError(f"two regimes need at least four sizes, two in each; there are {len(sizes_bytes)}")
    candidates = []
    for kink_bytes in sizes_bytes[1:-2]:
        small_samples = [sample for sample in samples if sample[0] <= kink_bytes]
        large_samples = [sample for sample in samples if sample[0] > kink_bytes]
        small = fit(small_samples, lanes)
        large = fit(large_samples, lanes, small.message_s)
        candidates.append(Regimes(small, large, kink_bytes))
    return min(candidates, key=lambda regimes: rms(regimes.residuals(samples)))


def rms(residuals: np.ndarray) -> float:
    """Return the root mean square, which is the typical relative error."""
    return float(np.sqrt(np.mean(np.square(residuals))))


def _terms(taken: Counts, lanes: float) -> np.ndarray:
    """Return the factors of α, 1/β and γ: the longest path, or the total over the lanes if that is more."""
    path_3, total_3 = np.split(np.array(astuple(taken)), 2)
    return np.maximum(path_3, total_3 / lanes)


def _nnls(terms_MK: np.ndarray, targets_M: np.ndarray) -> list[float]:
    """Return the K prices, none negative, whose products with the terms are nearest to the targets."""
    from scipy.optimize import nnls

    scale_K = np.maximum(terms_MK.max(0), 1e-300)  # the columns differ by many orders of magnitude
    scaled_prices_K, _ = nnls(terms_MK / scale_K, targets_M)
    return (scaled_prices_K / scale_K).tolist()
