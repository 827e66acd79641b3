"""How many updates does each batch size need? The learning rate tuned for each, then measured with fresh seeds.

In: a survey, batch sizes, a target accuracy. Out: a ``Sweep``, whose points ``curves.fit`` takes.

Tuning is a race. All learning rates of a grid (factors of 2) train side by side, each with the tuning seeds; the rate
that first has all its seeds at the target wins: the best by its slowest seed, so that a rate that often fails cannot
win by a lucky one. Who is slower then cannot win any more, so nothing is missed by ending there. Where the winner is
at the edge of the grid, the next rate beyond it runs too, until the edge loses.

The best of many flatters: some of its lead is luck. So the steps that count are those of other seeds, on
validation images that the tuning has not seen, at the one rate that won. No seed is dropped: each trains until it is
at the target or has had its updates, and then it is marked as not there (nan).

Legend: P batch sizes, L learning rates, S seeds, N images.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from tqdm.auto import tqdm

from dltutorial.convergence import ensemble
from dltutorial.convergence.ensemble import Replica
from dltutorial.convergence.stacked_optimizers import Update
from dltutorial.data.surveys import Survey
from dltutorial.errors import RecipeError

FIRST_RATES = {"sgd": 2.0**-11, "adam": 2.0**-12}  # for one image in a batch, about
_EXTENSIONS = 6
_LIMIT_IMAGES = 2**21  # that one seed may see, so that a target out of reach ends within minutes
_PATIENCE = 4  # times the updates of the winner's slowest seed, for the fresh seeds


@dataclass(frozen=True)
class SweepPoint:
    """One batch size.

    Attributes:
        batch_size: images in an update.
        rates: learning rates that ran, ascending, factors of 2 apart.
        tuning_steps_LS: (L, S) updates of each rate and tuning seed to the target; nan: not there when the race ended.
        best_rate: the winner; nan if no rate got there.
        at_edge: the winner is the smallest or largest rate that ran, so that a better one may lie beyond.
        steps_S: (S,) updates of the fresh seeds at that rate; nan: never there.
        limit: updates that each fresh seed had, at most.
    """

    batch_size: int
    rates: tuple[float, ...]
    tuning_steps_LS: np.ndarray
    best_rate: float
    at_edge: bool
    steps_S: np.ndarray
    limit: int

    @property
    def reached(self) -> int:
        """How many fresh seeds got to the target."""
        return int(np.isfinite(self.steps_S).sum())

    @property
    def median(self) -> float:
        """Of the fresh seeds' updates, one that is not there counting as more than any; nan if it is the middle one."""
        middle = float(np.median(np.nan_to_num(self.steps_S, nan=np.inf, posinf=np.inf)))
        return middle if math.isfinite(middle) else math.nan


@dataclass(frozen=True)
class Sweep:
    """All batch sizes of one optimizer, ascending."""

    optimizer: str
    target: float
    points: tuple[SweepPoint, ...]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """P of them."""
        return tuple(point.batch_size for point in self.points)

    @property
    def steps_PS(self) -> np.ndarray:
        """(P, S) updates of the fresh seeds to the target; nan: never there."""
        return np.stack([point.steps_S for point in self.points])

    @property
    def best_rates(self) -> np.ndarray:
        """(P,) the rate tuned for each batch size; nan where none got there."""
        return np.array([point.best_rate for point in self.points])

    def remarks(self) -> list[str]:
        """What a reader of the figure must know, one line each; none if all went as it should."""
        lines = []
        for point in self.points:
            here, missing = f"at batch size {point.batch_size}", len(point.steps_S) - point.reached
            if missing:
                rates = f"{point.rates[0]:g} to {point.rates[-1]:g}" if math.isnan(point.best_rate) else point.best_rate
                who = f"{missing} of {len(point.steps_S)} seeds never reached {100 * self.target:.4g}%"
                lines.append(f"{who} {here} within {point.limit:,} updates, learning rate {rates}")
            if point.at_edge:
                lines.append(f"{here} the best rate {point.best_rate:g} is the grid's edge")
        return lines


def sweep(
    survey: Survey, batch_sizes: Sequence[int], target: float = 0.9, *, optimizer: str | Update = "sgd",
    seeds: Sequence[int] = tuple(range(100, 105)), tuning_seeds: Sequence[int] = (0, 1, 2), limit: int = 16_000,
    progress: bool = True, **options: Any,
) -> Sweep:  # fmt: skip
    """Updates to the target for every batch size, the learning rate tuned for each.

    Args:
        survey: its validation images are halved, one half for tuning and one for measuring.
        batch_sizes: any order.
        target: validation accuracy.
        optimizer: as ``ensemble.train`` takes it; so are the options, such as widths or momentum.
        seeds: fresh ones, that count; at least 5.
        tuning_seeds: others.
        limit: updates at most.
        progress: show a bar.

    Raises:
        RecipeError: seeds used twice, fewer than 5, no batch size, a target that is no accuracy, a batch that is
            larger than the data.
    """
    sizes = sorted(set(batch_sizes))
    if not sizes or not 1 <= sizes[0] <= sizes[-1] <= len(survey):
        raise RecipeError(f"batch sizes {sizes} from {len(survey)} training images; take some of 1 to {len(survey)}")
    if not 0 < target <= 1:
        raise RecipeError(f"a target of {target} is no accuracy; take more than 0 and at most 1")
    if len(set(seeds)) < 5 or set(seeds) & set(tuning_seeds):
        raise RecipeError(f"seeds {tuple(seeds)}: take 5 different ones or more, others than {tuple(tuning_seeds)}")
    half = len(survey.x_valid) // 2
    tuning = dataclasses.replace(survey, x_valid=survey.x_valid[:half], y_valid=survey.y_valid[:half])
    fresh = dataclasses.replace(survey, x_valid=survey.x_valid[half:], y_valid=survey.y_valid[half:])
    name = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", "own optimizer")
    options |= {"optimizer": optimizer}
    first_rate = FIRST_RATES.get(name, FIRST_RATES["sgd"]) * sizes[0]
    grid, points = _grid(first_rate / 4, first_rate * 4), list[SweepPoint]()
    for size in tqdm(sizes, desc=f"{name}: batch sizes", unit="size", disable=not progress):
        tuned, start = [point for point in points if point.reached], 16
        if tuned:
            ratio, rate = size / tuned[-1].batch_size, tuned[-1].best_rate
            growing = len(tuned) < 2 or rate > tuned[-2].best_rate
            grid = _grid(rate / 2, rate * ratio * (2 if growing else 1))
            start = max(
                1, int(np.nanmin(tuned[-1].steps_S) / (3 * ratio))
            )  # perfect scaling would need 3 times as many
        most = max(1, min(limit, _LIMIT_IMAGES // size))
        trial = _Trial(size, target, start, options)
        rates, tuned_LS = trial.race(tuning, grid, tuning_seeds, most)
        points.append(trial.measure(fresh, rates, tuned_LS, seeds, most))
    return Sweep(name, target, tuple(points))


@dataclass(frozen=True)
class _Trial:
    """What all runs of one batch size have in common; ``start``: updates before the first evaluation."""

    size: int
    target: float
    start: int
    options: dict[str, Any]

    def steps(
        self,
        survey: Survey,
        rates: Sequence[float],
        seeds: Sequence[int],
        most: int,
        stop: Callable[[int, Tensor], bool] | None = None,
    ) -> np.ndarray:
        """Updates to the target (L, S). Evaluations are about 6% apart: every batch size has the same resolution."""
        at = [step for step in ensemble.log_spaced(most) if step >= min(self.start, most)]
        replicas = [Replica(rate, seed) for rate in rates for seed in seeds]
        how: dict[str, Any] = {"evaluate_every": at, "until": self.target, "stop": stop, **self.options}
        run = ensemble.train(survey, replicas, self.size, most, **how)
        return run.steps_to(self.target).view(len(rates), len(seeds)).numpy()

    def race(
        self, survey: Survey, grid: Sequence[float], seeds: Sequence[int], most: int
    ) -> tuple[list[float], np.ndarray]:
        """Rates that ran, ascending, and their updates to the target (L, S), nan where the race ended before."""

        def run(rates: Sequence[float], most: int) -> np.ndarray:
            won = lambda done, reached_R: bool(reached_R.view(len(rates), -1).isfinite().all(1).any())  # noqa: E731
            return self.steps(survey, rates, seeds, most, stop=won)

        rates, steps_LS = list(grid), run(grid, most)
        for _ in range(_EXTENSIONS):
            best = _winner(steps_LS)
            if best is None or 0 < best < len(rates) - 1:
                break
            lead = int(steps_LS[best].max())
            if best == 0:
                rates, steps_LS = [rates[0] / 2, *rates], np.concatenate([run([rates[0] / 2], lead), steps_LS])
            else:
                rates, steps_LS = [*rates, rates[-1] * 2], np.concatenate([steps_LS, run([rates[-1] * 2], lead)])
        return rates, steps_LS

    def measure(
        self, survey: Survey, rates: Sequence[float], tuned_LS: np.ndarray, seeds: Sequence[int], most: int
    ) -> SweepPoint:
        """The fresh seeds at the rate that won."""
        best = _winner(tuned_LS)
        if best is None:
            return SweepPoint(self.size, tuple(rates), tuned_LS, math.nan, False, np.full(len(seeds), np.nan), most)
        limit = min(most, _PATIENCE * int(tuned_LS[best].max()))
        steps_S = self.steps(survey, [rates[best]], seeds, limit)[0]
        at_edge = best in (0, len(rates) - 1)
        return SweepPoint(self.size, tuple(rates), tuned_LS, rates[best], at_edge, steps_S, limit)


def _winner(steps_LS: np.ndarray) -> int | None:
    """The rate whose slowest seed is the quickest; of equals that with the least sum, then the smallest rate."""
    slowest_L = steps_LS.max(1)  # nan if one is not there
    there = np.isfinite(slowest_L).nonzero()[0].tolist()
    return min(there, key=lambda number: (slowest_L[number], steps_LS[number].sum(), number), default=None)


def _grid(low: float, high: float) -> list[float]:
    """Powers of 2 from ``low`` to ``high``, both rounded to one."""
    return [2.0**power for power in range(round(math.log2(low)), round(math.log2(high)) + 1)]
