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

from dltutorial.errors import CourseError


@dataclass(frozen=True)
class Model:
    """A fitted model.

    Attributes:
        base: the level of each factor that counts as 1.
        factors: factor → level → what it multiplies the time by.
        base_s: time with every factor at its base.
        residuals: log(measured) − log(fitted), row by row.
        r2: share of the variance of log T that the model explains.
        r2_adjusted: the same, with a charge for every parameter.
    """

    base: Mapping[str, str]
    factors: Mapping[str, Mapping[str, float]]
    base_s: float
    residuals: tuple[float, ...]
    r2: float
    r2_adjusted: float

    def predict_s(self, row: Mapping[str, str]) -> float:
        """The time of one combination of levels.

        Raises:
            CourseError: a level that the table did not have.
        """
        seconds = self.base_s
        for name, levels in self.factors.items():
            if row[name] not in levels:
                raise CourseError(f"{name} {row[name]!r} was not measured; there are: {', '.join(levels)}")
            seconds *= levels[row[name]]
        return seconds

    @property
    def typical_error(self) -> float:
        """A factor by which a fitted time is typically off: exp of the root mean square residual."""
        return float(np.exp(np.sqrt(np.mean(np.square(self.residuals)))))


def fit(rows: Sequence[Mapping[str, str]], time: str, names: Sequence[str]) -> Model:
    """Least squares on the logarithm; the first level met of each factor is its base.

    Args:
        rows: of a table, all values as text.
        time: the column with the times, all positive.
        names: the columns that are factors.

    Raises:
        CourseError: too few rows, or a factor that another one determines.
    """
    levels = {name: list(dict.fromkeys(row[name] for row in rows)) for name in names}
    columns = [(name, level) for name in names for level in levels[name][1:]]
    design = np.array([[1.0, *(float(row[name] == level) for name, level in columns)] for row in rows])
    if len(rows) <= design.shape[1] or np.linalg.matrix_rank(design) < design.shape[1]:
        raise CourseError(
            f"{len(rows)} rows cannot tell {design.shape[1]} parameters apart; measure more combinations, or drop a "
            "factor"
        )
    logs = np.log([float(row[time]) for row in rows])
    found, *_ = np.linalg.lstsq(design, logs, rcond=None)
    residuals = logs - design @ found
    unexplained = residuals @ residuals / ((logs - logs.mean()) @ (logs - logs.mean()))
    freedom = (len(rows) - 1) / (len(rows) - design.shape[1])
    effects = dict(zip(columns, np.exp(found[1:]), strict=True))
    return Model(
        base={name: levels[name][0] for name in names},
        factors={name: {level: float(effects.get((name, level), 1.0)) for level in levels[name]} for name in names},
        base_s=float(np.exp(found[0])),
        residuals=tuple(residuals.tolist()),
        r2=float(1 - unexplained),
        r2_adjusted=float(1 - unexplained * freedom),
    )
