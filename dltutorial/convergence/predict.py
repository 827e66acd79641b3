"""The time to solution of a recipe, before it is run: from short measurements of this machine at the task.

    seconds = staging + steps × (input + computing + communication) + looks × look
    steps   = S_min (1 + B_crit / B), until the next look

Every factor comes from an earlier chapter and is measured by itself, on batches that nobody trains on, or on noise:
input by loader (03), computing by precision (04) and images a rank (01), communication by α and β (08), steps by batch
size (12), on seeds for tuning alone. Input and computing take turns, as they do in ``attempt``. What is left out:
ranks that wait for the slower one, anything else that runs.

McCandlish et al. 2018, arXiv:1812.06162; Shallue et al. 2019, arXiv:1811.03600

Legend: M batch sizes measured, K rates tried, S seeds.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from dltutorial.comm.stopwatch import measure_network
from dltutorial.convergence import curves, ensemble, images
from dltutorial.convergence.attempt import Job, noise, one_thread, own_device
from dltutorial.convergence.recipe import LOADERS, SolutionRecipe, SolutionTask
from dltutorial.errors import CourseError
from dltutorial.profile.timing import alternate
from dltutorial.train.loop import loop

BATCHES = (32, 128, 512, 2048)
# Rates to try at each batch size: powers of two around the best of a wider search on other seeds.
RATES: Mapping[int, tuple[float, ...]] = {
    32: (2**-5, 2**-4), 128: (2**-4, 2**-3), 512: (2**-3, 2**-2), 2048: (2**-2, 2**-1),
}  # fmt: skip
_MOST_STEPS = {32: 2000, 128: 1000, 512: 500, 2048: 250}
_IN_A_ROW = 20  # updates
_MESSAGES = (2**12, 2**15, 2**18, 2**20)
_GRADIENT_BYTES = 4  # of a weight's gradient, in every precision: the weights are float32


@dataclass(frozen=True)
class BatchCost:
    """Seconds of something that has a fixed part and a part for each image."""

    fixed_s: float
    image_s: float

    def seconds(self, n_images: float) -> float:
        """For so many images."""
        return self.fixed_s + n_images * self.image_s

    @classmethod
    def through(cls, seconds: Mapping[int, float]) -> "BatchCost":
        """Least squares of relative errors, no part negative."""
        sizes_M, seconds_M = np.array(list(seconds), float), np.array(list(seconds.values()))
        parts, _ = nnls(np.stack([1 / seconds_M, sizes_M / seconds_M], axis=1), np.ones_like(sizes_M))
        return cls(*map(float, parts))


@dataclass(frozen=True)
class MeasuredMachine:
    """This machine at one task.

    Attributes:
        task: at which it was measured.
        input_s: loader → seconds of a batch.
        update_s: precision → seconds of an update on one rank, by SGD.
        staging_s: loader → seconds before the first update.
        look_s: one look at all validation images, on one rank.
        message_s, bytes_per_s: α and β of an all-reduce; 0 and infinity with one rank.
        curve: updates to the target against the batch size, S = S_min (1 + B_crit / B): chapter 12's.
        rates: batch size → its best rate among those tried.
    """

    task: SolutionTask
    input_s: Mapping[str, BatchCost]
    update_s: Mapping[str, BatchCost]
    staging_s: Mapping[str, float]
    look_s: float
    message_s: float
    bytes_per_s: float
    curve: curves.Fit
    rates: Mapping[int, float]

    def rate(self, batch_size: float) -> float:
        """The best rate, between two batch sizes on a straight line of logarithms."""
        sizes = sorted(self.rates)
        return float(2 ** np.interp(math.log2(batch_size), np.log2(sizes), [math.log2(self.rates[b]) for b in sizes]))

    def all_reduce_s(self, ranks: int) -> float:
        """Seconds of one ring all-reduce of the gradients: 2 (P − 1) α + 2 (P − 1) / P · n / β."""
        n_bytes = _GRADIENT_BYTES * self.task.n_weights
        return 2 * (ranks - 1) * self.message_s + 2 * (ranks - 1) / ranks * n_bytes / self.bytes_per_s


def time_to_solution(recipe: SolutionRecipe, here: MeasuredMachine) -> dict[str, float]:
    """Seconds that a recipe takes on this machine until it sees the target, or gives up; their sum is the prediction.

    Returns:
        Seconds of staging, input, computing, communication and looking.

    Raises:
        RecipeError: the recipe does not suit the task.
        CourseError: its precision, optimizer or ranks were not measured.
    """
    here.task.check(recipe)
    if recipe.precision not in here.update_s or recipe.optimizer != "sgd":
        raise CourseError(f"{recipe.precision} with {recipe.optimizer} was not measured; sgd: {list(here.update_s)}")
    if recipe.ranks > 1 and not here.message_s:
        raise CourseError(f"an all-reduce was not measured, and {recipe.ranks} ranks need it; measure with ranks=2")
    looks = math.ceil(min(here.curve.steps(recipe.batch_size), recipe.steps) / recipe.eval_every)
    steps = min(looks * recipe.eval_every, recipe.steps)
    return {
        "staging": here.staging_s[recipe.loader],
        "input": steps * here.input_s[recipe.loader].seconds(recipe.rank_batch),
        "computing": steps * here.update_s[recipe.precision].seconds(recipe.rank_batch),
        "communication": steps * here.all_reduce_s(recipe.ranks) if recipe.ranks > 1 else 0.0,
        "looking": looks * here.look_s / recipe.ranks,
    }


def measure(
    task: SolutionTask,
    *,
    precisions: Sequence[str] = ("fp32",),
    ranks: int = 1,
    seeds: Sequence[int] = range(1000, 1003),
    repeats: int = 5,
) -> MeasuredMachine:
    """Measure all of it; some seconds to half a minute.

    Args:
        task: what is to be trained.
        precisions: to be told of.
        ranks: the most that a recipe will have.
        seeds: for tuning; no attempt that counts should have them.
        repeats: of every short measurement.

    Raises:
        CourseError: the images cannot be had, or the target is out of reach.
    """
    file, device = images.prepare(task), own_device()
    message_s, bytes_per_s = 0.0, math.inf
    if ranks > 1:
        message_s, bytes_per_s = measure_network([ranks], 10 * repeats, _MESSAGES, "auto").link(ranks)
    sizes = [size for size in BATCHES if size <= task.train]
    idle, input_s, update_s, staging_s = SolutionRecipe(learning_rate=1e-6), {}, {}, {}
    with one_thread():
        for name in LOADERS:
            stage = partial(Job, replace(idle, loader=name), task, file, 0, device)
            staging_s[name] = alternate({"stage": stage}, max(3, repeats // 2))["stage"].median_s
            few = sizes[:-1] if name == "naive" and len(sizes) > 2 else sizes  # the largest takes longest, tells least
            load = stage().load
            works = {n: lambda n=n, load=load: load(torch.randint(task.train, (n,))) for n in few}
            input_s[name] = _line(works, repeats)
        for precision in precisions:
            job = Job(replace(idle, precision=precision), task, file, 0, device)
            works = {n: partial(_updates, job, replace(idle, steps=_IN_A_ROW), noise(task, n, device)) for n in sizes}
            update_s[precision] = _line(works, repeats, _IN_A_ROW)
        look_s = alternate({"look": partial(job.look, job.task.model)}, repeats)["look"].median_s
        curve, rates = learn(task, file, seeds)
    return MeasuredMachine(task, input_s, update_s, staging_s, look_s, message_s, bytes_per_s, curve, rates)


def learn(
    task: SolutionTask, file: Path, seeds: Sequence[int] = range(1000, 1003)
) -> tuple[curves.Fit, dict[int, float]]:
    """The curve of updates to the target, and each batch size's best rate: all rates and seeds train side by side.

    Raises:
        CourseError: at some batch size no rate brought most of the seeds there, or the steps follow no such curve.
    """
    survey, best, found = images.survey(file, task), {}, {}
    for batch_size, tried in RATES.items():
        run = ensemble.train(
            survey, [ensemble.Replica(rate, seed) for rate in tried for seed in seeds], batch_size,
            _MOST_STEPS.get(batch_size, 1000), widths=task.widths,
            evaluate_every=10, until=task.target,
        )  # fmt: skip
        steps_KS = run.steps_to(task.target).numpy().reshape(len(tried), len(seeds))
        medians_K = np.median(np.nan_to_num(steps_KS, nan=np.inf), axis=1)  # inf: fewer than half got there
        if not np.isfinite(medians_K).any():
            told = f"batches of {batch_size} did not reach {task.target:.1%} at any rate tried"
            raise CourseError(f"{told}; lower the target, or try others")
        k = int(medians_K.argmin())
        best[batch_size], found[batch_size] = tried[k], steps_KS[k]
    return curves.fit(list(found), np.array(list(found.values()))), best


def _updates(job: Job, recipe: SolutionRecipe, batch: tuple[Tensor, Tensor]) -> None:
    """So many updates as the recipe has steps, as the training loop makes them."""
    job.state.step = 0
    on_noise = replace(job.task, data=lambda skip: itertools.repeat(batch), metrics=None)
    for _ in loop(on_noise, recipe, job.state):
        pass


def _line(works: Mapping[int, Callable[[], object]], repeats: int, in_a_row: int = 1) -> BatchCost:
    times = alternate({str(size): work for size, work in works.items()}, repeats)
    return BatchCost.through({int(size): timing.median_s / in_a_row for size, timing in times.items()})
