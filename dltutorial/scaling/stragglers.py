"""The slowest of many: what a step that waits for all ranks loses to the spread of their times.

In: how many ranks wait for each other. Out: by how many standard deviations the slowest of them is expected to lie
above the mean. The mean of the largest of n values is an *order statistic*: it grows without bound, though slowly.
Source: David and Nagaraja, Order Statistics, 3rd edition (2003), chapters 3 and 4. Plain NumPy, no torch.

Legend: P numbers of ranks, X points of an integral.
"""

import math

import numpy as np

SHAPES = ("normal", "exponential")  # chips that differ a little; a disturbance now and then
_X = np.linspace(-9.0, 9.0, 721)  # the integrand is smooth and vanishes at both ends, so a plain sum is exact enough
_LOG_NORMAL_X = np.log([0.5 * math.erfc(-x / math.sqrt(2)) for x in _X])


def expected_max(ranks_P: float | np.ndarray, shape: str = "normal") -> np.ndarray:
    """Mean of the largest of P values, in standard deviations above their mean; 0 for one. ``shape``: of ``SHAPES``."""
    ranks = np.atleast_1d(np.asarray(ranks_P, dtype=float))
    nodes = np.unique(np.r_[np.arange(1, 33), np.geomspace(1, ranks.max(), 128)])  # smooth in log P: interpolate
    found = np.interp(np.log(ranks), np.log(nodes), {"normal": _normal, "exponential": _exponential}[shape](nodes))
    return np.maximum(found, 0.0).reshape(np.shape(ranks_P))


def _normal(ranks_P: np.ndarray) -> np.ndarray:
    """∫ x d(Φ(x)^P), by parts: the upper end minus the area below Φ^P."""
    below_PX = np.exp(ranks_P[:, None] * _LOG_NORMAL_X)
    return _X[-1] - (_X[1] - _X[0]) * (below_PX.sum(1) - 0.5 * (below_PX[:, 0] + below_PX[:, -1]))


def _exponential(ranks_P: np.ndarray) -> np.ndarray:
    """1 + 1/2 + … + 1/P, minus the mean; the asymptotic series is exact to 1e-9 from P = 32 on."""
    series = np.log(ranks_P) + np.euler_gamma + 1 / (2 * ranks_P) - 1 / (12 * ranks_P**2)
    exact = np.r_[0.0, np.cumsum(1 / np.arange(1, 33))]
    return np.where(ranks_P <= 32, exact[np.minimum(ranks_P, 32).astype(int)], series) - 1
