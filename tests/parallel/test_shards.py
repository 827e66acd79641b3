"""Shards on real ranks: equal to one process at every stage; what a rank holds; what is refused."""

import pytest
import sharding
import torch
from torch import nn

from dltutorial.errors import CourseError
from dltutorial.launch import RankFailed, launch
from dltutorial.parallel.shards import Sharded

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


@pytest.mark.parametrize("n", [1, 2, pytest.param(4, marks=pytest.mark.ci)])
def test_four_updates_are_those_of_one_process_at_every_stage(n, plain):
    for ways in launch(sharding.all_ways, n, timeout_s=100):
        assert set(ways) == set(sharding.WAYS)
        for name, state in ways.items():
            assert apart(state, plain["clipped" in name]) < 1e-9, name


@pytest.mark.parametrize("n", [2, pytest.param(4, marks=pytest.mark.ci)])
@pytest.mark.parametrize(("stage", "whole", "cut"), [(1, 2, 2), (2, 1, 3), (3, 0, 4)])
def test_a_rank_holds_what_the_formula_says(n, stage, whole, cut):
    for numbers in launch(sharding.held, n, stage):
        padding = UNITS * (n - 1) * (whole + cut)
        expected = whole * TRAINED + cut * TRAINED / n
        assert expected <= numbers <= expected + padding


def test_what_cannot_be_cut_is_refused_in_one_line():
    for said in launch(sharding.refused, 2):
        assert "used outside of it" in said["shared"]
        assert "used outside of it" in said["alien"]
        assert "no parameter of this model is to be trained" in said["frozen"]
        assert "stage 4" in said["stage"]
        assert "several dtypes" in said["dtypes"]
        assert not any("\n" in line for line in said.values())


def test_alone_it_is_refused():
    with pytest.raises(CourseError, match="no process group"):
        Sharded(nn.Linear(2, 2), torch.optim.SGD, stage=1)


def test_a_weight_outside_of_the_loss_is_one_clear_error():
    with pytest.raises(RankFailed, match="1 parameters of a unit have no gradient"):
        launch(sharding.leaves_one_out, 2, timeout_s=60)


def test_a_rank_that_dies_before_a_gather_leaves_nobody_waiting():
    with pytest.raises(RankFailed, match="a disk is full"):
        launch(sharding.dies, 2, timeout_s=60)
