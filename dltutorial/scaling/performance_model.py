"""A performance model by regression: the logarithm of a time as a sum of what each factor adds.

In: rows of a table, the column with the times, the columns that are factors. Out: what each level of each factor
multiplies the time by, how much of the variance that explains, and the residuals. Plain NumPy, no torch.

    log T = constant + architecture + size + workload + threads

is the model with which Yin (OLCF 2018, ``reference/summit_bdas_walltimes.csv``; arXiv:1811.02287) compared Summit with
its forerunner. A sum of logarithms is a product of factors: each is taken to act alike whatever the others are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FittedFactors:
    """A fitted model.

    Attributes:
        factors: factor → level → what it multiplies the time by; the first level met counts as 1.
        base_s: time with every factor at 1.
        residuals: log(measured) − log(fitted), row by row.
        r2: share of the variance of log T that the model explains.
    """

    factors: Mapping[str, Mapping[str, float]]
    base_s: float
    residuals: np.ndarray
    r2: float

    @property
    def typical_error(self) -> float:
        """A factor by which a fitted time is typically off: exp of the root mean square residual."""
        return float(np.exp(np.sqrt(np.mean(np.square(self.residuals)))))


def fit(rows: Sequence[Mapping[str, str]], time: str, names: Sequence[str]) -> FittedFactors:
    """Least squares on the logarithm of the column ``time``, with the columns ``names`` as factors.

    Raises:
        ValueError: too few rows, or a factor that another one determines.
    """
    levels = {name: list(dict.fromkeys(row[name] for row in rows)) for name in names}
    columns = [(name, level) for name in names for level in levels[name][1:]]
    design = np.array([[1.0, *(float(row[name] == level) for name, level in columns)] for row in rows])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        raise ValueError(f"{len(rows)} rows cannot tell {design.shape[1]} parameters apart; measure more combinations")
    logs = np.log([float(row[time]) for row in rows])
    found, *_ = np.linalg.lstsq(design, logs, rcond=None)
    effects = dict(zip(columns, np.exp(found[1:]).tolist(), strict=True))
    factors = {name: {level: effects.get((name, level), 1.0) for level in levels[name]} for name in names}
    residuals = logs - design @ found
    return FittedFactors(factors, float(np.exp(found[0])), residuals, float(1 - residuals.var() / logs.var()))
