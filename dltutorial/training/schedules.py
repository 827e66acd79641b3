"""Learning-rate schedules: a step number in, a factor of the peak rate out."""

import math

from dltutorial.config import Recipe


def cosine_with_warmup(step: int, recipe: Recipe) -> float:
    """Rise linearly over the warm-up, then fall along half a cosine to ``final_rate_ratio``.

    ``step`` counts from 0. The warm-up's first update already moves (factor 1/warmup_steps). Past the last step the
    factor stays at its end. Goyal et al. 2017 (arXiv:1706.02677) for the warm-up, Loshchilov and Hutter 2016
    (arXiv:1608.03983) for the cosine.
    """
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    after = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, after)))
    return recipe.final_rate_ratio + (1 - recipe.final_rate_ratio) * cosine
