"""What chapter 13's hook hears in the buckets of torch's wrapper is each rank's own gradient, whatever the buckets."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dltutorial.launch import launch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from chapters import written

CHAPTER = written("13", "square", "listen")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def sample(rank, step):
    return torch.randn(8, 5, generator=torch.Generator().manual_seed(10 * step + rank), dtype=torch.float64)


def gradient(net, ranks, step):
    """One process: the gradient of the mean over the ranks' losses."""
    loss = torch.stack([net(sample(rank, step)).square().mean() for rank in ranks]).mean()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])


def heard(listen, network, sample, **options):
    """This rank's |g|² in each of three steps, summed over the ranks, and the mean gradient at the end."""
    own, model, found = torch.zeros((), dtype=torch.float64), DistributedDataParallel(network(), **options), []
    model.register_comm_hook(own, listen)
    for step in range(3):
        model.zero_grad(), own.zero_()
        model(sample(dist.get_rank(), step)).square().mean().backward()
        dist.all_reduce(own)
        found.append(own.item())
    return found, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 16 / 2**20}, {"gradient_as_bucket_view": True}])
def test_the_hook_hears_the_ranks_own_gradients_and_averages_them(options):
    net = network()
    own = [sum(gradient(net, [rank], step).square().sum().item() for rank in range(2)) for step in range(3)]
    for found, mean in launch(heard, 2, CHAPTER["listen"], network, sample, timeout_s=60, **options):
        assert found == pytest.approx(own)
        torch.testing.assert_close(mean, gradient(net, range(2), 2))
