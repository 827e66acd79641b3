"""How many updates a task takes, at any batch size: chapter 12's curve, measured with a few batch sizes only.

In: a task, an optimizer, batch sizes with the rates to try at each, seeds. Out: ``Learning``: the fitted curve
S = S_min (1 + B_crit / B) and the best rate of each batch size. All rates and seeds of a batch size train side by side
as one ensemble. The seeds are for tuning: the attempts that are compared later have others.

Source: McCandlish et al. 2018, arXiv:1812.06162; Shallue et al. 2019, arXiv:1811.03600
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dltutorial.convergence import curves, ensemble, images
from dltutorial.convergence.attempt import MOMENTUM, one_thread
from dltutorial.convergence.images import Files
from dltutorial.convergence.recipe import Task
from dltutorial.errors import CourseError

# Rates to try at each batch size: powers of two around the best of a wider search on other seeds.
RATES: Mapping[str, Mapping[int, tuple[float, ...]]] = {
    "sgd": {32: (2**-5, 2**-4), 128: (2**-4, 2**-3), 512: (2**-3, 2**-2), 2048: (2**-2, 2**-1)},
    "adam": {32: (2**-10, 2**-9), 128: (2**-9, 2**-8), 512: (2**-8, 2**-7), 2048: (2**-7, 2**-6)},
}
_MOST_STEPS = {32: 2000, 128: 1000, 512: 500, 2048: 250}


@dataclass(frozen=True)
class Learning:
    """Updates to the target against the batch size, for one optimizer.

    Attributes:
        curve: the fit, with S_min and B_crit.
        rates: batch size → its best rate among those tried.
        measured: batch size → updates of each seed at that rate; nan where it did not get there.
    """

    curve: curves.Fit
    rates: Mapping[int, float]
    measured: Mapping[int, tuple[float, ...]]

    def steps(self, batch_size: float) -> float:
        """Updates to the target that the curve promises."""
        return float(self.curve.steps(batch_size))

    def rate(self, batch_size: float) -> float:
        """The best rate, between two batch sizes on a straight line of logarithms."""
        sizes = sorted(self.rates)
        return float(2 ** np.interp(math.log2(batch_size), np.log2(sizes), [math.log2(self.rates[b]) for b in sizes]))


def measure(
    task: Task,
    files: Files,
    optimizer: str = "sgd",
    seeds: Sequence[int] = range(1000, 1003),
    evaluate_every: int = 10,
    rates: Mapping[int, Sequence[float]] | None = None,
) -> Learning:
    """Train small ensembles at a few batch sizes until they reach the target.

    Raises:
        CourseError: at some batch size no rate brought most of the seeds there, or the steps follow no such curve.
    """
    survey, best, found = images.survey(files, task), {}, {}
    for batch_size, tried in (rates or RATES[optimizer]).items():
        replicas = [ensemble.Replica(rate, seed) for rate in tried for seed in seeds]
        with one_thread():
            run = ensemble.train(
                survey, replicas, batch_size, _MOST_STEPS.get(batch_size, 1000), widths=task.widths,
                optimizer=optimizer, momentum=MOMENTUM, evaluate_every=evaluate_every, until=task.target,
            )  # fmt: skip
        steps_KS = run.steps_to(task.target).numpy().reshape(len(tried), len(seeds))
        medians_K = np.median(np.nan_to_num(steps_KS, nan=np.inf), axis=1)  # inf: fewer than half got there
        if not np.isfinite(medians_K).any():
            raise CourseError(
                f"{optimizer} with batches of {batch_size} did not reach {task.target:.1%} at any rate tried; "
                "lower the target, or try others"
            )
        k = int(medians_K.argmin())
        best[batch_size] = tried[k]
        found[batch_size] = tuple(steps_KS[k].tolist())
    return Learning(curves.fit(list(found), np.array(list(found.values()))), best, found)
