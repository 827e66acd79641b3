"""A pipeline by hand: schedules have the predicted idle time and activations, and training equals one process."""

import pipelines
import pytest
import torch

from dltutorial.errors import CourseError
from dltutorial.launch import launch
from dltutorial.parallel import pipeline_schedules
from dltutorial.parallel.pipeline_schedules import Action, bubble_fraction, max_in_flight, simulate

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
SIZES = [(1, 4), (2, 2), (3, 9), (8, 32)]
EQUAL = {"F": 1.0, "B": 1.0, "W": 1.0}


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_idle_time_and_activations_are_those_of_the_formulas(p, m):
    simple = {"F": 1.0, "B": 2.0}
    for schedule, held in (
        (pipeline_schedules.gpipe(p, m), [m] * p),
        (pipeline_schedules.one_f_one_b(p, m), [min(m, p - rank) for rank in range(p)]),
    ):
        assert bubble_fraction(simulate(schedule, simple)) == pytest.approx((p - 1) / (m + p - 1))
        assert [max_in_flight(actions) for actions in schedule] == held
    zero = pipeline_schedules.zero_bubble(p, m)
    assert bubble_fraction(simulate(zero, EQUAL)) == pytest.approx((p - 1) / (3 * m + p - 1))
    assert [max_in_flight(actions) for actions in zero] == [min(m, p)] * p


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m % p == 0])
@pytest.mark.parametrize("v", [2, 3])
def test_virtual_stages_shorten_the_bubble(p, m, v):
    schedule = pipeline_schedules.interleaved(p, m, v)
    spans = simulate(schedule, {"F": 1.0 / v, "B": 2.0 / v})
    assert bubble_fraction(spans) == pytest.approx((p - 1) / (v * m + p - 1))
    held = [min(v * m, 2 * (p - rank - 1) + (v - 1) * p + 1) if p > 1 else v for rank in range(p)]
    assert [max_in_flight(actions) for actions in schedule] == held


def test_a_deadlock_is_found_before_ranks_run_the_schedule():
    without_warm_up = [Action(kind, i, 0) for i in range(4) for kind in "FB"]
    with pytest.raises(CourseError, match="rank 0 at B0 of stage 0; rank 1 at F1 of stage 1"):
        simulate([without_warm_up, pipeline_schedules.gpipe(2, 4)[1]], {"F": 1.0, "B": 2.0})


@pytest.mark.parametrize("name", pipelines.SCHEDULES)
def test_three_updates_equal_those_of_one_process(name):
    p = 2
    results = launch(pipelines.updates, p, name, timeout_s=60)
    start, expected = pipelines.one_process()
    weights_of = {stage: weights for by_stage, _, _ in results for stage, weights in by_stage.items()}
    weights = torch.cat([weights_of[stage] for stage in sorted(weights_of)])
    assert (weights - expected).norm() < 1e-5 * (expected - start).norm()
    schedule = pipelines.SCHEDULES[name][0](p, pipelines.M)
    assert [n_held for *_, n_held in results] == [max_in_flight(actions) for actions in schedule]
    assert [len(losses) for _, losses, _ in results] == [0] * (p - 1) + [pipelines.M]


def test_a_rank_waits_for_each_of_its_sends():
    m = 4
    assert launch(pipelines.numbers_of_sends_and_waits, 2, "1f1b", m, timeout_s=60) == [(m, m)] * 2
