"""Ring attention: each rank has a part of the tokens, and keys and values go around.

In: q, k, v of this rank's tokens, and how many tokens each rank has; they may differ. Out: attention of these tokens
to all. Softmax divides by a sum over all keys, so attention to a part of them is not a part of the answer. With the
logarithm of each row's sum beside it, it is: :func:`merge`.

Forward, p − 1 rounds: attend to the piece that is here while the next one travels. Backward, p rounds: the weights are
computed again from the kept logarithms, and the gradients of a piece travel with it, until they are home.

Legend: B samples, N heads, T tokens of this rank, S tokens of the piece that is here, E numbers each.

Source: Liu, Zaharia, Abbeel 2023 (arXiv:2310.01889); the merge is that of Milakov and Gimelshein 2018
(arXiv:1805.02867), the backward pass that of Dao et al. 2022 (arXiv:2205.14135).
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dltutorial.parallel.tensor import Group


def attend(q_BNTE: Tensor, k_BNSE: Tensor, v_BNSE: Tensor) -> tuple[Tensor, Tensor]:
    """Attention to these keys alone, and the logarithm of the sum of exponentials for each token (B, N, T, 1)."""
    scores_BNTS = q_BNTE @ k_BNSE.transpose(-2, -1) / q_BNTE.shape[-1] ** 0.5
    log_sum_BNT1 = scores_BNTS.logsumexp(-1, keepdim=True)
    return (scores_BNTS - log_sum_BNT1).exp() @ v_BNSE, log_sum_BNT1


def merge(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Attention to two sets of keys, from attention to each: a mean, weighted by the sums."""
    log_sum = torch.logaddexp(one[1], other[1])
    return one[0] * (one[1] - log_sum).exp() + other[0] * (other[1] - log_sum).exp(), log_sum


class Travel:
    """A tensor on its way to the next rank, and the one of the rank before on its way here."""

    def __init__(self, out: Tensor, n_tokens: int, group: Group = None) -> None:
        """Start both; the one that comes has so many tokens in its last but one dimension."""
        p, me = dist.get_world_size(group), dist.get_rank(group)
        group = group or dist.group.WORLD
        after, before = (dist.get_global_rank(group, (me + step) % p) for step in (1, -1))  # type: ignore[arg-type]
        self.out = out.contiguous()  # it must stay until it is sent
        self.coming = out.new_empty(*out.shape[:-2], n_tokens, out.shape[-1])
        sends = dist.P2POp(dist.isend, self.out, after, group)
        receives = dist.P2POp(dist.irecv, self.coming, before, group)
        self.works = dist.batch_isend_irecv([sends, receives])

    def arrived(self) -> Tensor:
        """Wait for both."""
        for work in self.works:
            work.wait()
        return self.coming


class RingAttention(torch.autograd.Function):
    """``RingAttention.apply(q, k, v, sizes)``: attention of this rank's tokens to all of the group's."""

    @staticmethod
    def forward(
        ctx: Any, q_BNTE: Tensor, k_BNTE: Tensor, v_BNTE: Tensor, sizes: Sequence[int], group: Group = None
    ) -> Tensor:
        """Keys and values go around once, but for the last step home."""
        p, me = dist.get_world_size(group), dist.get_rank(group)
        kv_2BNSE, parts = torch.stack([k_BNTE, v_BNTE]), []
        for step in range(p):
            travel = Travel(kv_2BNSE, sizes_before(sizes, me, step), group) if step < p - 1 else None
            parts.append(attend(q_BNTE, kv_2BNSE[0], kv_2BNSE[1]))
            parts = [functools.reduce(merge, parts)]
            kv_2BNSE = travel.arrived() if travel else kv_2BNSE
        ((mixed_BNTE, log_sum_BNT1),) = parts
        ctx.sizes, ctx.group = sizes, group
        ctx.save_for_backward(q_BNTE, k_BNTE, v_BNTE, mixed_BNTE, log_sum_BNT1)
        return mixed_BNTE

    @staticmethod
    def backward(ctx: Any, slope_BNTE: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Keys, values and their gradients go around."""
        q_BNTE, k_BNTE, v_BNTE, mixed_BNTE, log_sum_BNT1 = ctx.saved_tensors
        p, me, scale = dist.get_world_size(ctx.group), dist.get_rank(ctx.group), q_BNTE.shape[-1] ** -0.5
        share_BNT1 = (slope_BNTE * mixed_BNTE).sum(-1, keepdim=True)  # what softmax's sum takes back
        kv_2BNSE = torch.stack([k_BNTE, v_BNTE])
        d_q, d_kv = torch.zeros_like(q_BNTE), torch.zeros_like(kv_2BNSE)
        for step in range(p):
            coming = sizes_before(ctx.sizes, me, step)
            travel = Travel(kv_2BNSE, coming, ctx.group) if step < p - 1 else None
            k_BNSE, v_BNSE = kv_2BNSE
            weights_BNTS = (scale * q_BNTE @ k_BNSE.transpose(-2, -1) - log_sum_BNT1).exp()
            d_scores_BNTS = scale * weights_BNTS * (slope_BNTE @ v_BNSE.transpose(-2, -1) - share_BNT1)
            d_q += d_scores_BNTS @ k_BNSE
            d_kv[0] += d_scores_BNTS.transpose(-2, -1) @ q_BNTE
            d_kv[1] += weights_BNTS.transpose(-2, -1) @ slope_BNTE
            if p > 1:
                d_kv = Travel(d_kv, coming, ctx.group).arrived()  # one step behind its keys; after p steps it is home
            kv_2BNSE = travel.arrived() if travel else kv_2BNSE
        return d_q, *d_kv, None, None


def sizes_before(sizes: Sequence[int], rank: int, step: int) -> int:
    """Tokens of the piece that comes at the end of this step."""
    return sizes[(rank - step - 1) % len(sizes)]
