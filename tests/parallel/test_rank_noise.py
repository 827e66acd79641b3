"""The noise scale on real ranks: the formula of one process, without bias, for one number more on the way."""

import math

import noisy
import numpy as np
import pytest

from dltutorial.launch import RankFailed, launch

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")


@pytest.fixture(scope="module")
def found():
    """All cases in one launch of two ranks."""
    return launch(noisy.many_cases, 2, "as_one_process", "accumulated", "compressed", "messages", "refusals")


@pytest.mark.parametrize("world_size", [3, 4])
def test_more_ranks_give_the_formula_of_one_process(world_size):
    for rank in launch(noisy.as_one_process, world_size, timeout_s=60):
        assert max(rank.values()) < 1e-9


def test_every_wrapper_gives_the_formula_of_one_process(found):
    for rank in found:
        assert set(rank["as_one_process"]) == set(noisy.WRAPPERS)
        assert max(rank["as_one_process"].values()) < 1e-9


def test_the_estimates_are_unbiased_on_a_problem_of_known_answer():
    (steps, running), (others, _) = launch(noisy.many_steps, 2, timeout_s=60)
    assert steps == others
    for values, truth in zip(np.array(steps).T, (noisy.SQUARED, noisy.TRACE), strict=True):
        error = values.std() / math.sqrt(len(values))
        assert abs(values.mean() - truth) < 4 * error
        assert error < 0.1 * truth
    assert running == pytest.approx(noisy.TRACE / noisy.SQUARED, rel=0.3)


def test_micro_batches_count_together(found):
    for rank in found:
        whole, pieces = rank["accumulated"]
        assert pieces == pytest.approx(whole)


def test_compression_hears_the_ranks_own_gradients_before_they_are_rounded(found):
    for rank in found:
        got, exact = rank["compressed"]
        assert got == pytest.approx(exact, rel=0.01)


def test_it_costs_one_message_of_one_number(found):
    for rank in found:
        without, listening = rank["messages"]
        assert listening == [*without, 1]


def test_what_cannot_be_is_told_in_one_line(found):
    for rank in found:
        no_hook, unequal, too_early = rank["refusals"]
        assert "NaiveDDP takes no communication hook" in no_hook
        assert "[4, 5] samples" in unequal
        assert "after backward()" in too_early
    with pytest.raises(RankFailed, match="one rank has one batch size"):
        launch(noisy.one_rank, 1, timeout_s=30)
