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

In the drawing, a column of U belongs to one output feature of the layer U, and a row of V belongs to one input feature
of the layer V. Therefore the *output* features of U and the *input* features of V are divided. ``nn.Linear`` stores its
weight with the shape (outputs, inputs). So the layer U is divided along dimension 0 of its weight, and the layer V
along dimension 1.

- :class:`ColumnParallelLinear` is the layer U. Each rank has all inputs, and computes some of the hidden values. GELU
  acts on each value alone, so the hidden values need no communication.
- :class:`RowParallelLinear` is the layer V. Each rank has some of the hidden values, and computes a partial sum of
  every output.
- :class:`CopyToTensorParallel` is before U. It is the identity in the forward pass, and an all-reduce in the backward
  pass.
- :class:`ReduceFromTensorParallel` is after V. It is an all-reduce in the forward pass, and the identity in the
  backward pass.

The last two are called f and g in the first source, which is the paper of Megatron-LM.

Attention is such a pair, too. The columns of ``qkv`` are divided by heads, and ``out`` is divided by rows.

Sequence parallelism also divides what lies between the pairs. Each rank has T / p tokens there.
:class:`AllGatherTokens` replaces f, and :class:`ReduceScatterTokens` replaces g. The second source, which is the paper
of Korthikanti et al., has other letters. It calls these two g and ḡ, and it calls the two functions above f and f̄.

Every rank has a replica of the norms' parameters and of the biases of ``RowParallelLinear``. With sequence parallelism,
their gradients come from the rank's own tokens only. Therefore a training must then sum these gradients over the ranks
before each update. Otherwise the replicas become different. Without it, the gradients are complete on every rank.

    communication of one block in one step, forward and backward
    tensor      4 all-reduces of B · T · D values
    sequence    4 all-gathers and 4 reduce-scatters, which send as many bytes as the 4 all-reduces,
                and, before the update, 1 small all-reduce for each replicated parameter

All collectives use the default process group.

Legend: B samples, T tokens, D hidden size of the transformer (the length of the vector of a token), p ranks.
``grad_output`` is torch's name for the gradient of an operation's output.

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


def all_gather_tokens(x_BTD: Tensor) -> Tensor:
    """Return the tokens of all ranks, in the order of the ranks."""
    own_TBD = x_BTD.transpose(0, 1).contiguous()  # the collective joins tensors along their first dimension
    n_tokens = dist.get_world_size() * len(own_TBD)
    all_TBD = own_TBD.new_empty(n_tokens, *own_TBD.shape[1:])
    all_gather(all_TBD, own_TBD)
    return all_TBD.transpose(0, 1)


def reduce_scatter_tokens(x_BTD: Tensor) -> Tensor:
    """Return this rank's T / p tokens of the sum over all ranks. T must be a multiple of p."""
    x_TBD = x_BTD.transpose(0, 1).contiguous()  # the collective splits tensors along their first dimension
    n_tokens = len(x_TBD) // dist.get_world_size()
    own_TBD = x_TBD.new_empty(n_tokens, *x_TBD.shape[1:])
    reduce_scatter(own_TBD, x_TBD)
    return own_TBD.transpose(0, 1)


class CopyToTensorParallel(torch.autograd.Function):
    """The function f of Megatron-LM: identity in the forward pass, all-reduce in the backward pass.

    In the backward pass, each rank has only a partial sum of the gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the same values."""
        # Autograd attaches the backward pass to the output, so the output must be a new tensor. A view is a new tensor
        # that copies no values. If this function returned x itself, autograd would make the same view.
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:  # type: ignore[override]
        """Return the sum of ``grad_output`` over all ranks."""
        return sum_over_ranks(grad_output)


class ReduceFromTensorParallel(torch.autograd.Function):
    """The function g of Megatron-LM: all-reduce in the forward pass, identity in the backward pass.

    In the forward pass, each rank has only a partial sum of every output.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        return sum_over_ranks(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:  # type: ignore[override]
        """Return the same gradient."""
        return grad_output


class AllGatherTokens(torch.autograd.Function):
    """What replaces f in sequence parallelism: all-gather in the forward pass, reduce-scatter in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor) -> Tensor:
        """Return the tokens of all ranks."""
        return all_gather_tokens(x_BTD)

    @staticmethod
    def backward(ctx: Any, grad_output_BTD: Tensor) -> Tensor:  # type: ignore[override]
        """Sum the gradients over the ranks, and keep this rank's T / p tokens."""
        return reduce_scatter_tokens(grad_output_BTD)


class ReduceScatterTokens(torch.autograd.Function):
    """What replaces g in sequence parallelism: reduce-scatter in the forward pass, all-gather in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor) -> Tensor:
        """Sum the outputs over the ranks, and keep this rank's T / p tokens."""
        return reduce_scatter_tokens(x_BTD)

    @staticmethod
    def backward(ctx: Any, grad_output_BTD: Tensor) -> Tensor:  # type: ignore[override]
        """Return the gradients of all ranks' tokens."""
        return all_gather_tokens(grad_output_BTD)


def shard_of(tensor: Tensor, dim: int, n_fused_matrices: int = 1) -> nn.Parameter:
    """Return this rank's shard of a tensor, as a new parameter.

    Args:
        tensor: The whole tensor, the same on all ranks.
        dim: The dimension along which it is divided.
        n_fused_matrices: The number of matrices that are fused in this tensor, one after another along ``dim``. For
            example, the weight of ``qkv`` contains three, and each rank needs a shard of each of them.
    """
    matrices = tensor.detach().chunk(n_fused_matrices, dim)
    shards = [matrix.chunk(dist.get_world_size(), dim)[dist.get_rank()] for matrix in matrices]
    return nn.Parameter(torch.cat(shards, dim).clone())


class ColumnParallelLinear(nn.Module):
    """A linear layer that computes some of the outputs on each rank.

    The weight of this rank has the shape (outputs / p, D). The forward pass computes

        (B, T, D)     → (B, T, outputs / p)
        (B, T / p, D) → (B, T, outputs / p)    with ``sequence_parallel``
    """

    def __init__(self, linear: nn.Linear, *, sequence_parallel: bool, n_fused_matrices: int = 1) -> None:
        super().__init__()
        self.weight = shard_of(linear.weight, 0, n_fused_matrices)
        self.bias = shard_of(linear.bias, 0, n_fused_matrices)
        self.input_collective: type[torch.autograd.Function] = (
            AllGatherTokens if sequence_parallel else CopyToTensorParallel
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute this rank's outputs from all inputs."""
        return F.linear(self.input_collective.apply(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear layer that has some of the inputs on each rank.

    The weight of this rank has the shape (D, inputs / p). The forward pass computes

        (B, T, inputs / p) → (B, T, D)
        (B, T, inputs / p) → (B, T / p, D)    with ``sequence_parallel``
    """

    def __init__(self, linear: nn.Linear, *, sequence_parallel: bool) -> None:
        super().__init__()
        self.weight = shard_of(linear.weight, 1)
        self.bias = nn.Parameter(linear.bias.detach().clone())
        self.output_collective: type[torch.autograd.Function] = (
            ReduceScatterTokens if sequence_parallel else ReduceFromTensorParallel
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute partial sums of the outputs from this rank's inputs, and sum them over the ranks."""
        partial_sum = F.linear(x, self.weight)
        # The bias is added after the sum. Otherwise it would be added p times.
        return self.output_collective.apply(partial_sum) + self.bias


def shard_block(attention: Any, mlp: Any, *, sequence_parallel: bool) -> None:
    """Shard a transformer block in place: each rank keeps some heads, and some hidden values of the MLP.

    The parameters are new objects, so make the optimizer afterwards. With ``sequence_parallel``, T must be a multiple
    of p.

    Args:
        attention: A module with the linear layers ``qkv`` and ``out`` and the number ``heads``. The layers have biases.
            The weight of ``qkv`` is Wq, Wk and Wv stacked. Each of the three is sharded separately, because otherwise
            each rank would get the wrong rows. Afterwards, ``qkv`` returns 3 D / p values for each token. Therefore the
            attention must compute the size of a head from this width, and not from D.
        mlp: A sequence whose layers 0 and 2 are linear, with biases.
        sequence_parallel: With True, each rank holds T / p tokens between the pairs. With False, all ranks hold all
            tokens.

    Raises:
        CourseError: The number of heads or the hidden size of the MLP is no multiple of p. The block is unchanged then.
    """
    p = dist.get_world_size()
    heads, mlp_hidden_size = attention.heads, mlp[0].out_features
    if heads % p != 0 or mlp_hidden_size % p != 0:
        raise CourseError(
            f"{heads} heads and an MLP with hidden size {mlp_hidden_size} are not for {p} ranks; "
            "take a number of ranks that divides both"
        )
    attention.heads //= p
    attention.qkv = ColumnParallelLinear(attention.qkv, sequence_parallel=sequence_parallel, n_fused_matrices=3)
    attention.out = RowParallelLinear(attention.out, sequence_parallel=sequence_parallel)
    mlp[0] = ColumnParallelLinear(mlp[0], sequence_parallel=sequence_parallel)
    mlp[2] = RowParallelLinear(mlp[2], sequence_parallel=sequence_parallel)
