"""Measure how many updates each batch size needs. The learning rate is tuned for each, and then other seeds train.

In: a survey, batch sizes, and a target accuracy. Out: a ``Sweep``, whose points ``curves.fit`` takes.

The tuning trains all learning rates of a grid (factors of 2) side by side, each with the tuning seeds. The best rate is
the first one of which all seeds reach the target. So the slowest seed decides, and a rate that often fails cannot win
by one lucky seed. The training ends there, because a slower rate cannot win any more. If the best rate is at the edge
of the grid, the next rate beyond the edge trains, too, until a rate inside the grid is the best.

The result of the best of many rates is too good, because a part of it is luck. Therefore only the updates of other
seeds count, at the best rate, on validation images that the tuning has not used. No seed is dropped. Each trains until
it reaches the target or its limit of updates; in the second case its result is nan. Shallue et al. 2018
(arXiv:1811.03600) tune each batch size in a similar way.

Legend: P batch sizes, L learning rates, S seeds, N images.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dltutorial.convergence import ensemble
from dltutorial.convergence.ensemble import Replica
from dltutorial.data.surveys import Survey

_FIRST_RATE = 2.0**-11  # a rough value of SGD's learning rate for a batch of one image
_MAX_EXTENSIONS = 6  # of the grid, by one rate each
_MAX_STEPS = 16_000  # that one seed may make
_MAX_IMAGES = 2**21  # that one seed may use, so that a target out of reach ends within minutes
_PATIENCE = 4  # limit of the other seeds, in units of the updates of the slowest tuning seed


@dataclass(frozen=True)
class SweepPoint:
    """The result of one batch size.

    Attributes:
        batch_size: images in an update.
        rates: learning rates that were tried, ascending by factors of 2.
        tuning_steps_LS: updates of each rate and tuning seed to the target, (L, S); nan if the target was not reached
            before the tuning ended.
        best_rate: the tuned rate; nan if no rate reached the target.
        at_edge: whether the best rate is the smallest or largest that was tried, so that a better one may lie beyond.
        steps_S: updates of the other seeds to the target at this rate, (S,); nan if they did not reach it.
        limit: the largest number of updates that each of these seeds had.
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
        """How many seeds reached the target."""
        return int(np.isfinite(self.steps_S).sum())

    @property
    def median(self) -> float:
        """The median of the updates. A seed that did not reach the target counts as infinity, and infinity as nan."""
        middle = float(np.median(np.nan_to_num(self.steps_S, nan=np.inf, posinf=np.inf)))
        if math.isinf(middle):
            return math.nan
        return middle


@dataclass(frozen=True)
class Sweep:
    """The results of all batch sizes, ascending.

    Attributes:
        target: validation accuracy, as a share.
        points: one for each batch size.
    """

    target: float
    points: tuple[SweepPoint, ...]

    @property
    def steps_PS(self) -> np.ndarray:
        """Updates of the seeds to the target, (P, S); nan if they did not reach it."""
        return np.stack([point.steps_S for point in self.points])

    def remarks(self) -> list[str]:
        """What a reader of the figure must know, one line each. It is empty if there is nothing to remark."""
        lines = []
        for point in self.points:
            where = f"at batch size {point.batch_size}"
            n_seeds = len(point.steps_S)
            if point.reached < n_seeds:
                rates = f"{point.best_rate}"
                if math.isnan(point.best_rate):
                    rates = f"{point.rates[0]:g} to {point.rates[-1]:g}"
                who = f"{n_seeds - point.reached} of {n_seeds} seeds never reached {100 * self.target:.4g}%"
                lines.append(f"{who} {where} within {point.limit:,} updates, learning rate {rates}")
            if point.at_edge:
                lines.append(f"{where} the best rate {point.best_rate:g} is the grid's edge")
        return lines


def sweep(
    survey: Survey,
    batch_sizes: Sequence[int],
    target: float,
    *,
    seeds: Sequence[int],
    tuning_seeds: Sequence[int],
) -> Sweep:
    """Measure the updates of SGD to the target for every batch size, with a learning rate that is tuned for each.

    Args:
        survey: one half of its validation images is for tuning, and the other half for measuring.
        batch_sizes: in any order.
        target: validation accuracy, as a share.
        seeds: whose updates count.
        tuning_seeds: seeds that tune the rate; none of ``seeds``.
    """
    half = len(survey.x_valid) // 2
    tuning_survey = dataclasses.replace(survey, x_valid=survey.x_valid[:half], y_valid=survey.y_valid[:half])
    measuring_survey = dataclasses.replace(survey, x_valid=survey.x_valid[half:], y_valid=survey.y_valid[half:])
    sizes = sorted(set(batch_sizes))
    points: list[SweepPoint] = []
    for size in sizes:
        grid, first_evaluation = _plan(size, points, _FIRST_RATE * sizes[0])
        max_steps = min(_MAX_STEPS, _MAX_IMAGES // size)
        trial = _Trial(size, target, first_evaluation)
        rates, tuning_steps_LS = trial.tune(tuning_survey, grid, tuning_seeds, max_steps)
        points.append(trial.measure(measuring_survey, rates, tuning_steps_LS, seeds, max_steps))
    return Sweep(target, tuple(points))


def _plan(size: int, points: Sequence[SweepPoint], first_rate: float) -> tuple[list[float], int]:
    """Choose the grid of the next batch size from the results of the smaller ones.

    Returns:
        The learning rates, and the number of updates before the first evaluation.
    """
    tuned = [point for point in points if point.reached > 0]
    if not tuned:
        return _powers_of_2(first_rate / 4, first_rate * 4), 16
    last = tuned[-1]
    ratio = size / last.batch_size
    highest = last.best_rate * ratio
    if len(tuned) < 2 or last.best_rate > tuned[-2].best_rate:
        highest *= 2  # the best rate still increases with the batch size
    # With perfect scaling the fastest seed would need 1/ratio of the updates. A third of this is early enough.
    first_evaluation = max(1, int(np.nanmin(last.steps_S) / (3 * ratio)))
    return _powers_of_2(last.best_rate / 2, highest), first_evaluation


@dataclass(frozen=True)
class _Trial:
    """The trainings of one batch size.

    Attributes:
        size: the batch size.
        target: validation accuracy.
        first_evaluation: updates before the first evaluation.
    """

    size: int
    target: float
    first_evaluation: int

    def steps(
        self,
        survey: Survey,
        rates: Sequence[float],
        seeds: Sequence[int],
        max_steps: int,
        stop: Callable[[Tensor], bool] | None = None,
    ) -> np.ndarray:
        """Train every seed at every rate.

        Returns:
            Updates to the target, (L, S). The distance of the evaluations is about 6%, so that every batch size has the
            same resolution.
        """
        first = min(self.first_evaluation, max_steps)
        run = ensemble.train(
            survey,
            [Replica(rate, seed) for rate in rates for seed in seeds],
            self.size,
            max_steps,
            evaluate_every=[step for step in ensemble.log_spaced(max_steps) if step >= first],
            until=self.target,
            stop=stop,
        )
        return run.steps_to(self.target).view(len(rates), len(seeds)).numpy()

    def steps_of_fastest(
        self, survey: Survey, rates: Sequence[float], seeds: Sequence[int], max_steps: int
    ) -> np.ndarray:
        """Train every seed at every rate, until all seeds of one rate have reached the target.

        Returns:
            Updates to the target, (L, S); nan if a seed had not reached it when the training ended.
        """

        def is_decided(reached_step_R: Tensor) -> bool:
            reached_LS = reached_step_R.view(len(rates), -1).isfinite()
            return bool(reached_LS.all(1).any())

        return self.steps(survey, rates, seeds, max_steps, is_decided)

    def tune(
        self, survey: Survey, grid: Sequence[float], seeds: Sequence[int], max_steps: int
    ) -> tuple[list[float], np.ndarray]:
        """Train the rates of a grid, and extend the grid while its best rate is at an edge.

        Returns:
            The rates that were tried, ascending, and their updates to the target, (L, S); nan if a seed had not
            reached it when the training ended.
        """
        rates = list(grid)
        steps_LS = self.steps_of_fastest(survey, rates, seeds, max_steps)
        for _ in range(_MAX_EXTENSIONS):
            best = _best(steps_LS)
            if best is None or 0 < best < len(rates) - 1:
                break
            place = len(rates)
            next_rate = rates[best] * 2
            if best == 0:
                place = 0
                next_rate = rates[best] / 2
            steps_to_beat = int(steps_LS[best].max())
            next_steps_1S = self.steps_of_fastest(survey, [next_rate], seeds, steps_to_beat)
            rates.insert(place, next_rate)
            steps_LS = np.insert(steps_LS, place, next_steps_1S, axis=0)
        return rates, steps_LS

    def measure(
        self, survey: Survey, rates: Sequence[float], tuning_steps_LS: np.ndarray, seeds: Sequence[int], max_steps: int
    ) -> SweepPoint:
        """Train other seeds at the best rate."""
        best = _best(tuning_steps_LS)
        if best is None:
            never_S = np.full(len(seeds), np.nan)
            return SweepPoint(self.size, tuple(rates), tuning_steps_LS, math.nan, False, never_S, max_steps)
        at_edge = best in (0, len(rates) - 1)
        limit = min(max_steps, _PATIENCE * int(tuning_steps_LS[best].max()))
        (steps_S,) = self.steps(survey, [rates[best]], seeds, limit)
        return SweepPoint(self.size, tuple(rates), tuning_steps_LS, rates[best], at_edge, steps_S, limit)


def _best(steps_LS: np.ndarray) -> int | None:
    """The index of the rate whose slowest seed needs the fewest updates; None if no rate has all seeds at the target.

    Of equal rates, the one with the smallest sum of updates is the best, and then the smallest rate.
    """
    slowest_L = steps_LS.max(1)  # nan if a seed did not reach the target
    candidates = np.isfinite(slowest_L).nonzero()[0].tolist()
    return min(candidates, key=lambda index: (slowest_L[index], steps_LS[index].sum(), index), default=None)


def _powers_of_2(low: float, high: float) -> list[float]:
    """Powers of 2 from ``low`` to ``high``, both of which are rounded to powers of 2."""
    return [2.0**power for power in range(round(math.log2(low)), round(math.log2(high)) + 1)]
