"""The functions that the ranks of ``test_gradient_lag.py`` run. Ranks import only this file."""

import torch
import torch.distributed as dist
from torch import nn

from dltutorial.parallel.gradient_lag import LateGradients

N, RATE = 6, 0.05


class Net(nn.Module):
    """Some parameters of different sizes, one of them frozen, one used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(5, 7), nn.Linear(7, 7), nn.Linear(7, 1)
        self.a.bias.requires_grad_(False)

    def forward(self, x):
        return self.c(self.b(self.b(self.a(x))))


def batches():
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(12, 5, generator=draw) for _ in range(N)]


def loss(model, x):
    return model(x).square().mean()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def by_hand(lag, momentum=0.0):
    """SGD in one process. With lag, a step takes the gradient of the step before, and the first step takes zeros."""
    torch.set_num_threads(1)
    model = Net()
    trained = [p for p in model.parameters() if p.requires_grad]
    before = velocity = [torch.zeros_like(p) for p in trained]
    for x in batches():
        now = torch.autograd.grad(loss(model, x), trained)
        velocity = [momentum * v + g for v, g in zip(velocity, before if lag else now, strict=True)]
        before = now
        for p, v in zip(trained, velocity, strict=True):
            p.data -= RATE * v
    return weights(model)


def trained(momentum):
    """The weights after some steps on this rank's samples. The ranks begin with different weights."""
    torch.set_num_threads(1)
    model = Net()
    for p in model.parameters():
        p.data += dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=momentum)
    late = LateGradients(model)
    for x in batches():
        optimizer.zero_grad()
        loss(model, x[dist.get_rank() :: dist.get_world_size()]).backward()
        late.exchange()
        optimizer.step()
    return weights(model)
