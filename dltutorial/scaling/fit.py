"""Predict the step time on more ranks from steps that were timed on few ranks.

In: timed steps, each with its number of ranks P and the samples n of one rank, and the number of ranks on a node.
Out: a ``ScalingFit``, which predicts the seconds of a step for other P and n, with an interval. The model is a sum of
six terms, in units of the first step's seconds:

    T(P, n) = work n/n₁ + fixed + near (p - 1)/p + far (N - 1)/N + spread E(P) n/n₁ + queue (P - 1)

Here p is the number of ranks on a node, N the number of nodes, and n₁ the samples of the first step.

- *work* and *fixed* are the step of a rank that is alone.
- *near* and *far* are the exposed communication of a ring inside a node and between nodes. They include the slower
  kernels that run beside it. Source of the ring's terms: Patarasuk and Yuan 2009 (doi:10.1016/j.jpdc.2008.09.002).
- *spread* is the difference between the ranks. All ranks wait for the slowest, which is E(P) standard deviations late
  (``simulator.expected_max``).
- *queue* is what each further rank adds to something that serves one rank after the other, such as a file system, a
  parameter server, or the hops of a ring. Source: Gunther 2007, Guerrilla Capacity Planning, chapter 4.

No term is negative. Three numbers of ranks cannot determine six terms. Therefore each term also has a prior, that is a
plausible value (``PRIOR_MEAN``) with an error (``PRIOR_STD``). The interval comes from many fits, in which the data and
the priors are changed at random within their errors (Bardsley et al. 2014, doi:10.1137/140964023). A step on few ranks
has a larger error than one on many, so it counts less. Steps that scatter more than ``NOISE`` widen the interval. A
bottleneck that does not show at any measured size is in no term.

Legend: R timed steps, K terms, D draws, E = R + K equations.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from dltutorial.errors import CourseError
from dltutorial.record.table import Table
from dltutorial.scaling.simulator import expected_max

TERMS = ("work", "fixed", "near", "far", "spread", "queue")
PRIOR_MEAN = np.array([1.0, 0, 0, 0, 0, 0])
PRIOR_STD = np.array([0.2, 0.2, 0.2, 0.2, 0.05, 0.005])
NOISE = 0.02  # relative error of a timed step on the most ranks; it grows by as much for each halving of the ranks
DRAWS = 200
_MAX_ITERATIONS = 999


class TimedStep(NamedTuple):
    """A timed step: its number of ranks, the samples of one rank, and its seconds."""

    ranks: float
    samples: float
    step_s: float


@dataclass(frozen=True)
class ScalingFit:
    """A fitted model of the step time.

    Attributes:
        terms_DK: the terms of each draw, as shares of the first step.
        first: the step on the fewest ranks, which is the unit of the terms.
        ranks_per_node: number of ranks that share a node.
        noise: relative error of a timed step.
    """

    terms_DK: np.ndarray
    first: TimedStep
    ranks_per_node: int
    noise: float

    def step_s(self, ranks: float, samples: float | None = None) -> tuple[float, float, float]:
        """Predict the seconds of a step.

        Args:
            ranks: number of ranks.
            samples: of one rank. By default there are as many as in the first step.

        Returns:
            The 5th, 50th and 95th percentile.
        """
        work = 1.0
        if samples is not None:
            work = samples / self.first.samples
        (factors_K,) = _factors(np.array([float(ranks)]), np.array([work]), self.ranks_per_node)
        noise_D = np.random.default_rng(0).normal(0, self.noise, len(self.terms_DK))
        shares_D = self.terms_DK @ factors_K * np.exp(noise_D)
        low, middle, high = self.first.step_s * np.percentile(shares_D, (5, 50, 95))
        return float(low), float(middle), float(high)


def fit(steps: Sequence[TimedStep], ranks_per_node: int = 1) -> ScalingFit:
    """Fit the terms to timed steps.

    Args:
        steps: timed steps in any order, on at least three different numbers of ranks.
        ranks_per_node: number of ranks that share a node.

    Returns:
        The fit. Its unit is the step on the fewest ranks.

    Raises:
        CourseError: There are fewer than three numbers of ranks.
    """
    n_sizes = len({step.ranks for step in steps})
    if n_sizes < 3:
        raise CourseError(f"scaling: {n_sizes} numbers of ranks make no fit; time a step on three, such as 1, 2 and 4")
    ordered = sorted(steps)
    first = ordered[0]
    ranks_R, samples_R, step_s_R = np.array(ordered).T
    # Each row is divided by the measured seconds, so a perfect fit gives 1 and the errors are relative.
    factors_RK = _factors(ranks_R, samples_R / first.samples, ranks_per_node)
    terms_RK = factors_RK * first.step_s / step_s_R[:, None]
    doublings_R = np.log2(ranks_R[-1] / ranks_R)
    noise = NOISE
    for _ in range(2):  # the first fit shows how much the steps scatter, the second takes it into account
        error_R = noise * (1 + doublings_R)
        matrix_EK = np.concatenate([terms_RK / error_R[:, None], np.diag(1 / PRIOR_STD)])
        target_E = np.concatenate([1 / error_R, PRIOR_MEAN / PRIOR_STD])
        best_K = _solve(matrix_EK, target_E)
        residual_R = (terms_RK @ best_K - 1) / error_R
        noise *= max(1.0, float(np.sqrt(np.mean(residual_R**2))))
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(DRAWS):
        changed_E = target_E + rng.standard_normal(len(target_E))
        draws.append(_solve(matrix_EK, changed_E))
    return ScalingFit(np.array(draws), first, ranks_per_node, noise)


def _solve(matrix_EK: np.ndarray, target_E: np.ndarray) -> np.ndarray:
    """The terms (K,) of the least-squares fit in which no term is negative."""
    terms_K, _ = nnls(matrix_EK, target_E, maxiter=_MAX_ITERATIONS)
    return terms_K


def _factors(ranks_R: np.ndarray, work_R: np.ndarray, ranks_per_node: int) -> np.ndarray:
    """The factor of each term in T(P, n).

    Args:
        ranks_R: numbers of ranks P.
        work_R: n/n₁, the samples of a rank in units of those of the first step.
        ranks_per_node: number of ranks that share a node.

    Returns:
        The factors (R, K), in the order of ``TERMS``.
    """
    ranks_on_node_R = np.minimum(ranks_R, ranks_per_node)
    nodes_R = np.ceil(ranks_R / ranks_per_node)
    factors = {
        "work": work_R,
        "fixed": np.ones_like(work_R),
        "near": (ranks_on_node_R - 1) / ranks_on_node_R,
        "far": (nodes_R - 1) / nodes_R,
        "spread": expected_max(ranks_R) * work_R,
        "queue": ranks_R - 1,
    }
    return np.stack([factors[term] for term in TERMS], axis=1)


def read(file: Path | str) -> list[TimedStep]:
    """Read timed steps from a CSV file with the columns ranks, samples (of one rank) and step_s."""
    steps = []
    with open(file, encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            step = TimedStep(float(row["ranks"]), float(row["samples"]), float(row["step_s"]))
            steps.append(step)
    return steps


def table(steps: Sequence[TimedStep], ranks_per_node: int = 1) -> Table:
    """The measured steps, and predictions for twice and four times as many ranks.

    Predicted steps have as many samples on each rank as the step on the most measured ranks.

    Args:
        steps: as for ``fit``.
        ranks_per_node: as for ``fit``.

    Raises:
        CourseError: As for ``fit``.
    """
    fitted = fit(steps, ranks_per_node)
    largest = max(steps)
    rows = [_row(fitted, step.ranks, step.samples, f"{1e3 * step.step_s:.4g}") for step in sorted(steps)]
    for factor in (2, 4):
        rows.append(_row(fitted, factor * largest.ranks, largest.samples, "–"))
    return Table.of(("ranks", "samples a rank", "measured, ms", "fitted, ms", "5% … 95%"), rows)


def _row(fitted: ScalingFit, ranks: float, samples: float, measured: str) -> tuple[str, ...]:
    """A row of the table: the size, the text of the column "measured", the fit and its interval."""
    low_s, middle_s, high_s = fitted.step_s(ranks, samples)
    interval = f"{1e3 * low_s:.4g} … {1e3 * high_s:.4g}"
    return f"{ranks:,.0f}", f"{samples:g}", measured, f"{1e3 * middle_s:.4g}", interval
