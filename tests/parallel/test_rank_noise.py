"""What chapter 13's hook hears of the ranks' own gradients in torch's wrapper, whatever the buckets."""

import pytest
import torch
import torch.distributed as dist
from chapter_code import written
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dltutorial.launch import launch

LISTEN = written("13", "listen", world_size=2)["listen"]


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
    """This rank's g · (the other's g) and |g|² in each of three steps, summed over ranks; the last mean gradient."""
    products_2 = torch.zeros(2, dtype=torch.float64)
    model = DistributedDataParallel(network(), **options)
    found = []
    model.register_comm_hook(products_2, listen)
    for step in range(3):
        model.zero_grad()
        products_2.zero_()
        model(sample(dist.get_rank(), step)).square().mean().backward()
        dist.all_reduce(products_2)
        found.append(products_2.tolist())
    return found, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 16 / 2**20}])
def test_the_hook_hears_the_ranks_own_gradients_and_averages_them(options):
    net = network()
    expected = []
    for step in range(3):
        one, other = (gradient(net, [rank], step) for rank in range(2))
        expected.append(pytest.approx([2 * (one @ other).item(), (one @ one + other @ other).item()]))
    for found, mean in launch(heard, 2, LISTEN, network, sample, timeout_s=60, **options):
        assert found == expected
        torch.testing.assert_close(mean, gradient(net, range(2), 2))
