"""What ranks do in the tests of shards. A file of its own, so that a rank imports nothing but this."""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import checkpoint

from dltutorial.parallel.shards import Sharded

sgd = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1)


class Block(nn.Module):
    """A residual layer; its own weight twice; computed again in the backward pass, if told."""

    def __init__(self, again):
        super().__init__()
        self.one, self.other, self.again = nn.Linear(5, 5), nn.Linear(5, 5, bias=False), again
        self.other.weight = self.one.weight

    def inner(self, x):
        return x + self.other(torch.tanh(self.one(x)))

    def forward(self, x):
        return checkpoint.checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x)


class Net(nn.Module):
    """Blocks of 30 numbers; the rest has tied weights, a frozen layer and a buffer; no size that ranks divide."""

    def __init__(self, seed, again=False):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.frozen = nn.Linear(5, 5), nn.Linear(5, 5)
        self.blocks = nn.ModuleList(Block(again) for _ in range(3))
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
    """Of 24 samples; this rank's part."""
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(24, 5, generator=generator, dtype=torch.float64) for _ in range(n)]
    return [x.chunk(dist.get_world_size())[dist.get_rank()] for x in drawn]


def one_process(pieces=1, clip=None):
    """Weights after four updates, of a plain optimizer."""
    model = Net(0)
    optimizer = sgd([p for p in model.parameters() if p.requires_grad])
    for x in batches(4):
        optimizer.zero_grad()
        for piece in x.chunk(pieces):
            ((model(piece) - 3).square().mean() / pieces).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model.state_dict()


def in_shards(stage, pieces=1, clip=None, evaluates=False, again=False, whole=False, **options):
    """The same, cut."""
    model = Net(dist.get_rank(), again)
    both = Sharded(model, sgd, stage=stage, blocks=[] if whole else model.blocks, **options)
    for x in batches(4):
        for piece in x.chunk(pieces):
            ((both(piece) - 3).square().mean() / pieces).backward()
        if clip:
            both.clip(clip)
        both.step()
        if evaluates:
            with torch.no_grad():
                both(x)
    return both.full_state()


WAYS = {
    **{f"stage {stage}": {"stage": stage} for stage in (1, 2, 3)},
    "one unit": {"stage": 3, "whole": True},
    "computed again": {"stage": 3, "again": True},
    "evaluated between": {"stage": 3, "evaluates": True},
    **{f"two pieces, stage {stage}": {"stage": stage, "pieces": 2} for stage in (1, 2, 3)},
    **{f"clipped, stage {stage}": {"stage": stage, "clip": 0.5} for stage in (1, 3)},
}


def all_ways():
    """The state of each way."""
    return {name: in_shards(**options) for name, options in WAYS.items()}


def held(stage):
    """Numbers held by row storages and shards after a backward pass, of which are trained; and whether it is whole."""
    model = Net(0)
    both = Sharded(model, torch.optim.Adam, stage=stage, blocks=model.blocks)
    for x in batches(2):
        both(x).square().mean().backward()
        kept = [*(unit.flat_P for unit in both.units), *(unit.shard for unit in both.units)]
        kept += [p.grad for p in [*model.parameters(), *kept] if p.grad is not None]
        kept += [t for of in both.optimizer.state.values() for t in of.values() if t.ndim]
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in kept}
        both.step()
    return sum(storages.values()) / 8


def leaves_one_out():
    """A weight that takes no part in the loss."""
    model = Net(0)
    both = Sharded(model, sgd, stage=3, blocks=model.blocks)
    x = batches(1)[0]
    model.blocks[1].forward = lambda x: x @ model.blocks[1].one.weight
    both(x).square().mean().backward()
    both.step()
