"""Data parallelism with a GPU for each rank: as on CPUs, and the communication of a trace runs under the backward."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "parallel"))  # what ranks do there, they do here
import replicas

from dltutorial.config import Recipe
from dltutorial.launch import launch
from dltutorial.train import ddp_comparison

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*ranks share")]
BIG = Recipe(n_lat=128, n_lon=256, dim=512, depth=12, heads=8, global_batch_size=16)


@pytest.fixture
def two_gpus():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


def test_two_ranks_that_share_one_gpu_equal_one_process():
    for found in launch(replicas.on_cuda, 2, backend="gloo", timeout_s=100):
        assert found.pop("moved") > 0.1
        assert max(found.values()) < 1e-5


def test_nccl_ranks_equal_one_process(two_gpus):
    for found in launch(replicas.on_cuda, 2, backend="nccl", timeout_s=100):
        assert found.pop("moved") > 0.1
        assert max(found.values()) < 1e-5


def test_the_overlapped_step_hides_communication_under_kernels(two_gpus):
    naive, bucketed, overlapped = launch(replicas.traced, 2, BIG, 4)[0]
    assert naive.hidden_share < 0.1
    assert overlapped.hidden_share > bucketed.hidden_share + 0.2


def test_the_overlapped_step_is_as_quick_as_torchs(two_gpus):
    found = ddp_comparison.compare(2, BIG, ["overlapped", ddp_comparison.TORCH], repeats=15)
    assert found["overlapped"].median_s < 1.2 * found[ddp_comparison.TORCH].median_s
