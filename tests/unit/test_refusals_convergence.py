"""What the studies of convergence and time to solution cannot do is reported in one line, before anything runs."""

import functools

import numpy as np
import pytest

from dltutorial.convergence import curves
from dltutorial.course.checks import attempts as attempt
from dltutorial.course.checks.attempts import SolutionRecipe, SolutionTask
from dltutorial.errors import RecipeError

SIZES = (4, 16, 64, 256, 1024, 4096)
Recipe = functools.partial(functools.partial, SolutionRecipe)  # made when it is called
Task = functools.partial(functools.partial, SolutionTask)


def fit(b_crit=250, lost=0):
    """Steps that follow the law; at so many of the six batch sizes most seeds are not there."""
    steps_PS = np.repeat(curves.steps(np.array(SIZES), 60, b_crit)[:, None], 5, axis=1)
    steps_PS[len(SIZES) - lost :, :3] = np.nan
    return lambda: curves.fit(SIZES, steps_PS)


ROWS = {  # what it is: (call, kind of error, words of the line)
    "curve: few batch sizes reach the target": (fit(lost=4), RecipeError, "2 of 6 batch sizes reached"),
    "curve: a knee above the data": (fit(1e6), RecipeError, "above all sizes.*larger"),
    "recipe: an unknown loader": (Recipe(loader="quick"), RecipeError, "must be one of one by one, batched, staged"),
    "recipe: no image": (Recipe(batch_size=0), RecipeError, "integer of at least 1"),
    "recipe: ranks that do not divide": (Recipe(ranks=3), RecipeError, "must be divisible by ranks=3"),
    "recipe: a rate of 0": (Recipe(learning_rate=0.0), RecipeError, "greater than 0"),
    "recipe: a warm-up that fills the run": (
        Recipe(warmup_steps=100, steps=100),
        RecipeError,
        "must be smaller than steps=100",
    ),
    "attempt: more images than there are": (
        lambda: attempt.attempts(SolutionRecipe(batch_size=601), SolutionTask(train=600), [0]),
        RecipeError,
        "there are 600 training images",
    ),
    **{f"task: a target of {t}": (Task(target=t), RecipeError, "target") for t in (0.5, 1.2)},
}


@pytest.mark.parametrize("what", ROWS)
def test_an_impossible_study_is_one_line(what):
    call, kind, words = ROWS[what]
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
