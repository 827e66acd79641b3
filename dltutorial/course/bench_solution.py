"""``dltutorial bench solution``: the time to a target quality, predicted beside measured.

Short measurements of this machine at the capstone's task, then one prediction for each recipe, then as many attempts as
repeats, in turn. A recipe that missed the target with a seed has no time: its row counts the seeds that reached it.

In: sizes, how often. Out: one row a recipe.
"""

from collections.abc import Iterator

from dltutorial import machine
from dltutorial.convergence import attempt, measured
from dltutorial.convergence.predict import time_to_solution
from dltutorial.convergence.recipe import SolutionRecipe, task_for
from dltutorial.course.bench_rows import Options, Row

_TUNING = range(10_000, 10_003)


def solution(options: Options) -> Iterator[Row]:
    """Every loader, two batch sizes, bf16, and two ranks where there are two devices."""
    task = task_for(options.preset)
    several = len(machine.accelerators()) > 1 if machine.device() == "cuda" else machine.cores() > 1
    ranks, precisions = 2 if several else 1, ("fp32", "bf16")
    here = measured.measure(task, precisions=precisions, ranks=ranks, seeds=_TUNING, repeats=options.repeats)
    recipes = [
        SolutionRecipe(**knobs, learning_rate=here.learning["sgd"].rate(knobs["batch_size"]))
        for knobs in _variants(several)
    ]
    told = [time_to_solution(recipe, here) for recipe in recipes]
    found: list[list[attempt.Attempt]] = [[] for _ in recipes]
    for seed in range(options.repeats):
        for runs, recipe in zip(found, recipes, strict=True):
            runs += attempt.attempts(recipe, task, [seed])
    for recipe, prediction, runs in zip(recipes, told, found, strict=True):
        yield row(recipe, prediction.seconds, runs)


def row(recipe: SolutionRecipe, predicted_s: float, runs: list[attempt.Attempt]) -> Row:
    """One recipe: seconds to the target, or how many seeds got there if not all did."""
    knobs = f"{recipe.loader}, batch {recipe.batch_size}, {recipe.precision}, ranks {recipe.ranks}"
    reached = sum(run.reached for run in runs)
    if reached < len(runs):
        return Row(f"{knobs}: not reached", (float(reached),), f"of {len(runs)} seeds")
    more = {"steps": f"{sorted(run.steps for run in runs)[len(runs) // 2]}"}
    more["device-seconds"] = f"{sorted(run.device_s for run in runs)[len(runs) // 2]:.3g}"
    return Row(knobs, tuple(run.seconds for run in runs), predicted=predicted_s, more=more)


def _variants(several: bool) -> Iterator[dict]:
    for loader in ("naive", "lean", "staged"):
        yield {"loader": loader, "batch_size": 256}
    yield {"loader": "staged", "batch_size": 64}
    yield {"loader": "staged", "batch_size": 2048}
    yield {"loader": "staged", "batch_size": 256, "precision": "bf16"}
    if several:
        yield {"loader": "naive", "batch_size": 256, "ranks": 2}
        yield {"loader": "staged", "batch_size": 256, "ranks": 2}
