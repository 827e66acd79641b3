"""What the studies of convergence and time to solution cannot do is reported in one line, before anything runs."""

import functools

import clouds
import numpy as np
import pytest

from dltutorial.convergence import curves, ensemble, sweep
from dltutorial.convergence.ensemble import Replica
from dltutorial.course.checks import attempts as attempt
from dltutorial.course.checks.attempts import SolutionRecipe, SolutionTask
from dltutorial.errors import RecipeError

SIZES = (4, 16, 64, 256, 1024, 4096)
Recipe = functools.partial(functools.partial, SolutionRecipe)  # made when it is called
Task = functools.partial(functools.partial, SolutionTask)
survey = functools.cache(clouds.survey)  # 200 images to train with


ONE = (Replica(0.1),)


def train(replicas=ONE, batch_size=16, steps=40, **more):
    return lambda: ensemble.train(survey(), replicas, batch_size, steps, **{"device": "cpu", "widths": (12,), **more})


def swept(sizes=(16,), **more):
    return lambda: sweep.sweep(survey(), sizes, **{"seeds": range(50, 55), "progress": False, **more})


def fit(b_crit=250, lost=0):
    """Steps that follow the law; at so many of the six batch sizes most seeds are not there."""
    steps_PS = np.repeat(curves.steps(np.array(SIZES), 60, b_crit)[:, None], 5, axis=1)
    steps_PS[len(SIZES) - lost :, :3] = np.nan
    return lambda: curves.fit(SIZES, steps_PS)


ROWS = {  # what it is: (call, kind of error, words of the line)
    "ensemble: more images than there are": (train(batch_size=201), RecipeError, "a batch of 201 from 200 training im"),
    "ensemble: an unknown optimizer": (train(optimizer="lion"), RecipeError, "no optimizer 'lion'; choose one of sgd"),
    "ensemble: no step": (train(steps=0), RecipeError, "take at least 1"),
    "ensemble: no replica": (train(replicas=()), RecipeError, "0 replicas"),
    "ensemble: a rate of 0": (train([Replica(0.0)]), RecipeError, r"learning rates \[0.0\] must be finite"),
    "ensemble: weights after another step": (lambda: train()().after(7, 0), RecipeError, "no weights after 7 updates"),
    "sweep: more images than there are": (
        swept([16, 301]),
        RecipeError,
        r"batch sizes \[16, 301\] from 200 training images; take some of 1 to 200",
    ),
    "sweep: a target in per cent": (swept(target=90), RecipeError, "a target of 90 is no accuracy"),
    "sweep: three seeds": (swept(seeds=(50, 51, 52)), RecipeError, "take 5 different ones or more"),
    "sweep: a seed of the tuning": (swept(seeds=(1, 51, 52, 53, 54)), RecipeError, r"others than \(0, 1, 2\)"),
    "curve: few batch sizes reach the target": (fit(lost=4), RecipeError, "2 of 6 batch sizes reached"),
    "curve: a knee above the data": (fit(1e6), RecipeError, "above all sizes.*larger"),
    "recipe: an unknown loader": (Recipe(loader="quick"), RecipeError, "must be one of naive, lean, staged"),
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
