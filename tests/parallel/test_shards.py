"""Shards on real ranks equal one process at every stage, and hold the predicted bytes."""

import pytest
import sharding

from dltutorial.launch import RankFailed, launch

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
TRAINED, UNITS = 25 + 2 * 5 + 3 * 30, 4


def largest_difference(one, other):
    assert list(one) == list(other)
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.fixture(scope="module")
def plain():
    (states,) = launch(plain_cases, 1)
    return states


def plain_cases():
    return sharding.one_process(), sharding.one_process(clip=0.5)


@pytest.mark.parametrize("n", [2, 3])
def test_four_updates_are_those_of_one_process_at_every_stage(n, plain):
    for states in launch(sharding.all_cases, n, timeout_s=100):
        assert set(states) == set(sharding.CASES)
        for name, state in states.items():
            assert largest_difference(state, plain["clipped" in name]) < 1e-9, name


@pytest.mark.parametrize(("stage", "n_replicated", "n_sharded"), [(1, 2, 2), (2, 1, 3), (3, 0, 4)])
def test_a_rank_holds_what_the_formula_says(stage, n_replicated, n_sharded):
    n = 2
    for numbers in launch(sharding.held, n, stage):
        padding = UNITS * (n - 1) * (n_replicated + n_sharded)
        expected = n_replicated * TRAINED + n_sharded * TRAINED / n
        assert expected <= numbers <= expected + padding


def test_a_weight_outside_of_the_loss_is_one_clear_error():
    with pytest.raises(RankFailed, match="1 parameters of a unit have no gradient"):
        launch(sharding.without_one_parameter, 2, timeout_s=60)
