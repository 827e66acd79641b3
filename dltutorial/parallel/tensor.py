"""Tensor and sequence parallelism by hand: the matrices of a transformer block are sharded over the ranks.

The input is a block with the same weights on all ranks. ``shard_block`` changes it in place. Afterwards each rank holds
a shard of its matrices, and the block computes the same outputs from the same tokens.

The block has pairs of matrices, for example U and V of the MLP, y = gelu(x U) V. The drawing shows one pair on two
ranks:

         U, by columns        V, by rows
        ┌───────┬───────┐    ┌───────────────┐
        │       │       │    │ rows of rank 0│      rank 0: y0 = gelu(x U0) V0
        │ U0    │ U1    │    ├───────────────┤      rank 1: y1 = gelu(x U1) V1
        │ rank 0│ rank 1│    │ rows of rank 1│
        └───────┴───────┘    └───────────────┘      y = y0 + y1, one all-reduce

- :class:`ColumnParallelLinear` is the layer U. Each rank has all inputs, and computes some of the hidden values. GELU
  acts on each value alone, so the hidden values need no communication.
- :class:`RowParallelLinear` is the layer V. Each rank has some of the hidden values, and computes a summand of every
  output.
- :class:`Enter` is before U. It is the identity in the forward pass, and an all-reduce in the backward pass.
- :class:`Leave` is after V. It is an all-reduce in the forward pass, and the identity in the backward pass.

``Enter`` and ``Leave`` are called f and g in the first source, which is the paper of Megatron-LM.

Attention is such a pair, too. The columns of ``qkv`` are divided by heads, and ``out`` is divided by rows.

Sequence parallelism also divides what lies between the pairs. Each rank has T / p tokens there.
:class:`GatherTokens` and :class:`ScatterTokens` replace ``Enter`` and ``Leave``. Every rank has a replica of the norms'
parameters and of the biases of ``RowParallelLinear``. Their gradients come from the rank's own tokens only. Therefore
a training must sum these gradients over the ranks before each update. Otherwise the replicas become different.

    communication of one block in one step, forward and backward
    tensor      4 all-reduces of B · T · D values
    sequence    4 all-gathers and 4 reduce-scatters, which send as many bytes as the 4 all-reduces,
                and, before the update, 1 small all-reduce for each replicated parameter

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


def sum_over_ranks(x: Tensor) -> Tensor:
    """Return the sum of the tensors of all ranks. ``x`` itself does not change."""
    total = x.contiguous().clone()
    dist.all_reduce(total)
    return total


def gather_tokens(x_BTD: Tensor) -> Tensor:
    """Return the tokens of all ranks, in the order of the ranks."""
    own_TBD = x_BTD.transpose(0, 1).contiguous()  # the collective joins tensors along their first dimension
    n_tokens = dist.get_world_size() * len(own_TBD)
    all_TBD = own_TBD.new_empty(n_tokens, *own_TBD.shape[1:])
    all_gather(all_TBD, own_TBD)
    return all_TBD.transpose(0, 1)


def scatter_sum_of_tokens(x_BTD: Tensor) -> Tensor:
    """Return this rank's T / p tokens of the sum over all ranks. T must be a multiple of p."""
    x_TBD = x_BTD.transpose(0, 1).contiguous()  # the collective splits tensors along their first dimension
    n_tokens = len(x_TBD) // dist.get_world_size()
    own_TBD = x_TBD.new_empty(n_tokens, *x_TBD.shape[1:])
    reduce_scatter(own_TBD, x_TBD)
    return own_TBD.transpose(0, 1)


class Enter(torch.autograd.Function):
    """Identity in the forward pass, all-reduce in the backward pass: each rank has only a summand of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the same values."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:  # type: ignore[override]
        """Return the sum of the upstream gradients of all ranks."""
        return sum_over_ranks(upstream)


class Leave(torch.autograd.Function):
    """All-reduce in the forward pass, identity in the backward pass: each rank has only a summand of every output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        return sum_over_ranks(x)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:  # type: ignore[override]
        """Return the same upstream gradient."""
        return upstream


class GatherTokens(torch.autograd.Function):
    """``Enter`` for sequence parallelism: the forward pass gathers tokens, and the backward pass scatters their sum."""

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor) -> Tensor:
        """Return the tokens of all ranks."""
        return gather_tokens(x_BTD)

    @staticmethod
    def backward(ctx: Any, upstream_BTD: Tensor) -> Tensor:  # type: ignore[override]
        """Sum the upstream gradients over the ranks, and keep this rank's T / p tokens (reduce-scatter)."""
        return scatter_sum_of_tokens(upstream_BTD)


class ScatterTokens(torch.autograd.Function):
    """``Leave`` for sequence parallelism: the forward pass scatters the sum, and the backward pass gathers tokens."""

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor) -> Tensor:
        """Sum the outputs over the ranks, and keep this rank's T / p tokens (reduce-scatter)."""
        return scatter_sum_of_tokens(x_BTD)

    @staticmethod
    def backward(ctx: Any, upstream_BTD: Tensor) -> Tensor:  # type: ignore[override]
        """Return the upstream gradients of all ranks' tokens."""
        return gather_tokens(upstream_BTD)


def shard_of(tensor: Tensor, dim: int, parts: int = 1) -> nn.Parameter:
    """Return this rank's shard of a tensor, as a new parameter.

    Args:
        tensor: The whole tensor, the same on all ranks.
        dim: The dimension along which it is divided.
        parts: The number of matrices that are concatenated in this dimension. For example, ``qkv`` concatenates three,
            and each rank needs a shard of each of them.
    """
    matrices = tensor.detach().chunk(parts, dim)
    shards = [matrix.chunk(dist.get_world_size(), dim)[dist.get_rank()] for matrix in matrices]
    return nn.Parameter(torch.cat(shards, dim).clone())


class ColumnParallelLinear(nn.Module):
    """A linear layer that computes some of the outputs on each rank.

    ``weight`` has the shape (outputs, inputs). Therefore the outputs are divided along dimension 0.
    """

    def __init__(self, linear: nn.Linear, *, sequence: bool, parts: int = 1) -> None:
        super().__init__()
        self.weight = shard_of(linear.weight, 0, parts)
        self.bias = shard_of(linear.bias, 0, parts)
        self.enter: Any = Enter
        if sequence:
            self.enter = GatherTokens

    def forward(self, x: Tensor) -> Tensor:
        """Compute this rank's outputs from all inputs."""
        return F.linear(self.enter.apply(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear layer that has some of the inputs on each rank."""

    def __init__(self, linear: nn.Linear, *, sequence: bool) -> None:
        super().__init__()
        self.weight = shard_of(linear.weight, 1)
        self.bias = nn.Parameter(linear.bias.detach().clone())
        self.leave: Any = Leave
        if sequence:
            self.leave = ScatterTokens

    def forward(self, x: Tensor) -> Tensor:
        """Compute a summand of all outputs from this rank's inputs, and sum it over the ranks."""
        summand = F.linear(x, self.weight)
        # The bias is added after the sum. Otherwise it would be added p times.
        return self.leave.apply(summand) + self.bias


def shard_block(attention: Any, mlp: Any, *, sequence: bool) -> None:
    """Shard a transformer block in place: each rank keeps some heads, and some hidden values of the MLP.

    Args:
        attention: A module with the linear layers ``qkv`` and ``out`` and the number ``heads``. The layers have biases.
            The weight of ``qkv`` is Wq, Wk and Wv stacked. Each of the three is sharded separately, because otherwise
            each rank would get the wrong rows.
        mlp: A sequence whose layers 0 and 2 are linear, with biases.
        sequence: With True, each rank holds T / p tokens between the pairs. With False, all ranks hold all tokens.

    Raises:
        CourseError: The number of heads is no multiple of p.
    """
    p = dist.get_world_size()
    if attention.heads % p != 0:
        raise CourseError(f"{attention.heads} heads are not for {p} ranks; take a number of ranks that divides them")
    attention.heads //= p
    attention.qkv = ColumnParallelLinear(attention.qkv, sequence=sequence, parts=3)
    attention.out = RowParallelLinear(attention.out, sequence=sequence)
    mlp[0] = ColumnParallelLinear(mlp[0], sequence=sequence)
    mlp[2] = RowParallelLinear(mlp[2], sequence=sequence)
