"""Chapter 13's hook notes the squared norm of each rank's own gradient, with any buckets, and DDP still averages."""

import pytest
import torch
import torch.distributed as dist
from chapter_code import written
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dltutorial.launch import launch

NOTE_SQUARE = written("13", "note_square", "square")["note_square"]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def sample(rank, step):
    return torch.randn(8, 5, generator=torch.Generator().manual_seed(10 * step + rank), dtype=torch.float64)


def gradient(net, ranks, step):
    """One process: the gradient of the mean over the ranks' losses."""
    loss = torch.stack([net(sample(rank, step)).square().mean() for rank in ranks]).mean()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])


def noted(note_square, network, sample, **options):
    """This rank's |g|² in each of three steps, and the last mean gradient."""
    squares, sums = [], []
    model = DistributedDataParallel(network(), **options)
    model.register_comm_hook(squares, note_square)
    for step in range(3):
        model.zero_grad()
        model(sample(dist.get_rank(), step)).square().mean().backward()
        sums.append(sum(squares).item())
        squares.clear()
    return sums, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 16 / 2**20}])
def test_the_hook_notes_the_ranks_own_gradients_and_averages_them(options):
    net = network()
    for rank, (sums, mean) in enumerate(launch(noted, 2, NOTE_SQUARE, network, sample, timeout_s=60, **options)):
        expected = [gradient(net, [rank], step).square().sum().item() for step in range(3)]
        assert sums == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(mean, gradient(net, range(2), 2))
