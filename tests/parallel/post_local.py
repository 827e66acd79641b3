"""What ranks do in the tests of post-local SGD. A file of its own, so that a rank imports nothing but this."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from dltutorial.optim.lars import LARS
from dltutorial.parallel.ddp import broadcast_tensors
from dltutorial.parallel.local_sgd import LocalSGD

TOGETHER, EVERY, UPDATES = 3, 4, 13
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1),
    "lars": lambda parameters: LARS(parameters, lr=0.5, trust_coefficient=0.1, weight_decay=0.1),
}


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(8, 4, generator=generator, dtype=torch.float64)


def loss_of(model, step, rank):
    x = batch(step, rank)
    return (model(x) - x[:, :2].roll(1, 1)).square().mean()


def row(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def ours(make, together=TOGETHER, every=EVERY, steps=range(UPDATES), model=None, optimizer=None):
    """Weights after each update, and the updates with which something was sent."""
    rank = dist.get_rank()
    if model is None:
        model = net(rank)
        broadcast_tensors(model.parameters())
    optimizer = optimizer or make(model.parameters())
    local = LocalSGD(model.parameters(), every, together, made=steps[0])
    rows, sent = [], []
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        sent += [step] * local.after_backward()
        optimizer.step()
        sent += [step] * local.after_update()
        rows.append(row(model))
    return torch.stack(rows), sent, model, optimizer


def torchs(make):
    """The same by torch's hook, averager and optimizer.

    Its averager sends at its first step after ``warmup_steps``, so that number includes all but one of the first
    updates alone.
    """
    rank = dist.get_rank()
    model = DistributedDataParallel(net(0))
    state = PostLocalSGDState(None, None, TOGETHER, post_local_gradient_allreduce=False)
    model.register_comm_hook(state, post_localSGD_hook)
    averager = PeriodicModelAverager(period=EVERY, warmup_steps=TOGETHER + EVERY - 1)
    optimizer = PostLocalSGDOptimizer(make(model.parameters()), averager)
    rows = []
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()
        rows.append(row(model))
    return torch.stack(rows)


def compared():
    """By optimizer: our weights, torch's, and when we sent."""
    return {name: (*ours(make)[:2], torchs(make)) for name, make in OPTIMIZERS.items()}


def limits():
    """Always together; alone from the start with every=1, which plain SGD makes the same; and resumed halfway."""

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.05)

    together, alone = ours(sgd, together=UPDATES), ours(sgd, together=0, every=1)
    resumed = []
    for cut in (2, TOGETHER, 9):
        _, first, model, optimizer = ours(OPTIMIZERS["sgd"], steps=range(cut))
        rest, second, *_ = ours(None, steps=range(cut, UPDATES), model=model, optimizer=optimizer)
        resumed.append((rest[-1], first + second))
    return together[:2], alone[:2], resumed, ours(OPTIMIZERS["sgd"])[:2]


def spared():
    """Rank 1 does not use the last layer in the first phase."""
    rank, model = dist.get_rank(), net(0)
    local = LocalSGD(model.parameters(), 1, 1)
    hidden = model[0](batch(0, rank)).square().mean()
    (model(batch(0, rank)).square().mean() if rank == 0 else hidden).backward()
    own = [p.grad for p in itertools.islice(model.parameters(), 2, None)]
    before = [None if g is None else g.clone() for g in own]
    local.after_backward()
    return before, [p.grad for p in itertools.islice(model.parameters(), 2, None)]
