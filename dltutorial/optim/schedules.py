"""Learning-rate schedules: the number of an update in, a factor of the peak rate out.

An update counts from 0. A schedule is a plain function, so ``torch.optim.lr_scheduler.LambdaLR`` takes it as it is.
After its last step it stays where it is.

    factor = warm_up(10, then=cosine(90), start=1 / 16)      # 100 updates
    scheduler = LambdaLR(optimizer, factor)                  # whose rate is the peak
"""

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant() -> Schedule:
    """The peak rate, always."""
    return lambda step: 1.0


def cosine(steps: int, final: float = 0.0) -> Schedule:
    """Half a cosine from 1 down to ``final``. Loshchilov and Hutter 2016 (arXiv:1608.03983)."""

    def factor(step: int) -> float:
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))

    return factor


def warm_up(warmup_steps: int, then: Schedule, start: float = 0.0) -> Schedule:
    """Rise in equal parts from ``start`` to 1, then do ``then``, which counts from the end of the warm-up.

    The first update has moved one part already, so ``start`` 0 wastes none; the last one of the warm-up has factor 1.
    Goyal et al. 2017 (arXiv:1706.02677) begin at the rate of the small batch: ``start`` is base_batch / batch.
    """

    def factor(step: int) -> float:
        return start + (1 - start) * (step + 1) / warmup_steps if step < warmup_steps else then(step - warmup_steps)

    return factor
