"""Tensor and sequence parallelism by hand: the matrices of a transformer block are sharded over the ranks.

The input is a block with the same weights on all ranks. ``shard_block`` changes it in place. Afterwards each rank holds
a shard of its matrices, and the block computes the same outputs from the same tokens.

The first matrix of a pair is sharded by columns, so each rank computes some of the hidden values, and no communication
is needed for them. The second matrix is sharded by rows. Each rank then has a part of every output, and the sum over
the ranks is the output.

                          ┌─ rank 0: columns of U ─► GELU ─► rows of V ─┐
    x ─► copy to all ─────┤                                             ├───── sum over the ranks ─► y
         (Enter)          └─ rank 1: columns of U ─► GELU ─► rows of V ─┘      (Leave)

The communication of one block in one training step is

    tensor      four all-reduces of B · T · D values, two in the forward pass and two in the backward pass
    sequence    four all-gathers and four reduce-scatters, with the same bytes. Between the pairs of matrices, each of
                the p ranks holds T / p tokens.

- :class:`Enter`, :class:`Leave`, :class:`GatherTokens` and :class:`ScatterTokens` are the collectives, with the
  backward pass of each.
- :class:`Columns` and :class:`Rows` are the two kinds of sharded linear layers.

Legend: B samples, T tokens, D values of a token, p ranks. The *upstream* gradient is the gradient of an operation's
output.

Source: Shoeybi et al. 2019 (arXiv:1909.08053), Korthikanti et al. 2022 (arXiv:2205.05198).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial.errors import CourseError

# Torch 2.13 has new names for these, and warns about the old ones.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Group = dist.ProcessGroup | None  # None stands for all ranks


def sum_over_ranks(x: Tensor, group: Group = None) -> Tensor:
    """Return the sum of the tensors of all ranks. ``x`` itself does not change."""
    total = x.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total


def gather_tokens(x_BTD: Tensor, group: Group = None) -> Tensor:
    """Return the tokens of all ranks, in the order of the ranks."""
    own_TBD = x_BTD.transpose(0, 1).contiguous()  # the collective joins tensors along their first dimension
    n_tokens = dist.get_world_size(group) * len(own_TBD)
    all_TBD = own_TBD.new_empty(n_tokens, *own_TBD.shape[1:])
    all_gather(all_TBD, own_TBD, group=group)
    return all_TBD.transpose(0, 1)


def scatter_sum_of_tokens(x_BTD: Tensor, group: Group = None) -> Tensor:
    """Return this rank's T / p tokens of the sum over all ranks.

    Raises:
        CourseError: T is no multiple of p.
    """
    p = dist.get_world_size(group)
    if x_BTD.shape[1] % p != 0:
        raise CourseError(f"{x_BTD.shape[1]} tokens are not {p} equal shards; pad them")
    x_TBD = x_BTD.transpose(0, 1).contiguous()  # the collective splits tensors along their first dimension
    own_TBD = x_TBD.new_empty(len(x_TBD) // p, *x_TBD.shape[1:])
    reduce_scatter(own_TBD, x_TBD, group=group)
    return own_TBD.transpose(0, 1)


class Enter(torch.autograd.Function):
    """The forward pass copies. The backward pass sums, because each rank has only its part of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group = None) -> Tensor:
        """Return the same values."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return the sum of the upstream gradients of all ranks."""
        return sum_over_ranks(upstream, ctx.group), None


class Leave(torch.autograd.Function):
    """The forward pass sums, because each rank has only a part of every output. The backward pass copies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group = None) -> Tensor:
        """Return the sum over all ranks."""
        return sum_over_ranks(x, group)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return the same upstream gradient."""
        return upstream, None


class GatherTokens(torch.autograd.Function):
    """``Enter`` for sequence parallelism: the forward pass gathers tokens, and the backward pass scatters their sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group = None) -> Tensor:
        """Return the tokens of all ranks."""
        ctx.group = group
        return gather_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return this rank's tokens of the sum of all upstream gradients."""
        return scatter_sum_of_tokens(upstream, ctx.group), None


class ScatterTokens(torch.autograd.Function):
    """``Leave`` for sequence parallelism: the forward pass scatters the sum, and the backward pass gathers tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group = None) -> Tensor:
        """Return this rank's tokens of the sum over all ranks."""
        ctx.group = group
        return scatter_sum_of_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return the upstream gradients of all ranks' tokens."""
        return gather_tokens(upstream, ctx.group), None


def shard_of(tensor: Tensor, dim: int, parts: int = 1, group: Group = None) -> nn.Parameter:
    """Return this rank's shard of a tensor, as a new parameter.

    Args:
        tensor: The whole tensor, the same on all ranks.
        dim: The dimension along which it is divided.
        parts: The number of matrices that are concatenated in this dimension. For example, ``qkv`` concatenates three,
            and each rank needs a shard of each of them.
        group: The ranks. The default is all ranks.

    Raises:
        CourseError: The length of the dimension is no multiple of ``parts`` · p.
    """
    p = dist.get_world_size(group)
    rank = dist.get_rank(group)
    if tensor.shape[dim] % (parts * p) != 0:
        raise CourseError(f"{tensor.shape[dim]} rows or columns are not {parts} × {p} equal shards; take another width")
    matrices = tensor.detach().chunk(parts, dim)
    shards = [matrix.chunk(p, dim)[rank] for matrix in matrices]
    return nn.Parameter(torch.cat(shards, dim).clone())


class Columns(nn.Module):
    """A linear layer that computes some of the outputs on each rank.

    ``nn.Linear`` stores the matrix transposed. Therefore its columns are the rows of ``weight``.
    """

    def __init__(self, linear: nn.Linear, parts: int = 1, group: Group = None) -> None:
        super().__init__()
        self.weight = shard_of(linear.weight, 0, parts, group)
        self.bias = shard_of(linear.bias, 0, parts, group)

    def forward(self, x: Tensor) -> Tensor:
        """Compute this rank's outputs from all inputs."""
        return F.linear(x, self.weight, self.bias)


class Rows(nn.Module):
    """A linear layer that has some of the inputs on each rank.

    Each rank computes a part of every output, and ``Leave`` sums the parts. The bias must be added after the sum. Its
    sum over the ranks would be p times too large.
    """

    def __init__(self, linear: nn.Linear, group: Group = None) -> None:
        super().__init__()
        self.weight = shard_of(linear.weight, 1, 1, group)
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Compute a part of all outputs from this rank's inputs."""
        return F.linear(x, self.weight)


def shard_block(attention: Any, mlp: Any, group: Group = None, *, sequence: bool = False, parts: int = 3) -> None:
    """Shard a transformer block in place: each rank keeps some heads, and some hidden values of the MLP.

    The block has two pairs of matrices, ``qkv`` and ``out``, and the two layers of the MLP. The first matrix of a pair
    is sharded by columns, and the second one by rows. The collectives run before and after each pair.

    Args:
        attention: A module with the linear layers ``qkv`` and ``out`` and the number ``heads``.
        mlp: A sequence whose layers 0 and 2 are linear.
        group: The ranks. The default is all ranks.
        sequence: With True, each rank holds T / p tokens between the pairs. With False, all ranks hold all tokens.
        parts: The number of matrices that ``qkv`` concatenates. Chapter 18 shows that the value 1 gives each rank the
            wrong rows.

    Raises:
        CourseError: The number of heads is no multiple of p.
    """
    p = dist.get_world_size(group)
    if attention.heads % p != 0:
        raise CourseError(f"{attention.heads} heads are not for {p} ranks; take a number of ranks that divides them")
    attention.heads //= p
    attention.qkv = Columns(attention.qkv, parts, group)
    attention.out = Rows(attention.out, group)
    mlp[0] = Columns(mlp[0], 1, group)
    mlp[2] = Rows(mlp[2], group)
    _add_collectives(attention.qkv, attention.out, group, sequence)
    _add_collectives(mlp[0], mlp[2], group, sequence)


def _add_collectives(columns: Columns, rows: Rows, group: Group, sequence: bool) -> None:
    """Let the collectives run before the first and after the second matrix of a pair, by hooks."""
    enter, leave = (GatherTokens, ScatterTokens) if sequence else (Enter, Leave)

    def before_columns(layer: nn.Module, args: tuple) -> tuple:
        return (enter.apply(args[0], group),)

    def after_rows(layer: Any, args: tuple, output: Tensor) -> Tensor:
        return leave.apply(output, group) + layer.bias

    columns.register_forward_pre_hook(before_columns)
    rows.register_forward_hook(after_rows)
