"""The laws of scaling: how much faster P ranks can be than one, and how that is reported.

In: numbers of ranks and times, as numbers or arrays. Out: speed-ups, efficiencies, and the parameters of Amdahl's and
Gustafson's laws fitted to measured times. Plain NumPy, no torch.

*Strong*: the whole problem is fixed, each rank gets 1/P of it. *Weak*: the problem of each rank is fixed, the whole
grows with P. Sources: Amdahl 1967 (doi:10.1145/1465482.1465560), Gustafson 1988 (doi:10.1145/42411.42415), MLPerf HPC
(Farrell et al. 2021, arXiv:2110.11466) for the two metrics at the end.

Legend: P numbers of ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dltutorial.errors import CourseError

Numbers = float | Sequence[float] | np.ndarray


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


@dataclass(frozen=True)
class Fit:
    """A law fitted by least squares.

    Attributes:
        serial_share: the parameter, between 0 and 1.
        residuals: fitted minus measured, in the unit that was fitted, relative to the time of one rank.
    """

    serial_share: float
    residuals: tuple[float, ...]

    @property
    def rms(self) -> float:
        """Root mean square of the residuals."""
        return float(np.sqrt(np.mean(np.square(self.residuals))))


def fit_amdahl(ranks_P: Numbers, time_P_s: Numbers) -> Fit:
    """The serial share of a strong-scaling measurement: T(P) / T(1) = s + (1 − s) / P, linear in s.

    Raises:
        CourseError: there is no time of one rank, no other, or the two do not match.
    """
    ranks, times = _measured(ranks_P, time_P_s)
    ratio = times / times[ranks == 1].mean()
    return _fit(ratio - 1 / ranks, 1 - 1 / ranks)


def fit_gustafson(ranks_P: Numbers, time_P_s: Numbers) -> Fit:
    """The serial share of a weak-scaling measurement: the scaled speed-up P T(1) / T(P) = s + (1 − s) P.

    Divided by P, so that every measurement weighs the same.

    Raises:
        CourseError: there is no time of one rank, no other, or the two do not match.
    """
    ranks, times = _measured(ranks_P, time_P_s)
    efficiency = times[ranks == 1].mean() / times
    return _fit(1 - efficiency, 1 - 1 / ranks)


def _fit(y: np.ndarray, x: np.ndarray) -> Fit:
    """y = s x without a constant; s is kept between 0 and 1."""
    share = float(np.clip((x @ y) / (x @ x), 0.0, 1.0))
    return Fit(share, tuple((share * x - y).tolist()))


def _measured(ranks_P: Numbers, time_P_s: Numbers) -> tuple[np.ndarray, np.ndarray]:
    ranks, times = np.asarray(ranks_P, dtype=float), np.asarray(time_P_s, dtype=float)
    if ranks.shape != times.shape or ranks.ndim != 1:
        raise CourseError(f"{ranks.size} numbers of ranks and {times.size} times; give one time for each number")
    if not (ranks == 1).any() or not (ranks > 1).any():
        raise CourseError("a law of scaling is fitted to the time of one rank and to others; measure 1 and at least 2")
    return ranks, times


def time_to_train_s(steps: int, step_s: float, before_s: float = 0.0) -> float:
    """MLPerf HPC's strong-scaling metric: from the start, staging of data included, to the target quality."""
    return before_s + steps * step_s


def models_per_hour(gpus: int, gpus_per_model: int, train_s: float) -> float:
    """MLPerf HPC's weak-scaling metric: models trained at once on the whole machine, per hour.

    Raises:
        CourseError: not one model fits.
    """
    if not 0 < gpus_per_model <= gpus:
        raise CourseError(f"a model on {gpus_per_model} GPUs does not fit on {gpus}; take 1 to {gpus}")
    return gpus // gpus_per_model * 3600 / train_s
