"""Learning-rate and batch-size schedules: the number of an update in, a factor of the peak rate out.

An update counts from 0. A schedule is a plain function, so ``torch.optim.lr_scheduler.LambdaLR`` takes it as it is;
it also carries ``steps``, the updates over which it changes, and ``warmup_steps``, those that rise. After its last
step it stays where it is.

    factor = warm_up(10, then=cosine(90), start=1 / 16)      # 100 updates
    rate = linear_scaling(0.1, base_batch=32, batch=512) * factor(step)

Goyal et al. 2017 (arXiv:1706.02677) for linear scaling and the gradual warm-up.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dltutorial.errors import CourseError

Schedule = Callable[[int], float]


def constant() -> Schedule:
    """The peak rate, always."""
    return _lasting(0, lambda step: 1.0)


def cosine(steps: int, final: float = 0.0) -> Schedule:
    """Half a cosine from 1 down to ``final``. Loshchilov and Hutter 2016 (arXiv:1608.03983).

    Raises:
        CourseError: fewer than one step, or ``final`` outside [0, 1].
    """
    _require(steps >= 1 and 0 <= final <= 1, f"cosine: {steps} steps down to {final:g}", "1 step or more, to [0, 1]")

    def factor(step: int) -> float:
        height = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        return final + (1 - final) * height

    return _lasting(steps, factor)


def step_decay(milestones: Sequence[int], decay: float = 0.1) -> Schedule:
    """Multiply by ``decay`` at each milestone: ``step_decay([30, 60])`` is 1, from update 30 on 0.1, from 60 on 0.01.

    Raises:
        CourseError: milestones that do not rise, or a decay that is not between 0 and 1.
    """
    rise = all(a < b for a, b in itertools.pairwise([0, *milestones]))
    _require(bool(milestones) and rise, f"step_decay: milestones {milestones}", "one or more, in rising order")
    _require(0 < decay < 1, f"step_decay: decay {decay:g}", "between 0 and 1; 0.1 is usual")
    return _lasting(milestones[-1] + 1, lambda step: decay ** bisect.bisect_right(milestones, step))


def warm_up(warmup_steps: int, then: Schedule, start: float = 0.0) -> Schedule:
    """Rise in equal parts from ``start`` to 1, then do ``then``, which counts from the end of the warm-up.

    The first update has moved one part already, so ``start`` 0 wastes none; the last one of the warm-up has factor 1.
    Goyal et al. begin at the rate of the small batch: ``start`` is base_batch / batch. No steps: no warm-up.

    Raises:
        CourseError: negative steps, or ``start`` outside [0, 1].
    """
    n, what = warmup_steps, f"warm_up: {warmup_steps} steps from {start:g}"
    _require(n >= 0 and 0 <= start <= 1, what, "no negative number, from [0, 1]")

    def factor(step: int) -> float:
        return start + (1 - start) * (step + 1) / n if step < n else then(step - n)

    return _lasting(n + getattr(then, "steps", 0), factor, n + getattr(then, "warmup_steps", 0))


def _lasting(steps: int, factor: Schedule, warmup_steps: int = 0) -> Schedule:
    """The function with its length."""
    factor.__dict__.update(steps=steps, warmup_steps=warmup_steps)
    return factor


def _require(holds: bool, what: str, take: str) -> None:
    if not holds:
        raise CourseError(f"{what} cannot be; take {take}")


def check_run(schedule: Schedule, steps: int) -> None:
    """A run of so many updates must see the whole schedule. A function that knows no length always passes.

    Raises:
        CourseError: the warm-up fills the run, or the schedule goes on after its end.
    """
    warmup_steps, length = getattr(schedule, "warmup_steps", 0), getattr(schedule, "steps", 0)
    if warmup_steps >= steps:
        raise CourseError(
            f"the warm-up of {warmup_steps} updates fills the run of {steps}: no update would follow at the full rate; "
            "warm up for fewer"
        )
    if length > steps:
        raise CourseError(
            f"the schedule takes {length} updates, the run only {steps}: its end would never be seen; "
            "make the schedule as long as the run"
        )


def linear_scaling(base_rate: float, base_batch: int, batch: int) -> float:
    """The peak rate of a batch k times as large: k times the base rate. Goyal et al. 2017 (arXiv:1706.02677).

    Raises:
        CourseError: something is not positive.
    """
    _require(
        min(base_rate, base_batch, batch) > 0, f"rate {base_rate:g}, batches {base_batch}, {batch}", "positive ones"
    )
    return base_rate * batch / base_batch


def square_root_scaling(base_rate: float, base_batch: int, batch: int) -> float:
    """The peak rate of a batch k times as large: √k times the base rate. Krizhevsky 2014 (arXiv:1404.5997).

    It keeps the variance of an update, the rate squared over the batch.

    Raises:
        CourseError: something is not positive.
    """
    return base_rate * math.sqrt(linear_scaling(1.0, base_batch, batch))


@dataclass(frozen=True)
class BatchUpdate:
    """One update of a run whose batch grows: its samples, and its factor of the peak rate."""

    batch_size: int
    factor: float


def grow_batch(decay: Schedule, batch_size: int, samples: int, largest: int) -> tuple[BatchUpdate, ...]:
    """Where ``decay`` lowers the rate by a factor, raise the batch by it instead, and keep the rate.

    Rate over batch, the noise of SGD, is at each sample what it is with ``decay``; updates are fewer. At the
    ``largest`` batch the rate takes over again. Smith et al. 2017 (arXiv:1711.00489).

    Args:
        decay: counts updates of ``batch_size``, which is that of the start.
        samples: of the whole run, repeats counted; a last batch that would not be full is left out.
        largest: batch that fits, or that the paper advises: a tenth of the training set.

    Raises:
        CourseError: sizes that do not fit, or ``decay`` warms up or is longer than the run.
    """
    if getattr(decay, "warmup_steps", 0):
        raise CourseError("grow_batch: decay warms up, so it would begin with large batches; warm up the rate apart")
    what = f"grow_batch: {samples} samples in batches of {batch_size} to {largest}"
    _require(1 <= batch_size <= min(samples, largest), what, "samples for a batch, and no smaller one at the end")
    check_run(decay, samples // batch_size)
    seen, updates = 0, list[BatchUpdate]()
    while seen < samples:
        wanted = decay(seen // batch_size)
        size = largest if wanted * largest <= batch_size else round(batch_size / wanted)
        if (seen := seen + size) <= samples:
            updates.append(BatchUpdate(size, wanted * size / batch_size))
    return tuple(updates)
