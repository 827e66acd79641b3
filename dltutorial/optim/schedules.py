"""Learning-rate schedules.

In: the number of an update, which counts from 0. Out: a factor of the peak rate. A schedule is a plain function, so
``torch.optim.lr_scheduler.LambdaLR`` takes it directly. After its last step it keeps its last factor.

    factor = warm_up(10, then=cosine(90))        # 100 updates
    scheduler = LambdaLR(optimizer, factor)      # the optimizer has the peak rate
"""

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant() -> Schedule:
    """The peak rate at every update."""
    return lambda step: 1.0


def cosine(steps: int, final: float = 0.0) -> Schedule:
    """Half a cosine from 1 down to ``final``. Loshchilov and Hutter 2016 (arXiv:1608.03983)."""

    def factor(step: int) -> float:
        progress = min(1.0, step / steps)
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))

    return factor


def warm_up(warmup_steps: int, then: Schedule) -> Schedule:
    """Increase linearly from 0 to 1, then follow another schedule. Goyal et al. 2017 (arXiv:1706.02677).

    The first update is already one step above 0, so that no update is wasted. The last update of the warm-up has the
    factor 1.

    Args:
        warmup_steps: updates of the warm-up.
        then: the schedule after the warm-up; it counts from the end of the warm-up.
    """

    def factor(step: int) -> float:
        if step >= warmup_steps:
            return then(step - warmup_steps)
        return (step + 1) / warmup_steps

    return factor
