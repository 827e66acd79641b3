"""From your own steps on 1, 2, 4, … ranks to steps on more: what no data sheet knows, fitted, with an interval.

In: timed steps, each with its number of ranks P and the samples n of a rank; how many ranks share a node. Out: a
``ScalingFit``, which tells seconds of a step for other P and n: low, middle, high. In units of the first step's seconds

    T(P, n) = work n/n₁ + fixed + near (p − 1)/p + far (N − 1)/N + spread E(P) n/n₁ + queue (P − 1)

with p ranks on a node and N nodes. *work* and *fixed*: a rank alone. *near*, *far*: what a ring of messages inside a
node, and between nodes, adds where nothing hides it, kernels slowed down beside it included. *spread*: how much ranks
differ; all wait for the slowest, E(P) standard deviations late (``simulator.expected_max``). *queue*: what each
further rank adds to something that serves one after the other: a file system, a parameter server, hops.

No term is negative. Three sizes do not tell six terms apart, so each is expected near a plausible value (``LIKELY``,
give or take ``WITHIN``), and the interval is that of many fits to data and expectations moved at random, each within
its error (randomise, then optimise: Bardsley et al. 2014, doi:10.1137/140964023; the ring's terms: Patarasuk and Yuan
2009, doi:10.1016/j.jpdc.2008.09.002; terms that grow with P: Gunther 2007, Guerrilla Capacity Planning, chapter 4).
The further a step is below the largest, the less it counts; steps that scatter more than ``NOISE`` widen the interval.
A bottleneck that no measured size has met is in no term.

Legend: R timed steps, K terms, D draws.
"""

import csv
import math
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
LIKELY, WITHIN = np.array([1.0, 0, 0, 0, 0, 0]), np.array([0.2, 0.2, 0.2, 0.2, 0.05, 0.005])
NOISE, DRAWS = 0.02, 200  # of a timed step, as a share, and that much more for each doubling up to the largest


class TimedStep(NamedTuple):
    """A step: on how many ranks, samples of each, seconds."""

    ranks: float
    samples: float
    step_s: float


@dataclass(frozen=True)
class ScalingFit:
    """What was fitted: shares of the first step, one row for each draw; what they refer to; how noisy a step is."""

    terms_DK: np.ndarray
    first: TimedStep
    ranks_per_node: int
    noise: float

    @property
    def shares(self) -> dict[str, float]:
        """The mean of each term, as a share of the first step."""
        return dict(zip(TERMS, self.terms_DK.mean(axis=0).tolist(), strict=True))

    def step_s(self, ranks: float, samples: float | None = None) -> tuple[float, float, float]:
        """Seconds of a step: the 5th, 50th and 95th percentile; samples of a rank, by default as in the first."""
        (row_K,) = _terms(np.array([[ranks, samples or self.first.samples]]), self.first, self.ranks_per_node)
        noise_D = np.random.default_rng(0).normal(0, self.noise, len(self.terms_DK))
        low, middle, high = self.first.step_s * np.percentile(self.terms_DK @ row_K * np.exp(noise_D), (5, 50, 95))
        return float(low), float(middle), float(high)


def fit(steps: Sequence[TimedStep], ranks_per_node: int = 1) -> ScalingFit:
    """Fit the terms to timed steps; the first, on fewest ranks, is the unit.
    CourseError: fewer than three numbers of ranks, or what is no positive number.
    """
    table_R3, rng = np.array(sorted(steps)), np.random.default_rng(0)
    if len(steps) and not ((table_R3 >= (1, 1e-9, 1e-9)) & (table_R3 < 1e12) & (table_R3[:, :1] % 1 == 0)).all():
        raise CourseError("scaling: ranks are 1, 2, …; samples and step_s positive numbers; look at what was timed")
    if (n_sizes := len({ranks for ranks, *_ in steps})) < 3:
        raise CourseError(f"scaling: {n_sizes} numbers of ranks make no fit; time a step on three, such as 1, 2 and 4")
    first = TimedStep(*table_R3[0].tolist())
    terms_RK = _terms(table_R3[:, :2], first, ranks_per_node) * first.step_s / table_R3[:, 2:]
    noise = NOISE
    for n_draws in (0, DRAWS):  # once to see how noisy these steps are
        error_R = noise * (1 + np.log2(table_R3[-1, 0] / table_R3[:, 0]))
        design = np.concatenate([terms_RK / error_R[:, None], np.diag(1 / WITHIN)])  # relative errors; the expected
        wanted = np.concatenate([1 / error_R, LIKELY / WITHIN])
        best_K, _ = nnls(design, wanted, maxiter=999)
        noise *= max(1.0, float(np.sqrt(np.mean(((terms_RK @ best_K - 1) / error_R) ** 2))))
        draws = [nnls(design, wanted + rng.standard_normal(len(wanted)), maxiter=999)[0] for _ in range(n_draws)]
    return ScalingFit(np.array(draws), first, ranks_per_node, noise)


def _terms(sizes_R2: np.ndarray, first: TimedStep, ranks_per_node: int) -> np.ndarray:
    ranks, work = sizes_R2[:, 0], sizes_R2[:, 1] / first.samples
    inside, nodes = np.minimum(ranks, ranks_per_node), np.ceil(ranks / ranks_per_node)
    rings = [(inside - 1) / inside, (nodes - 1) / nodes]
    return np.stack([work, np.ones_like(work), *rings, expected_max(ranks) * work, ranks - 1], axis=1)


def read(file: Path) -> list[TimedStep]:
    """The timed steps of a CSV file with the columns ranks, samples (of a rank) and step_s.
    CourseError: it cannot be read, lacks a column, or a cell is no number.
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines()
                 if line.strip() and line[0] != "#"]  # fmt: skip
        rows = csv.DictReader(lines, restkey="ranks", skipinitialspace=True)  # so what is surplus is no number
        if len(set(rows.fieldnames or ())) < len(rows.fieldnames or ()):
            raise ValueError
        return [TimedStep(*(float(row[name].replace("_", "?")) for name in TimedStep._fields)) for row in rows]
    except (KeyError, TypeError, AttributeError, ValueError, csv.Error):
        raise CourseError(f"{file} is no CSV file of numbers with the header ranks,samples,step_s; write one") from None
    except OSError as error:
        raise CourseError(f"cannot read {file}: {error.strerror}; give a CSV file") from None


def table(steps: Sequence[TimedStep], ranks_per_node: int = 1, most: int | None = None) -> Table:
    """Measured steps, then twice as many ranks and again, the last time ``most`` (default: 4 times); a naive guess.

    The guess: as efficient as the largest one measured. What is predicted has as many samples a rank as that.
    CourseError: as ``fit``; or ``most`` is no more than what was measured.
    """
    found, largest = fit(steps, ranks_per_node), max(steps)
    if most and most <= largest.ranks:
        raise CourseError(f"scaling: {largest.ranks:g} ranks were measured; --to {most} foretells nothing, give more")
    most = most or int(4 * largest.ranks)
    n_doublings = math.ceil(math.log2(max(1.0, most / largest.ranks)))
    asked = [(min(2.0**n * largest.ranks, most), largest.samples) for n in range(1, 1 + n_doublings)]
    rows = []
    for ranks, samples, *seen in [*sorted(steps), *asked]:
        low_s, middle_s, high_s = found.step_s(ranks, samples)
        measured = f"{1e3 * seen[0]:.4g}" if seen else f"as the largest: {1e3 * largest.step_s:.4g}"
        if seen and not low_s / 2 < seen[0] < 2 * high_s:
            measured += "; far from the fit: time it again"
        interval = f"{1e3 * low_s:.4g} … {1e3 * high_s:.4g}"
        rows.append((f"{ranks:,.0f}", f"{samples:g}", measured, f"{1e3 * middle_s:.4g}", interval))
    return Table.of(("ranks", "samples a rank", "measured, ms", "fitted, ms", "5% … 95%"), rows)
