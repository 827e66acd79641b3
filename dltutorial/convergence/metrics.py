"""MLPerf HPC's two metrics, from attempts: time to train, and models trained per minute by the whole machine.

In: attempts of one recipe with different seeds. Out: one number each. *Time to train* starts before the data are
touched, so that staging counts, and ends when the target is reached; of five runs or more, the shortest and the
longest are left out and the others averaged. *Throughput* trains many instances at once on the whole machine, each
with a seed of its own, all with the same files: instances divided by the time until the last one is done.

Source: Farrell et al. 2021, arXiv:2110.11466; https://github.com/mlcommons/training_policies, hpc_training_rules.adoc
"""

import statistics
import time
from collections.abc import Sequence

from dltutorial.convergence.attempt import Attempt
from dltutorial.convergence.recipe import SolutionRecipe, Task
from dltutorial.errors import CourseError

LEAST_RUNS = 5


def time_to_train_s(attempts: Sequence[Attempt]) -> float | None:
    """The mean without the shortest and the longest; None if one of them did not reach the target.

    Raises:
        CourseError: fewer than five attempts.
    """
    if len(attempts) < LEAST_RUNS:
        raise CourseError(f"{len(attempts)} attempts; time to train is averaged over at least {LEAST_RUNS} seeds")
    if not all(attempt.reached for attempt in attempts):
        return None
    return statistics.mean(sorted(attempt.seconds for attempt in attempts)[1:-1])


def throughput_per_min(recipe: SolutionRecipe, task: Task, instances: int, first_seed: int = 0) -> float | None:
    """Models per minute when so many instances train at once, a rank each; None if one did not reach the target.

    Raises:
        CourseError: an instance of several ranks: then the ranks of one machine would not do.
        RecipeError: the recipe does not suit the task.
    """
    from dltutorial.launch import launch

    if recipe.ranks != 1:
        raise CourseError(f"an instance has one rank here, this recipe has {recipe.ranks}; set ranks=1")
    task.check(recipe)
    found = launch(_instance, instances, recipe, task, first_seed)
    if not all(attempt.reached for attempt, _, _ in found):
        return None
    return 60 * instances / (max(end for *_, end in found) - min(start for _, start, _ in found))


def _instance(recipe: SolutionRecipe, task: Task, first_seed: int) -> tuple[Attempt, float, float]:
    """On each rank: one attempt, beside those of the others; with the moments of its start and end."""
    import torch.distributed as dist

    from dltutorial.convergence import attempt, images

    files, seed = images.prepare(task), first_seed + dist.get_rank()
    dist.barrier()
    start_s = time.monotonic()  # one clock for all processes of this machine
    return attempt.attempt(recipe, task, files, seed), start_s, time.monotonic()
