"""The schedule of a recipe: a step number in, a factor of the peak rate out."""

from dltutorial.config import Recipe
from dltutorial.optim.schedules import cosine, warm_up


def cosine_with_warmup(step: int, recipe: Recipe) -> float:
    """Rise linearly over the warm-up, then fall along half a cosine to ``final_rate_ratio``.

    ``step`` counts from 0. The warm-up's first update already moves (factor 1/warmup_steps). Past the last step the
    factor stays at its end.
    """
    decay = cosine(recipe.steps - recipe.warmup_steps, recipe.final_rate_ratio)
    return warm_up(recipe.warmup_steps, then=decay)(step)
