"""Tensor and sequence parallelism by hand: a transformer's block, its matrices cut over the ranks.

In: a block that all ranks hold alike, and the same tokens on all ranks. Out: a block that computes the same from the
pieces of its matrices that this rank keeps. A matrix product by columns needs no message for its result; one by rows,
behind it, sums what the ranks found.

    plain      4 all-reduces of B · T · D values in a step: two forward, two backward
    sequence   between the products a rank holds T / p tokens: 4 all-gathers, 4 reduce-scatters, the same bytes

- :class:`Enter`, :class:`Leave`, :class:`GatherTokens`, :class:`ScatterTokens` are the messages, with their gradients;
- :class:`Columns` and :class:`Rows` the two products; :func:`cut_block` puts them into a block.

Legend: B samples, T tokens, D width.

Source: Shoeybi et al. 2019 (arXiv:1909.08053), Korthikanti et al. 2022 (arXiv:2205.05198).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial.errors import CourseError

# Torch 2.13's names; the older ones warn there.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Group = dist.ProcessGroup | None  # None: all ranks


def summed(x: Tensor, group: Group = None) -> Tensor:
    """The sum over all ranks; x stays as it is."""
    x = x.contiguous().clone()
    dist.all_reduce(x, group=group)
    return x


def gathered(x_BTD: Tensor, group: Group = None) -> Tensor:
    """All ranks' tokens, in the order of the ranks."""
    mine_TBD = x_BTD.transpose(0, 1).contiguous()
    all_TBD = mine_TBD.new_empty(dist.get_world_size(group) * len(mine_TBD), *mine_TBD.shape[1:])
    all_gather(all_TBD, mine_TBD, group=group)
    return all_TBD.transpose(0, 1)


def scattered(x_BTD: Tensor, group: Group = None) -> Tensor:
    """Of the sum over all ranks, this rank's tokens."""
    p = dist.get_world_size(group)
    if x_BTD.shape[1] % p:
        raise CourseError(f"{x_BTD.shape[1]} tokens are not {p} equal pieces; pad them")
    x_TBD = x_BTD.transpose(0, 1).contiguous()
    mine_TBD = x_TBD.new_empty(len(x_TBD) // p, *x_TBD.shape[1:])
    reduce_scatter(mine_TBD, x_TBD, group=group)
    return mine_TBD.transpose(0, 1)


class Enter(torch.autograd.Function):
    """Forward: nothing. Backward: each rank knows a part of the gradient; sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group = None) -> Tensor:
        """The same tensor."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """The sum of all ranks' slopes."""
        return summed(slope, ctx.group), None


class Leave(torch.autograd.Function):
    """Forward: each rank has a part of every number; sum. Backward: nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group = None) -> Tensor:
        """The sum of all ranks' parts."""
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """The same slope."""
        return slope, None


class GatherTokens(torch.autograd.Function):
    """Forward: all ranks' tokens. Backward: the sum of the slopes of this rank's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group = None) -> Tensor:
        """All ranks' tokens."""
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Of the sum of slopes, this rank's tokens."""
        return scattered(slope, ctx.group), None


class ScatterTokens(torch.autograd.Function):
    """Forward: of the sum, this rank's tokens. Backward: all ranks' slopes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group = None) -> Tensor:
        """Of the sum, this rank's tokens."""
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """All ranks' slopes."""
        return gathered(slope, ctx.group), None


def piece(x: Tensor, dim: int, parts: int = 1, group: Group = None) -> nn.Parameter:
    """This rank's share, as a parameter of its own: of each of the parts that lie one after the other in ``dim``.

    It remembers in ``cut`` how it was cut. CourseError: the ranks do not divide it.
    """
    p = dist.get_world_size(group)
    if x.shape[dim] % (parts * p):
        raise CourseError(f"{x.shape[dim]} rows or columns are not {parts} × {p} equal pieces; take another width")
    mine = [part.chunk(p, dim)[dist.get_rank(group)] for part in x.detach().chunk(parts, dim)]
    share = nn.Parameter(torch.cat(mine, dim).clone())
    share.cut = dim, parts  # type: ignore[attr-defined]
    return share


def joined(pieces: Sequence[Tensor], dim: int, parts: int = 1) -> Tensor:
    """The whole, from all ranks' pieces."""
    by_part = zip(*(x.chunk(parts, dim) for x in pieces), strict=True)
    return torch.cat([x for part in by_part for x in part], dim)


class Columns(nn.Module):
    """A linear layer of which each rank computes some outputs; with ``parts=3`` of q, of k and of v."""

    def __init__(self, whole: nn.Linear, parts: int = 1, group: Group = None) -> None:
        super().__init__()
        self.weight, self.bias = piece(whole.weight, 0, parts, group), piece(whole.bias, 0, parts, group)

    def forward(self, x: Tensor) -> Tensor:
        """All inputs, some outputs."""
        return F.linear(x, self.weight, self.bias)


class Rows(nn.Module):
    """A linear layer of which each rank has some inputs: a part of each output, to be summed. The bias comes after."""

    def __init__(self, whole: nn.Linear, group: Group = None) -> None:
        super().__init__()
        self.weight, self.bias = piece(whole.weight, 1, 1, group), nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Some inputs, a part of all outputs."""
        return F.linear(x, self.weight)


def cut_block(attention: Any, mlp: Any, group: Group = None, *, sequence: bool = False, parts: int = 3) -> None:
    """Leave in a transformer's block, in place, this rank's heads, and its hidden numbers of the MLP.

    Of each of the two pairs of products the first is cut by columns, the second by rows. A message goes before and
    behind each pair, forward or backward.

    Args:
        attention: with ``qkv``, ``out`` and ``heads``; equal on all ranks.
        mlp: whose first and third layers are linear.
        group: the ranks.
        sequence: between the pairs each rank has its T / p tokens; else all have all.
        parts: that lie one after the other in ``qkv``; with 1 the wrong rows are cut, as chapter 18 shows.

    Raises:
        CourseError: the ranks do not divide the heads.
    """
    p = dist.get_world_size(group)
    if attention.heads % p:
        raise CourseError(f"{attention.heads} heads are not for {p} ranks; take a number of ranks that divides them")
    attention.heads //= p
    attention.qkv, attention.out = Columns(attention.qkv, parts, group), Rows(attention.out, group)
    mlp[0], mlp[2] = Columns(mlp[0], 1, group), Rows(mlp[2], group)
    enter, leave = (GatherTokens, ScatterTokens) if sequence else (Enter, Leave)
    for columns, rows in ((attention.qkv, attention.out), (mlp[0], mlp[2])):
        columns.register_forward_pre_hook(lambda _, args: (enter.apply(args[0], group),))
        rows.register_forward_hook(lambda layer, _, part: leave.apply(part, group) + layer.bias)
