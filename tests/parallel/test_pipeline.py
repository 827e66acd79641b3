"""A pipeline by hand: schedules have the predicted idle time and activations, and training equals one process."""

import pipelines
import pytest
import torch

from dltutorial.errors import CourseError
from dltutorial.launch import launch
from dltutorial.parallel import schedules
from dltutorial.parallel.schedules import Act

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
SIZES = [(1, 4), (2, 2), (3, 9), (8, 32)]
EQUAL = {"F": 1.0, "B": 1.0, "W": 1.0}


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_idle_time_and_activations_are_those_of_the_formulas(p, m):
    simple = {"F": 1.0, "B": 2.0}
    for schedule, held in (
        (schedules.gpipe(p, m), [m] * p),
        (schedules.one_f_one_b(p, m), [min(m, p - rank) for rank in range(p)]),
    ):
        assert schedules.bubble(schedules.timed(schedule, simple)) == pytest.approx((p - 1) / (m + p - 1))
        assert [schedules.in_flight(acts) for acts in schedule] == held
    zero = schedules.zero_bubble(p, m)
    assert schedules.bubble(schedules.timed(zero, EQUAL)) == pytest.approx((p - 1) / (3 * m + p - 1))
    assert [schedules.in_flight(acts) for acts in zero] == [min(m, p)] * p


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m % p == 0])
@pytest.mark.parametrize("v", [2, 3])
def test_virtual_stages_shorten_the_bubble(p, m, v):
    schedule = schedules.interleaved(p, m, v)
    spans = schedules.timed(schedule, {"F": 1.0 / v, "B": 2.0 / v})
    assert schedules.bubble(spans) == pytest.approx((p - 1) / (v * m + p - 1))
    held = [min(v * m, 2 * (p - rank - 1) + (v - 1) * p + 1) if p > 1 else v for rank in range(p)]
    assert [schedules.in_flight(acts) for acts in schedule] == held


def test_a_deadlock_is_found_before_ranks_run_the_schedule():
    without_warm_up = [Act(kind, i, 0) for i in range(4) for kind in "FB"]
    with pytest.raises(CourseError, match="rank 0 at B0; rank 1 at F1"):
        schedules.timed([without_warm_up, schedules.gpipe(2, 4)[1]], {"F": 1.0, "B": 2.0})


@pytest.mark.parametrize("name", pipelines.SCHEDULES)
def test_three_updates_equal_those_of_one_process(name):
    p = 2
    results = launch(pipelines.updates, p, name, timeout_s=60)
    start, expected = pipelines.one_process()
    weights_of = {stage: weights for by_stage, _, _ in results for stage, weights in by_stage.items()}
    weights = torch.cat([weights_of[stage] for stage in sorted(weights_of)])
    assert (weights - expected).norm() < 1e-5 * (expected - start).norm()
    schedule = pipelines.SCHEDULES[name][0](p, pipelines.M)
    assert [max_in_flight for *_, max_in_flight in results] == [schedules.in_flight(acts) for acts in schedule]
    assert [len(losses) for _, losses, _ in results] == [0] * (p - 1) + [pipelines.M]


def test_sends_release_their_tensors_during_the_step():
    m = 40
    for n_held, n_sends in launch(pipelines.tensors_held_by_sends, 2, "1f1b", m, timeout_s=60):
        assert n_sends == m
        assert n_held < m / 4
