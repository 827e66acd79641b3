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
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dltutorial.errors import CourseError

Schedule = Callable[[int], float]


def constant() -> Schedule:
    """The peak rate, always."""
    return _made(lambda step: 1.0, steps=0)


def cosine(steps: int, final: float = 0.0) -> Schedule:
    """Half a cosine from 1 down to ``final``. Loshchilov and Hutter 2016 (arXiv:1608.03983).

    Raises:
        CourseError: fewer than one step, or ``final`` outside [0, 1].
    """
    steps, final = _whole("cosine: steps", steps, 1), _share("cosine: final", final)

    def factor(step: int) -> float:
        height = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        return final + (1 - final) * height

    return _made(factor, steps)


def polynomial(steps: int, power: float = 1.0, final: float = 0.0) -> Schedule:
    """(1 - step / steps) to a power, from 1 down to ``final``; power 1 is a straight line.

    Raises:
        CourseError: fewer than one step, ``final`` outside [0, 1], or a power that is not positive.
    """
    steps, final = _whole("polynomial: steps", steps, 1), _share("polynomial: final", final)
    power = _positive("polynomial: power", power)

    def factor(step: int) -> float:
        return final + (1 - final) * max(0.0, 1 - step / steps) ** power

    return _made(factor, steps)


def step_decay(milestones: Sequence[int], decay: float = 0.1) -> Schedule:
    """Multiply by ``decay`` at each milestone: ``step_decay([30, 60])`` is 1, from update 30 on 0.1, from 60 on 0.01.

    Raises:
        CourseError: milestones that do not rise, or a decay that is not between 0 and 1.
    """
    marks = [_whole("step_decay: a milestone", mark, 1) for mark in milestones]
    if not marks or any(a >= b for a, b in itertools.pairwise(marks)):
        raise CourseError(f"step_decay: milestones {marks} must rise, and there must be one; list them in order")
    if not 0 < decay < 1:
        raise CourseError(f"step_decay: decay {decay:g} must lie between 0 and 1; 0.1 is usual")
    return _made(lambda step: decay ** bisect.bisect_right(marks, step), marks[-1] + 1)


def warm_up(warmup_steps: int, then: Schedule, start: float = 0.0) -> Schedule:
    """Rise in equal parts from ``start`` to 1, then do ``then``, which counts from the end of the warm-up.

    The first update has moved one part already, so ``start`` 0 wastes none; the last one of the warm-up has factor 1.
    Goyal et al. begin at the rate of the small batch: ``start`` is base_batch / batch. No steps: no warm-up.

    Raises:
        CourseError: negative steps, or ``start`` outside [0, 1].
    """
    n, start = _whole("warm_up: warmup_steps", warmup_steps, 0), _share("warm_up: start", start)

    def factor(step: int) -> float:
        return start + (1 - start) * (step + 1) / n if step < n else then(step - n)

    return _made(factor, n + getattr(then, "steps", 0), n + getattr(then, "warmup_steps", 0))


def check_run(schedule: Schedule, steps: int) -> None:
    """A run of so many updates must see the whole schedule. A function that knows no length always passes.

    Raises:
        CourseError: the warm-up fills the run, or the schedule goes on after its end.
    """
    steps = _whole("run: steps", steps, 1)
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
    return _positive("linear_scaling: base_rate", base_rate) * _ratio("linear_scaling", base_batch, batch)


def square_root_scaling(base_rate: float, base_batch: int, batch: int) -> float:
    """The peak rate of a batch k times as large: √k times the base rate. Krizhevsky 2014 (arXiv:1404.5997).

    It keeps the variance of an update, the rate squared over the batch.

    Raises:
        CourseError: something is not positive.
    """
    ratio = _ratio("square_root_scaling", base_batch, batch)
    return _positive("square_root_scaling: base_rate", base_rate) * math.sqrt(ratio)


@dataclass(frozen=True)
class Update:
    """One update of a run whose batch grows: its samples, and its factor of the peak rate."""

    batch_size: int
    factor: float


def grow_batch(decay: Schedule, batch_size: int, samples: int, largest: int) -> tuple[Update, ...]:
    """Where ``decay`` lowers the rate by a factor, raise the batch by it instead, and keep the rate.

    Rate over batch, the noise of SGD, is at each sample what it is with ``decay``; updates are fewer. At the
    ``largest`` batch the rate takes over again. Smith et al. 2017 (arXiv:1711.00489).

    Args:
        decay: counts updates of ``batch_size``.
        batch_size: at the start.
        samples: of the whole run, repeats counted; a last batch that would not be full is left out.
        largest: batch that fits, or that the paper advises: a tenth of the training set.

    Raises:
        CourseError: something is not positive, ``largest`` is below ``batch_size``, the samples do not fill a batch, or
            ``decay`` warms up or is longer than the run.
    """
    if getattr(decay, "warmup_steps", 0):
        raise CourseError("grow_batch: decay warms up, so it would begin with large batches; warm up the rate apart")
    batch_size = _whole("grow_batch: batch_size", batch_size, 1)
    largest = _whole(f"grow_batch: largest (the first batch has {batch_size})", largest, batch_size)
    samples = _whole(f"grow_batch: samples (a batch has {batch_size})", samples, batch_size)
    check_run(decay, samples // batch_size)
    return tuple(_updates(decay, batch_size, samples, largest))


def _updates(decay: Schedule, batch_size: int, samples: int, largest: int) -> Iterator[Update]:
    seen = 0
    while seen < samples:
        wanted = decay(seen // batch_size)
        size = largest if wanted * largest <= batch_size else round(batch_size / wanted)
        if (seen := seen + size) <= samples:
            yield Update(size, wanted * size / batch_size)


def _made(factor: Schedule, steps: int, warmup_steps: int = 0) -> Schedule:
    """The function with its length, and a clear line for an update before the first."""

    def schedule(step: int) -> float:
        if step < 0:
            raise CourseError(f"schedule: update {step} is before the first; updates count from 0")
        return factor(step)

    schedule.steps, schedule.warmup_steps = steps, warmup_steps
    return schedule


def _whole(what: str, value: int, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise CourseError(f"{what}: {value!r} must be a whole number, at least {least}; change it")
    return number


def _share(what: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise CourseError(f"{what}: {value:g} must lie in [0, 1], as a share of the peak rate; change it")
    return value


def _positive(what: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise CourseError(f"{what}: {value:g} must be positive and finite; change it")
    return value


def _ratio(what: str, base_batch: int, batch: int) -> float:
    return _whole(f"{what}: batch", batch, 1) / _whole(f"{what}: base_batch", base_batch, 1)
