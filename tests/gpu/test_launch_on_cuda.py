"""Ranks with a GPU each: NCCL is chosen, each rank has its own device, errors and hangs end as on CPUs."""

import pytest
import torch
import torch.distributed as dist

from dltutorial.launch import RankFailed, RanksHang, launch

pytestmark = pytest.mark.gpu


def total():
    x = torch.full((3,), float(dist.get_rank()), device="cuda")
    dist.all_reduce(x)
    return dist.get_backend(), torch.cuda.current_device(), x.cpu().tolist()


def fail():
    if dist.get_rank() == 0:
        raise ValueError("mine")
    dist.barrier()


def wait():
    while True:
        torch.cuda.synchronize()


def test_each_rank_has_its_gpu_after_the_caller_has_used_cuda(send_whole):
    torch.ones(10, device="cuda").sum().item()
    n = torch.cuda.device_count()
    assert launch(total, n) == [("nccl", rank, [n * (n - 1) / 2] * 3) for rank in range(n)]


def test_more_ranks_than_gpus_talk_through_gloo(send_whole):
    n = torch.cuda.device_count() + 1
    assert [backend for backend, *_ in launch(total, n)] == ["gloo"] * n


def test_errors_and_hangs_end(send_whole):
    n = torch.cuda.device_count()
    with pytest.raises(RankFailed, match="ValueError: mine"):
        launch(fail, n)
    with pytest.raises(RanksHang, match="waits in synchronize"):
        launch(wait, n, timeout_s=15)
