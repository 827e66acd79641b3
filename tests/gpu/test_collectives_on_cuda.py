"""The course's collectives through NCCL, ranks with a GPU each: the backend's values, the formulas' counts."""

import pytest
import torch
import torch.distributed as dist
from tallying import tally

from dltutorial.comm import stopwatch
from dltutorial.comm.communicator import Communicator
from dltutorial.comm.cost import counts
from dltutorial.launch import launch

pytestmark = pytest.mark.gpu
DIVISIBLE = 840


def n_ranks():
    return torch.cuda.device_count()


def against_nccl():
    """Names, dtypes and lengths whose all-reduce differs from NCCL's."""
    p, wrong = dist.get_world_size(), []
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        for n in {0, 1, p - 1, p + 1, 13, 101}:
            x = torch.arange(n, device="cuda").to(dtype) + dist.get_rank()
            dist.all_reduce(total := x.clone())
            for name, run in stopwatch.collectives.ALL_REDUCES.items():
                run(ours := x.clone(), Communicator(node_size=2))
                limit = 0.0 if not dtype.is_floating_point else 2 * p * torch.finfo(dtype).eps * total.double().abs()
                if bool(((ours.double() - total.double()).abs() > limit).any()):
                    wrong.append((name, str(dtype), n))
    return wrong


def counted():
    found = {}
    for name, run in stopwatch.OURS.items():
        comm = Communicator(node_size=2)
        run(torch.zeros(DIVISIBLE, device="cuda"), comm)
        found[name] = comm.traffic
    return found


def test_sums_equal_nccls(send_whole):
    assert launch(against_nccl, n_ranks(), backend="nccl") == [[]] * n_ranks()


def test_counts_are_the_formulas(send_whole):
    found = launch(counted, n_ranks(), backend="nccl")
    for name in stopwatch.OURS:
        assert tally(rank[name] for rank in found) == counts(name, n_ranks(), 4 * DIVISIBLE, 2), name
