"""Noise scale and sharpness on a GPU: as on the CPU, and the ranks' estimate with NCCL."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "parallel"))  # what ranks do there, they do here
import noisy

from dltutorial.convergence import noise
from dltutorial.convergence.objective import Objective
from dltutorial.convergence.sharpness import along, sharpness
from dltutorial.launch import launch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*ranks share")]


def problem(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    x, y = torch.randn(256, 8, dtype=torch.float64), torch.randint(3, (256,))
    return model.to(device), x.to(device), y.to(device)


def test_noise_sharpness_and_slices_are_those_of_the_cpu():
    here, there = (Objective(*problem(device)) for device in ("cpu", "cuda"))
    assert noise.exact(there) == pytest.approx(noise.exact(here), rel=1e-9)
    assert noise.measure(there, 8, 64, 20).scale == pytest.approx(noise.measure(here, 8, 64, 20).scale, rel=1e-9)
    tops = [sharpness(of, k=2, iterations=40, tolerance=1e-6) for of in (here, there)]
    torch.testing.assert_close(tops[1].values_K.cpu(), tops[0].values_K, rtol=1e-8, atol=0)
    cut = along(there, tops[1].vectors_KN[0], 0.01, points=5)
    assert cut.loss_A == pytest.approx(cut.predicted_A, rel=1e-4)


def test_the_halves_of_a_batch_are_those_of_the_cpu():
    here, there = (noise.half_batches(*problem(device)) for device in ("cpu", "cuda"))
    assert [float(x) for x in there] == pytest.approx([float(x) for x in here], rel=1e-6)


def ranks_on_cuda():
    return noisy.as_one_process(device="cuda")


def test_two_ranks_that_share_one_gpu_give_the_formula_of_one_process(send_whole):
    for found in launch(ranks_on_cuda, 2, backend="gloo", timeout_s=100):
        assert max(found.values()) < 1e-9


def test_nccl_ranks_give_the_formula_of_one_process(send_whole):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for found in launch(ranks_on_cuda, 2, backend="nccl", timeout_s=100):
        assert max(found.values()) < 1e-9
