"""Sharded layers and ring attention equal one process, with the predicted number of collectives and bytes."""

import pytest
import splits

from dltutorial.launch import launch

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
ROUNDING = 1e-10
BYTES = 3 * 8 * 16 * 8  # B · T · D float64


def test_three_updates_of_sharded_blocks_equal_those_of_one_process_with_four_all_reduces():
    for error, calls in launch(splits.updates, 2, False, timeout_s=60):
        assert error < ROUNDING
        assert calls == [("allreduce_", BYTES)] * 4


def test_sequence_parallelism_equals_one_process_with_the_same_bytes_in_all_gathers_and_reduce_scatters():
    for error, calls in launch(splits.updates, 2, True, timeout_s=60):
        assert error < ROUNDING
        names = [name for name, _ in calls]
        assert sum("gather" in name for name in names) == sum("scatter" in name for name in names) == 4
        assert {n for _, n in calls} == {BYTES}


@pytest.mark.parametrize(("p", "n_tokens"), [(2, 6), (3, 9)])
def test_ring_attention_equals_attention(p, n_tokens):
    results = launch(splits.ring, p, n_tokens, timeout_s=60)
    token_bytes = 2 * 2 * 3 * 4 * 8  # k and v
    for errors, forward, backward in results:
        assert max(errors) < ROUNDING
        assert len(forward) == p - 1
        assert len(backward) == 2 * p - 1
    assert sum(sum(forward) for _, forward, _ in results) == (p - 1) * n_tokens * token_bytes


def test_heads_or_a_hidden_size_that_are_no_multiple_of_the_ranks_are_one_clear_error_and_change_nothing():
    rule = "are not for 2 ranks; take a number of ranks that divides both"
    expected = [
        f"3 heads and an MLP with hidden size 64 {rule}",
        f"4 heads and an MLP with hidden size 63 {rule}",
    ]
    assert launch(splits.refusals, 2, timeout_s=60) == [expected, expected]
