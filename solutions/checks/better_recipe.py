"""Check of chapter 15's exercise: a recipe that beats the reference, on seeds that its author does not know.

The learner's function gets the reference recipe and the task, and returns a recipe. The first case checks the recipe
without training. The second case trains with five unknown seeds and staged images, because all loaders give the same
images. The third case trains with five more seeds, in turn with the reference under each better loader. All runs must
reach the target, and take clearly fewer device-seconds than the best of those references. The hint follows from the
recipe and the runs.

Source: Farrell et al. 2021, arXiv:2110.11466
"""

import os
import statistics
from collections.abc import Callable
from dataclasses import replace

from dltutorial.course.checks import Exercise, Wrong, attempts
from dltutorial.course.checks.attempts import Attempt, SolutionRecipe, SolutionTask
from dltutorial.errors import RecipeError

TASK = SolutionTask(target=0.94, train=8_000, valid=2_000, seed=15)
REFERENCE = SolutionRecipe(loader="one by one", batch_size=64, learning_rate=2**-5, eval_every=10)
SEEDS = 5  # of each of the two cases that train
PATIENCE = 4  # times the updates that a run usually takes, before the second case gives up
CLEARLY = 0.8  # times the device-seconds of one better knob, the loader; a smaller difference may be chance
ONE_KNOB = [replace(REFERENCE, loader=loader) for loader in ("batched", "staged")]

_REASONS = {
    "recipe: warmup_steps=": "The warm-up must end before the run ends, so warmup_steps must be smaller than steps.",
    "training images": f"A batch cannot be larger than the data. There are {TASK.train} training images.",
    "recipe: batch_size=": "A batch is shared by the ranks, so batch_size must be divisible by ranks.",
}


def _recipe(fn: Callable) -> SolutionRecipe:
    """Return the learner's recipe, or raise the error for an answer that is none."""
    try:
        recipe = fn(REFERENCE, TASK)
        if isinstance(recipe, SolutionRecipe):
            attempts.check_fits(recipe, TASK)
            return recipe
    except RecipeError as error:
        hints = [hint for key, hint in _REASONS.items() if key in str(error)]
        raise Wrong(
            "a recipe that is possible", error, hints[0] if hints else "Read the message of the recipe."
        ) from None
    hint = "Return a SolutionRecipe, for example dataclasses.replace(reference, batch_size=128)."
    if isinstance(recipe, dict):
        hint = "Only the knobs of SolutionRecipe can be changed. Data, network and target are the same for everybody."
    raise Wrong("a SolutionRecipe", recipe, "" if recipe is None else hint)


def _can_be(fn: Callable) -> None:
    """The recipe is possible, and it differs from the reference by more than its loader"""
    recipe = _recipe(fn)
    if recipe == REFERENCE:
        raise Wrong("another recipe", recipe.describe(), "This is the reference itself. Change at least one knob.")
    if recipe in ONE_KNOB:
        hint = "The loader is the first knob, not the only one. Which part is the largest with the new loader?"
        raise Wrong("more than the reference with a better loader", recipe.describe(), hint)


def _reaches(fn: Callable) -> None:
    """It reaches the target with each of five unseen seeds"""
    recipe = _recipe(fn)
    steps = min(recipe.steps, int(PATIENCE * _usual_steps(recipe)))
    warmup_steps = min(recipe.warmup_steps, steps - 1)
    fast = replace(recipe, loader="staged", ranks=1, steps=steps, warmup_steps=warmup_steps)
    for seed in _unknown_seeds():
        _check_reached(recipe, attempts.attempts(fast, TASK, [seed]))


def _beats(fn: Callable) -> None:
    """With five more seeds it needs clearly fewer device-seconds than the reference with a better loader"""
    recipe = _recipe(fn)
    ours: list[Attempt] = []
    theirs: list[list[Attempt]] = [[] for _ in ONE_KNOB]
    for seed in _unknown_seeds():
        for runs, rival in zip([ours, *theirs], [recipe, *ONE_KNOB], strict=True):
            runs += attempts.attempts(rival, TASK, [seed])
    _check_reached(recipe, ours)
    # Runs of one seed follow each other at once, so that other programs slow both down. The better rival counts.
    ratios = [statistics.median(a.device_s / b.device_s for a, b in zip(ours, runs, strict=True)) for runs in theirs]
    if max(ratios) > CLEARLY:
        rival = theirs[ratios.index(max(ratios))]
        got = f"{max(ratios):.0%}, {statistics.median(run.device_s for run in ours):.2f} device-seconds"
        expected = f"less than {CLEARLY:.0%} of those with one knob, the loader; median of {SEEDS} seeds"
        raise Wrong(expected, got, _why_slow(recipe, ours, rival))


def _unknown_seeds() -> list[int]:
    """Return new seeds in every check, so that no recipe is tuned for them."""
    first = int.from_bytes(os.urandom(4), "big")
    return list(range(first, first + SEEDS))


def _check_reached(recipe: SolutionRecipe, runs: list[Attempt]) -> None:
    """All runs must reach the target. Otherwise the hint names the most likely reason."""
    reached = sum(run.reached for run in runs)
    if reached == len(runs):
        return
    got = f"{reached} of {len(runs)} seeds, accuracies {', '.join(f'{run.accuracy:.1%}' for run in runs)}"
    expected = f"{TASK.target:.0%} with every seed"
    if any(run.diverged for run in runs):
        raise Wrong(
            expected, got, "It diverges, because the learning rate is too large. The loss is no longer a number."
        )
    if recipe.learning_rate > 2 * _usual_rate(recipe):
        hint = "The learning rate is too large. A rate in proportion to the batch is right only for small batches."
    elif recipe.steps < _usual_steps(recipe):
        hint = "It gives up too early, because steps is too small for most seeds."
    elif recipe.learning_rate < _usual_rate(recipe) / 8:
        hint = "The learning rate is so small that the run ends before it reaches the target."
    else:
        hint = "Every seed must reach the target. Look at the learning rate and at steps."
    raise Wrong(expected, got, hint)


def _why_slow(recipe: SolutionRecipe, ours: list[Attempt], theirs: list[Attempt]) -> str:
    """Return the hint for the knob that most likely costs the time."""
    steps = statistics.median(run.steps for run in ours)
    reference_steps = statistics.median(run.steps for run in theirs)
    if recipe.ranks > REFERENCE.ranks:
        return (
            "More ranks may be faster, but you pay for each of them. Therefore count device-seconds, ranks × seconds."
        )
    input_share = statistics.median(run.input_s / run.seconds for run in ours)
    if steps < 0.7 * reference_steps and input_share > 0.4:
        return "It needs fewer steps, but each step takes longer. Therefore count seconds, not steps."
    if input_share > 0.4:
        return f"{input_share:.0%} of the time is spent waiting for images. Shorten this part first."
    if statistics.median(run.evaluate_s / run.seconds for run in ours) > 0.3:
        return "Much of the time is spent on validation. Validate less often, with a larger eval_every."
    if steps > 1.5 * reference_steps:
        return "It needs more steps than the reference. Look at the learning rate and the batch size."
    return "Measure the parts with show_parts(recipe, task), and shorten the largest one."


def _usual_rate(recipe: SolutionRecipe) -> float:
    """Return a learning rate that works: chapter 12's rate, which grows with the root of the batch size."""
    base = 2**-4 if recipe.optimizer == "sgd" else 2**-9
    return base * (recipe.batch_size / 32) ** 0.5


def _usual_steps(recipe: SolutionRecipe) -> float:
    """Return about how many updates a run takes."""
    return 60 * (1 + 300 / recipe.batch_size)


_HINTS = (
    "Print the parts of the reference: staging, loading, updates and evaluation. Which part is the largest?",
    "Which loader prepares an image in the shortest time? Which part is the largest with this loader?",
    "A larger batch needs fewer steps, up to a limit. Its learning rate also grows, about with the square root.",
)
EXERCISE = Exercise(
    name="better_recipe", chapter="15", cases=(_can_be, _reaches, _beats), hints=_HINTS, deadline_s=90.0
)
