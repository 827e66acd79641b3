from fractions import Fraction

import pytest
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
)

from dltutorial.optim.schedules import constant, cosine, warm_up

PEAK = 0.3


def rates(make, steps):
    """The rate of each update under a scheduler of torch."""
    optimizer = SGD(nn.Linear(1, 1).parameters(), lr=PEAK)
    scheduler, seen = make(optimizer), []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def ours(schedule, steps):
    return [PEAK * schedule(step) for step in range(steps)]


def linear(warmup_steps):
    """Torch's warm-up whose first update has moved one part and whose last has factor 1."""
    return lambda optimizer: LinearLR(optimizer, 1 / warmup_steps, total_iters=warmup_steps - 1)


@pytest.mark.parametrize(
    ("schedule", "torchs", "steps"),
    [
        (constant(), lambda o: LambdaLR(o, lambda step: 1), 5),
        (cosine(50), lambda o: CosineAnnealingLR(o, 50), 50),
        (cosine(50, final=0.1), lambda o: CosineAnnealingLR(o, 50, eta_min=0.1 * PEAK), 50),
        (warm_up(10, constant()), linear(10), 30),
    ],
)
def test_a_schedule_gives_torch_s_rates(schedule, torchs, steps):
    assert ours(schedule, steps) == pytest.approx(rates(torchs, steps), rel=1e-9, abs=1e-12)


def test_a_schedule_stays_at_its_end():
    for schedule in (cosine(7, 0.2), warm_up(3, cosine(4, 0.2))):
        assert [schedule(step) for step in (7, 8, 10**9)] == [0.2] * 3
    assert warm_up(3, constant())(10**9) == 1


def test_warm_up_rises_in_equal_parts_and_wastes_no_update():
    assert [Fraction(warm_up(4, constant())(step)) for step in range(5)] == [Fraction(n, 4) for n in (1, 2, 3, 4, 4)]
