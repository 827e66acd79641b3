"""Wrong answers to the first part of chapter 18's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
import torch
import torch.distributed as dist
from torch.nn import functional as F

def summed(part):
    whole = part.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(whole)
    return whole

class CopyToTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, slope):
        return summed(slope)

class ReduceFromTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        return summed(part)

    @staticmethod
    def backward(ctx, slope):
        return slope

def split_mlp(x, up, first, down, last):
    mine = torch.arange(len(up)).chunk(dist.get_world_size())[dist.get_rank()]
    hidden = F.gelu(F.linear(CopyToTensorParallel.apply(x), up[mine], first[mine]))
    return ReduceFromTensorParallel.apply(F.linear(hidden, down[:, mine])) + last
"""
_MINE = "torch.arange(len(up)).chunk(dist.get_world_size())[dist.get_rank()]"
_OUTPUT = "ReduceFromTensorParallel.apply(F.linear(hidden, down[:, mine])) + last"
_with = functools.partial(altered, RIGHT)

WRONG = [
    ("eight hidden numbers", _with((_MINE, "slice(dist.get_rank() * (8 // dist.get_world_size()), "
     "(dist.get_rank() + 1) * (8 // dist.get_world_size()))")), None),
    ("no sum", _with((_OUTPUT, "F.linear(hidden, down[:, mine]) + last")), "only the partial sum of this rank"),
    ("a bias from each rank", _with((_OUTPUT, "ReduceFromTensorParallel.apply(F.linear(hidden, down[:, mine], last))")),
     "once for each"),
    ("x enters without a sum", _with(("CopyToTensorParallel.apply(x)", "x")), "must sum it over all ranks"),
    ("the sum's slope summed again", _with(("        return slope\n", "        return summed(slope)\n")), "too large"),
    ("all alone", "from torch.nn import functional as F\n\ndef split_mlp(x, up, first, down, last):\n"
     "    return F.linear(F.gelu(F.linear(x, up, first)), down, last)\n", "Use only this rank's shard"),
    ("no last bias", _with((" + last", "")), "The last bias is missing"),
    ("a mean", _with(("        return summed(part)", "        return summed(part) / dist.get_world_size()")), ""),
    ("a sum outside the graph", _with(("    return Reduce", "    with torch.no_grad():\n        return Reduce")),
     "The gradient stops"),
    ("a bias on rank 0 only", _with((_OUTPUT, "ReduceFromTensorParallel.apply(F.linear(hidden, down[:, mine], "
     "None if dist.get_rank() else last))")), "has not used the last bias"),
    ("up detached", _with(("up[mine]", "up.detach()[mine]")), "without detaching"),
    ("slopes averaged", _with(("        return summed(slope)\n",
     "        return summed(slope) / dist.get_world_size()\n")), "must sum them"),
    ("another piece of down", _with(("down[:, mine]", "down[:, mine.flip(0)]")), "the same shard"),
    ("rows of up only", _with(("first[mine]", "first")), "the same shard"),
    ("every other number", _with(("torch.arange(len(up)).chunk(dist.get_world_size())[dist.get_rank()]",
     "torch.arange(dist.get_rank(), len(up), dist.get_world_size())")), "in the order of the ranks"),
    ("sums hidden numbers too", _with(("    return Reduce", "    spare = summed(hidden.detach())\n    return Reduce")),
     "no more than that"),
    ("one rank sends twice", _with(("    return Reduce", "    if dist.get_rank():\n        summed(x.detach())\n"
     "    return Reduce")), None),
]  # fmt: skip
