"""Data parallelism with a GPU for each rank, or with one GPU for two ranks: the results are those on CPUs."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "parallel"))  # what ranks do there, they do here
import replicas

from dltutorial.launch import launch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*ranks share")]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_two_ranks_equal_one_process(backend):
    if backend == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs a GPU for each of two ranks")
    for found in launch(replicas.on_cuda, 2, backend=backend, timeout_s=100):
        assert found.pop("moved") > 0.1
        assert max(found.values()) < 1e-5
