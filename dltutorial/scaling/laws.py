"""The laws of scaling: how much faster P ranks can be than one, how that is reported, and what the slowest rank costs.

In: numbers of ranks and times, as numbers or arrays. Out: speed-ups, efficiencies, the serial share that fits measured
times, and by how much the slowest of P ranks is expected to lag. Plain NumPy, no torch.

*Strong*: the whole problem is fixed, each rank gets 1/P of it. *Weak*: the problem of each rank is fixed, the whole
grows with P. Sources: Amdahl 1967 (doi:10.1145/1465482.1465560), Gustafson 1988 (doi:10.1145/42411.42415), MLPerf HPC
(Farrell et al. 2021, arXiv:2110.11466) for the two metrics; David and Nagaraja, Order Statistics, 2003.

Legend: P numbers of ranks, X points of an integral.
"""

import math
from collections.abc import Sequence

import numpy as np

from dltutorial.errors import CourseError

Numbers = float | Sequence[float] | np.ndarray
SHAPES = ("normal", "exponential")  # chips that differ a little; a disturbance now and then
_X = np.linspace(-9.0, 9.0, 721)  # the integrand is smooth and vanishes at both ends, so a plain sum is exact enough
_LOG_NORMAL_X = np.log([0.5 * math.erfc(-x / math.sqrt(2)) for x in _X])


def strong_efficiency(time_P_s: Numbers, ranks_P: Numbers, one_s: float) -> np.ndarray:
    """Share of the ideal speed-up that is reached when the whole problem is fixed: T(1) / (P T(P))."""
    return one_s / (np.asarray(ranks_P) * np.asarray(time_P_s))


def weak_efficiency(time_P_s: Numbers, one_s: float) -> np.ndarray:
    """Share of the ideal throughput when each rank's problem is fixed: T(1) / T(P)."""
    return one_s / np.asarray(time_P_s)


def amdahl(ranks_P: Numbers, serial_share: float) -> np.ndarray:
    """Speed-up of a fixed problem of which a share cannot be divided: 1 / (s + (1 − s) / P); never above 1 / s."""
    return 1 / (serial_share + (1 - serial_share) / np.asarray(ranks_P, dtype=float))


def gustafson(ranks_P: Numbers, serial_share: float) -> np.ndarray:
    """Speed-up of a problem that grows with P, its serial share measured on P ranks: s + (1 − s) P; without bound."""
    return serial_share + (1 - serial_share) * np.asarray(ranks_P, dtype=float)


def fit_amdahl(ranks_P: Numbers, time_P_s: Numbers) -> tuple[float, float]:
    """(serial share, rms residual over T(1)) of strong scaling: T(P) / T(1) = s + (1 − s) / P, by least squares."""
    ranks, ratio = _over_one(ranks_P, time_P_s)
    return _fit(ratio - 1 / ranks, 1 - 1 / ranks)


def fit_gustafson(ranks_P: Numbers, time_P_s: Numbers) -> tuple[float, float]:
    """(serial share, rms residual) of weak scaling: T(1) / T(P) = s / P + 1 − s, by least squares."""
    ranks, ratio = _over_one(ranks_P, time_P_s)
    return _fit(1 - 1 / ratio, 1 - 1 / ranks)


def _fit(y: np.ndarray, x: np.ndarray) -> tuple[float, float]:
    """y = s x without a constant; s is kept between 0 and 1."""
    share = float(np.clip((x @ y) / (x @ x), 0.0, 1.0))
    return share, float(np.sqrt(np.mean(np.square(share * x - y))))


def _over_one(ranks_P: Numbers, time_P_s: Numbers) -> tuple[np.ndarray, np.ndarray]:
    ranks, times = np.asarray(ranks_P, dtype=float), np.asarray(time_P_s, dtype=float)
    if not (ranks == 1).any() or not (ranks > 1).any():
        raise CourseError("a law of scaling is fitted to the time of one rank and to others; measure 1 and at least 2")
    return ranks, times / times[ranks == 1].mean()


def time_to_train_s(steps: int, step_s: Numbers, before_s: float = 0.0) -> np.ndarray:
    """MLPerf HPC's strong-scaling metric: from the start, staging of data included, to the target quality."""
    return before_s + steps * np.asarray(step_s)


def models_per_hour(gpus: int, gpus_per_model: int, train_s: float) -> float:
    """MLPerf HPC's weak-scaling metric: models trained at once on the whole machine, per hour."""
    return gpus // gpus_per_model * 3600 / train_s


def expected_max(ranks_P: Numbers, shape: str = "normal") -> np.ndarray:
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
