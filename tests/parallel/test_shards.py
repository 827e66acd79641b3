"""Shards on real ranks: equal to one process at every stage; what a rank holds; what is refused."""

import pytest
import sharding

from dltutorial.launch import RankFailed, launch

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
TRAINED, UNITS = 25 + 2 * 5 + 3 * 30, 4


def apart(one, other):
    assert list(one) == list(other)
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.fixture(scope="module")
def plain():
    (found,) = launch(plain_ways, 1)
    return found


def plain_ways():
    return sharding.one_process(), sharding.one_process(clip=0.5)


@pytest.mark.parametrize("n", [2, 3])
def test_four_updates_are_those_of_one_process_at_every_stage(n, plain):
    for ways in launch(sharding.all_ways, n, timeout_s=100):
        assert set(ways) == set(sharding.WAYS)
        for name, state in ways.items():
            assert apart(state, plain["clipped" in name]) < 1e-9, name


@pytest.mark.parametrize(("stage", "whole", "cut"), [(1, 2, 2), (2, 1, 3), (3, 0, 4)])
def test_a_rank_holds_what_the_formula_says(stage, whole, cut):
    n = 2
    for numbers in launch(sharding.held, n, stage):
        padding = UNITS * (n - 1) * (whole + cut)
        expected = whole * TRAINED + cut * TRAINED / n
        assert expected <= numbers <= expected + padding


def test_a_weight_outside_of_the_loss_is_one_clear_error():
    with pytest.raises(RankFailed, match="1 parameters of a unit have no gradient"):
        launch(sharding.leaves_one_out, 2, timeout_s=60)
