"""A layer cut over ranks, and attention around a ring: equal to one process, and no message more than said."""

import pytest
import splits

from dltutorial.launch import RankFailed, launch

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
ROUNDING = 1e-10
BYTES = 3 * 8 * 16 * 8  # B · T · D float64


def test_three_updates_of_cut_blocks_are_those_of_whole_ones_with_four_all_reduces():
    for out, slope, sent in launch(splits.updates, 2, False, timeout_s=60):
        assert max(out, slope) < ROUNDING
        assert sent == [("allreduce_", BYTES)] * 4


def test_with_cut_tokens_too_there_are_as_many_bytes_in_gathers_and_scatters():
    for out, slope, sent in launch(splits.updates, 2, True, timeout_s=60):
        assert max(out, slope) < ROUNDING
        names = [name for name, _ in sent]
        assert sum("gather" in name for name in names) == sum("scatter" in name for name in names) == 4
        assert {n for _, n in sent} == {BYTES}


@pytest.mark.parametrize(("p", "n_tokens"), [(2, 7), (3, 10)])
def test_attention_around_a_ring_is_attention_also_with_uneven_tokens(p, n_tokens):
    found = launch(splits.ring, p, n_tokens, timeout_s=60)
    token_bytes = 2 * 2 * 3 * 4 * 8  # k and v
    for errors, forward, backward in found:
        assert max(errors) < ROUNDING
        assert len(forward) == p - 1
        assert len(backward) == 2 * p - 1
    assert sum(sum(forward) for _, forward, _ in found) == (p - 1) * n_tokens * token_bytes


def test_heads_that_the_ranks_do_not_divide_are_one_clear_error():
    with pytest.raises(RankFailed, match="3 heads are not for 2 ranks"):
        launch(splits.odd_heads, 2, timeout_s=60)
