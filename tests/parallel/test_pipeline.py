"""A pipeline by hand: orders idle and hold what formulas say, train as one process does, and end when a rank dies."""

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
def test_orders_idle_and_hold_what_the_formulas_say(p, m):
    simple = {"F": 1.0, "B": 2.0}
    for order, holds in (
        (schedules.gpipe(p, m), [m] * p),
        (schedules.one_f_one_b(p, m), [min(m, p - rank) for rank in range(p)]),
    ):
        assert schedules.bubble(schedules.timed(order, simple)) == pytest.approx((p - 1) / (m + p - 1))
        assert [schedules.in_flight(mine) for mine in order] == holds
    zero = schedules.zero_bubble(p, m)
    assert schedules.bubble(schedules.timed(zero, EQUAL)) == pytest.approx((p - 1) / (3 * m + p - 1))
    assert [schedules.in_flight(mine) for mine in zero] == [min(m, p)] * p


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m % p == 0])
@pytest.mark.parametrize("v", [2, 3])
def test_thin_stages_shorten_the_bubble(p, m, v):
    order = schedules.interleaved(p, m, v)
    spans = schedules.timed(order, {"F": 1.0 / v, "B": 2.0 / v})
    assert schedules.bubble(spans) == pytest.approx((p - 1) / (v * m + p - 1))
    thin = [min(v * m, 2 * (p - rank - 1) + (v - 1) * p + 1) if p > 1 else v for rank in range(p)]
    assert [schedules.in_flight(mine) for mine in order] == thin


@pytest.mark.parametrize("name", pipelines.ORDERS)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 4)])
def test_every_part_goes_once_through_every_stage_in_order(name, p, m):
    make, v = pipelines.ORDERS[name]
    acts = [act for rank, order in enumerate(make(p, m)) for act in order if act.stage % p == rank]
    kinds = "FBW" if name == "zero bubble" else "FB"
    assert sorted(acts) == sorted(Act(kind, part, s) for kind in kinds for part in range(m) for s in range(p * v))


def test_an_order_that_stands_still_is_found_before_it_runs():
    impatient = [Act(kind, part, 0) for part in range(4) for kind in "FB"]
    with pytest.raises(CourseError, match="rank 0 at B0; rank 1 at F1"):
        schedules.timed([impatient, schedules.gpipe(2, 4)[1]], {"F": 1.0, "B": 2.0})


@pytest.mark.parametrize("name", pipelines.ORDERS)
def test_three_updates_are_those_of_one_process(name):
    p = 2
    found = launch(pipelines.updates, p, name, timeout_s=60)
    _right(found)
    assert [held for *_, held in found] == [schedules.in_flight(o) for o in pipelines.ORDERS[name][0](p, pipelines.M)]
    assert [len(losses) for _, losses, _ in found] == [0] * (p - 1) + [pipelines.M]


def _right(found):
    start, wanted = pipelines.alone()
    stages = {s: weights for mine, *_ in found for s, weights in mine.items()}
    got = torch.cat([stages[s] for s in sorted(stages)])
    assert (got - wanted).norm() < 1e-5 * (wanted - start).norm()
