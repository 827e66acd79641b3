"""Post-local SGD on real ranks: as torch's, phase by phase; and what it sends."""

import post_local
import pytest
import torch

from dltutorial.errors import CourseError
from dltutorial.launch import launch
from dltutorial.parallel.local_sgd import LocalSGD

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
ROUNDING = 1e-12


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_update_is_that_of_torch_s_hook_averager_and_optimizer(world_size):
    ranks = launch(post_local.compared, world_size, timeout_s=90)
    for found in ranks:
        for ours, sent, torchs in found.values():
            assert torch.allclose(ours, torchs, rtol=0, atol=ROUNDING)
            assert sent == [0, 1, 2, 6, 10]
    ours = [found["sgd"][0] for found in ranks]
    apart = (ours[0] - ours[1]).abs().amax(1)
    equal_after = [step for step in range(post_local.UPDATES) if apart[step] == 0]
    assert equal_after == [0, 1, 2, 6, 10], "ranks go apart between two means of their weights, and only there"


def test_its_limits_are_data_parallelism_and_a_resumed_run_goes_on():
    for together, alone, resumed, whole in launch(post_local.limits, 2, timeout_s=60):
        assert torch.allclose(together[0], alone[0], rtol=0, atol=ROUNDING)
        assert together[1] == alone[1] == list(range(post_local.UPDATES))
        for weights, sent in resumed:
            assert torch.equal(weights, whole[0][-1])
            assert sent == whole[1]


def test_a_gradient_that_one_rank_lacks_counts_as_zero():
    (first, mean_0), (second, mean_1) = launch(post_local.spared, 2, timeout_s=30)
    assert second == [None, None]
    for own, one, other in zip(first, mean_0, mean_1, strict=True):
        assert torch.allclose(one, own / 2)
        assert torch.equal(one, other)


@pytest.mark.parametrize(("bad", "why"), [((2, -1), "together=-1"), ((0, 3), "every=0"), ((2, 3, None, -1), "made=-1")])
def test_counts_that_cannot_be_are_told_in_one_line(bad, why):
    with pytest.raises(CourseError, match=why):
        LocalSGD([], *bad)
