import math
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    SequentialLR,
)

from dltutorial.errors import CourseError
from dltutorial.optim.schedules import (
    BatchUpdate,
    check_run,
    constant,
    cosine,
    grow_batch,
    linear_scaling,
    square_root_scaling,
    step_decay,
    warm_up,
)

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


def linear(warmup_steps, start=0.0):
    """Torch's warm-up whose first update has moved one part and whose last has factor 1."""
    first = start + (1 - start) / warmup_steps
    return lambda optimizer: LinearLR(optimizer, first, total_iters=warmup_steps - 1)


@pytest.mark.parametrize(
    ("schedule", "torchs", "steps"),
    [
        (constant(), lambda o: LambdaLR(o, lambda step: 1), 5),
        (cosine(50), lambda o: CosineAnnealingLR(o, 50), 50),
        (cosine(50, final=0.1), lambda o: CosineAnnealingLR(o, 50, eta_min=0.1 * PEAK), 50),
        (step_decay([3, 10, 11], 0.2), lambda o: MultiStepLR(o, [3, 10, 11], gamma=0.2), 20),
        (warm_up(10, constant()), linear(10), 30),
        (warm_up(10, constant(), start=1 / 16), linear(10, 1 / 16), 30),
    ],
)
def test_a_schedule_gives_torch_s_rates(schedule, torchs, steps):
    assert ours(schedule, steps) == pytest.approx(rates(torchs, steps), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("start", [0.0, 0.25])
@pytest.mark.parametrize(
    ("then", "torchs"),
    [
        (cosine(30, 0.01), lambda o: CosineAnnealingLR(o, 30, eta_min=0.01 * PEAK)),
        (step_decay([10, 20]), lambda o: MultiStepLR(o, [10, 20])),
    ],
)
def test_a_warm_up_before_a_decay_is_torch_s_sequence(start, then, torchs):
    def sequence(optimizer):
        return SequentialLR(optimizer, [linear(8, start)(optimizer), torchs(optimizer)], milestones=[8])

    schedule = warm_up(8, then, start)
    assert ours(schedule, 38) == pytest.approx(rates(sequence, 38), rel=1e-9, abs=1e-12)


def test_lambda_lr_takes_a_schedule_and_its_state_is_safe_to_load(tmp_path):
    schedule = warm_up(4, cosine(6))
    assert rates(lambda o: LambdaLR(o, schedule), 10) == pytest.approx(ours(schedule, 10))
    scheduler = LambdaLR(SGD(nn.Linear(1, 1).parameters(), lr=PEAK), schedule)
    torch.save(scheduler.state_dict(), tmp_path / "state.pt")
    scheduler.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert scheduler.get_last_lr() == pytest.approx([PEAK / 4])


def test_the_equations_of_the_papers():
    n, low = 20, 0.1
    for step in range(n):  # Loshchilov and Hutter, equation 5
        expected = low + 0.5 * (1 - low) * (1 + math.cos(step / n * math.pi))
        assert cosine(n, low)(step) == pytest.approx(expected)
    k, parts = 16, 5  # Goyal et al., 2.2: from η in equal parts to kη
    rise = [linear_scaling(0.1, 32, 512) * warm_up(parts, constant(), start=1 / k)(step) for step in range(parts)]
    assert rise == pytest.approx([0.1 + (1.6 - 0.1) * (step + 1) / parts for step in range(parts)])
    assert square_root_scaling(0.1, 32, 512) ** 2 / 512 == pytest.approx(0.1**2 / 32)  # Krizhevsky, section 3


def test_a_schedule_stays_at_its_end():
    for schedule in (cosine(7, 0.2), step_decay([6], 0.2), warm_up(3, cosine(4, 0.2))):
        assert [schedule(step) for step in (7, 8, 10**9)] == [0.2] * 3
    assert warm_up(3, constant())(10**9) == 1


def test_no_steps_of_warm_up_are_no_warm_up():
    assert [warm_up(0, cosine(9))(step) for step in range(12)] == [cosine(9)(step) for step in range(12)]


def test_warm_up_rises_in_equal_parts_and_wastes_no_update():
    assert [Fraction(warm_up(4, constant())(step)) for step in range(5)] == [Fraction(n, 4) for n in (1, 2, 3, 4, 4)]


def test_a_run_sees_the_whole_schedule():
    check_run(warm_up(10, cosine(90)), 100)
    check_run(cosine(90), 100)
    check_run(step_decay([50, 99]), 100)
    check_run(lambda step: 1.0, 1)


@pytest.mark.parametrize(
    ("schedule", "steps", "why"),
    [
        (cosine(101), 100, "takes 101 updates, the run only 100"),
        (step_decay([50, 100]), 100, "takes 101 updates"),
        (warm_up(10, cosine(91)), 100, "takes 101 updates"),
        (warm_up(100, constant()), 100, "warm-up of 100 updates fills the run of 100"),
        (warm_up(60, warm_up(60, constant())), 100, "warm-up of 120 updates"),
        (constant(), 0, "warm-up of 0 updates fills the run of 0"),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_gets_one_line(schedule, steps, why):
    with pytest.raises(CourseError, match=why) as caught:
        check_run(schedule, steps)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: cosine(0), "cosine: 0 steps down to 0 cannot be; take 1 step"),
        (lambda: cosine(10, final=-0.1), "take 1 step or more, to"),
        (lambda: cosine(3, final=math.nan), "down to nan"),
        (lambda: step_decay([]), "take one or more"),
        (lambda: step_decay([5, 5]), "in rising order"),
        (lambda: step_decay([-5, 5]), "in rising order"),
        (lambda: step_decay([5], 1.5), "decay 1.5 cannot be; take between 0 and 1"),
        (lambda: warm_up(-1, constant()), "warm_up: -1 steps"),
        (lambda: warm_up(3, constant(), start=2), "from 2 cannot be"),
        (lambda: linear_scaling(-0.1, 32, 64), "rate -0.1.*take positive ones"),
        (lambda: linear_scaling(0.1, 0, 64), "batches 0, 64"),
        (lambda: square_root_scaling(0.1, 32, -64), "batches 32, -64"),
        (lambda: grow_batch(constant(), 0, 100, 10), "batches of 0"),
        (lambda: grow_batch(constant(), 32, 100, 16), "batches of 32 to 16"),
        (lambda: grow_batch(constant(), 32, 16, 64), "16 samples in batches of 32"),
        (lambda: grow_batch(cosine(11), 32, 320, 64), "takes 11 updates, the run only 10"),
        (lambda: grow_batch(warm_up(3, constant()), 32, 320, 64), "warm up the rate apart"),
    ],
)
def test_what_cannot_be_gets_one_line(make, why):
    with pytest.raises(CourseError, match=why) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_the_batch_grows_where_the_rate_would_fall():
    decay = step_decay([10, 20], 0.5)
    updates = grow_batch(decay, batch_size=32, samples=30 * 32, largest=10_000)
    assert (
        updates == (BatchUpdate(32, 1.0),) * 10 + (BatchUpdate(64, 1.0),) * 5 + (BatchUpdate(128, 1.0),) * 2
    )  # half a batch is left


def test_at_the_largest_batch_the_rate_falls_again():
    updates = grow_batch(step_decay([10, 20], 0.1), batch_size=32, samples=60 * 32, largest=320)
    assert [(u.batch_size, round(u.factor, 12)) for u in updates] == [(32, 1)] * 10 + [(320, 1)] + [(320, 0.1)] * 4


@pytest.mark.parametrize("decay", [cosine(500), step_decay([100, 300])])
def test_rate_over_batch_is_that_of_the_decayed_rate_at_every_sample(decay):
    seen = 0
    updates = grow_batch(decay, batch_size=16, samples=500 * 16, largest=512)
    for update in updates:
        assert update.factor / update.batch_size == pytest.approx(decay(seen // 16) / 16)
        assert update.batch_size <= 512
        assert update.factor <= 1 + 1 / 32  # whole batches: the rate follows by less than half a sample
        seen += update.batch_size
    assert 500 * 16 - 512 < seen <= 500 * 16
    assert len(updates) < 500
