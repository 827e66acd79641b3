"""The functions that the ranks of ``test_shards.py`` run. Ranks import only this file."""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import checkpoint

from dltutorial.parallel.shards import Sharded

sgd = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1)


class Block(nn.Module):
    """A residual layer with tied weights. With ``recompute``, the backward pass recomputes it."""

    def __init__(self, recompute):
        super().__init__()
        self.one, self.other, self.recompute = nn.Linear(5, 5), nn.Linear(5, 5, bias=False), recompute
        self.other.weight = self.one.weight

    def inner(self, x):
        return x + self.other(torch.tanh(self.one(x)))

    def forward(self, x):
        return checkpoint.checkpoint(self.inner, x, use_reentrant=False) if self.recompute else self.inner(x)


class Net(nn.Module):
    """Blocks of 30 values. The rest has tied weights, a frozen layer and a buffer. The ranks divide no size."""

    def __init__(self, seed, recompute=False):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.frozen = nn.Linear(5, 5), nn.Linear(5, 5)
        self.blocks = nn.ModuleList(Block(recompute) for _ in range(3))
        self.last = nn.Linear(5, 5)
        self.last.weight = self.first.weight
        self.double()
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(1.0 + seed, dtype=torch.float64))

    def forward(self, x):
        x = self.frozen(torch.tanh(self.first(x)))
        for block in self.blocks:
            x = block(x)
        return self.last(x) * self.scale


def batches(n):
    """Return this rank's samples of batches of 24."""
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(24, 5, generator=generator, dtype=torch.float64) for _ in range(n)]
    return [x.chunk(dist.get_world_size())[dist.get_rank()] for x in drawn]


def one_process(n_micro_batches=1, clip=None):
    """Return the weights after four updates of a plain optimizer."""
    model = Net(0)
    optimizer = sgd([p for p in model.parameters() if p.requires_grad])
    for x in batches(4):
        optimizer.zero_grad()
        for micro_batch in x.chunk(n_micro_batches):
            ((model(micro_batch) - 3).square().mean() / n_micro_batches).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model.state_dict()


def in_shards(stage, n_micro_batches=1, clip=None, evaluates=False, recompute=False, one_unit=False, **options):
    """Return the weights after the same updates with shards."""
    model = Net(dist.get_rank(), recompute)
    sharded = Sharded(model, sgd, stage=stage, blocks=[] if one_unit else model.blocks, **options)
    for x in batches(4):
        for micro_batch in x.chunk(n_micro_batches):
            ((sharded(micro_batch) - 3).square().mean() / n_micro_batches).backward()
        if clip:
            sharded.clip(clip)
        sharded.step()
        if evaluates:
            with torch.no_grad():
                sharded(x)
    return sharded.full_state()


CASES = {
    **{f"stage {stage}": {"stage": stage} for stage in (1, 2, 3)},
    "one unit": {"stage": 3, "one_unit": True},
    "recomputed": {"stage": 3, "recompute": True},
    "evaluated between": {"stage": 3, "evaluates": True},
    **{f"two micro-batches, stage {stage}": {"stage": stage, "n_micro_batches": 2} for stage in (1, 2, 3)},
    **{f"clipped, stage {stage}": {"stage": stage, "clip": 0.5} for stage in (1, 3)},
}


def all_cases():
    """Return the weights of each case."""
    return {name: in_shards(**options) for name, options in CASES.items()}


def held(stage):
    """Return the number of values of weights, gradients and optimizer state in this rank's memory."""
    model = Net(0)
    sharded = Sharded(model, torch.optim.Adam, stage=stage, blocks=model.blocks)
    for x in batches(2):
        sharded(x).square().mean().backward()
        held_tensors = [*(unit.flat_P for unit in sharded.units), *(unit.shard for unit in sharded.units)]
        held_tensors += [p.grad for p in [*model.parameters(), *held_tensors] if p.grad is not None]
        held_tensors += [t for of in sharded.optimizer.state.values() for t in of.values() if t.ndim]
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in held_tensors}
        sharded.step()
    return sum(storages.values()) / 8


def without_one_parameter():
    """The loss does not depend on one of the parameters."""
    model = Net(0)
    sharded = Sharded(model, sgd, stage=3, blocks=model.blocks)
    x = batches(1)[0]
    model.blocks[1].forward = lambda x: x @ model.blocks[1].one.weight
    sharded(x).square().mean().backward()
    sharded.step()
