"""Ring attention: each rank has some of the tokens, and the keys and values travel around a ring of ranks.

Inputs are q, k and v of this rank's tokens, and the number of tokens on each rank, which may differ. The output is the
attention of this rank's tokens to the tokens of all ranks.

    step 0    rank 0 has keys 0    rank 1 has keys 1    rank 2 has keys 2
    step 1    rank 0 has keys 2    rank 1 has keys 0    rank 2 has keys 1
    step 2    rank 0 has keys 1    rank 1 has keys 2    rank 2 has keys 0

In each step a rank attends to the keys that it has, while it sends them to the next rank. Softmax divides by a sum over
all keys. Therefore :func:`attend` also returns the logarithm of the sum over its keys, and :func:`merge` combines two
results with these logarithms as weights.

The forward pass needs p − 1 exchanges. The backward pass recomputes the weights of the attention from the saved
logarithms. The gradients of keys and values travel with them, and one more exchange brings them back to their rank.

Legend: B samples, N heads, T tokens of this rank, S tokens whose keys this rank has in a step, E values of a head,
p ranks. The *upstream* gradient is the gradient of the output.

Source: Liu, Zaharia, Abbeel 2023 (arXiv:2310.01889). The merge is that of Milakov and Gimelshein 2018
(arXiv:1805.02867), and the backward pass is that of Dao et al. 2022 (arXiv:2205.14135).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dltutorial.parallel.tensor import Group

Attention = tuple[Tensor, Tensor]  # output (B, N, T, E), and log-sum-exp of the scores (B, N, T, 1)


def attend(q_BNTE: Tensor, k_BNSE: Tensor, v_BNSE: Tensor) -> Attention:
    """Compute the attention to these keys alone, and the logarithm of the sum of exponentials for each token."""
    scores_BNTS = q_BNTE @ k_BNSE.transpose(-2, -1) / q_BNTE.shape[-1] ** 0.5
    log_sum_BNT1 = scores_BNTS.logsumexp(-1, keepdim=True)
    weights_BNTS = (scores_BNTS - log_sum_BNT1).exp()
    return weights_BNTS @ v_BNSE, log_sum_BNT1


def merge(first: Attention, second: Attention) -> Attention:
    """Combine the attention to two sets of keys into the attention to all of them, by a weighted mean."""
    first_BNTE, first_log_sum_BNT1 = first
    second_BNTE, second_log_sum_BNT1 = second
    log_sum_BNT1 = torch.logaddexp(first_log_sum_BNT1, second_log_sum_BNT1)
    first_weight_BNT1 = (first_log_sum_BNT1 - log_sum_BNT1).exp()
    second_weight_BNT1 = (second_log_sum_BNT1 - log_sum_BNT1).exp()
    return first_weight_BNT1 * first_BNTE + second_weight_BNT1 * second_BNTE, log_sum_BNT1


class RingExchange:
    """A tensor that travels to the next rank, while another one arrives from the previous rank."""

    def __init__(self, outgoing: Tensor, n_incoming_tokens: int, group: Group = None) -> None:
        """Start both transfers, and return at once.

        Args:
            outgoing: The tensor to send. Tokens are its last dimension but one.
            n_incoming_tokens: The number of tokens in the tensor that arrives.
            group: The ranks of the ring. The default is all ranks.
        """
        p = dist.get_world_size(group)
        rank = dist.get_rank(group)
        next_rank = _global_rank((rank + 1) % p, group)
        previous_rank = _global_rank((rank - 1) % p, group)
        self.outgoing = outgoing.contiguous()  # this memory must exist until the transfer has ended
        self.incoming = outgoing.new_empty(*outgoing.shape[:-2], n_incoming_tokens, outgoing.shape[-1])
        send = dist.P2POp(dist.isend, self.outgoing, next_rank, group)
        receive = dist.P2POp(dist.irecv, self.incoming, previous_rank, group)
        self.works = dist.batch_isend_irecv([send, receive])

    def wait(self) -> Tensor:
        """Wait for both transfers, and return the tensor that has arrived."""
        for work in self.works:
            work.wait()
        return self.incoming


def _global_rank(rank: int, group: Group) -> int:
    """Return the global number of a rank of the group."""
    return rank if group is None else dist.get_global_rank(group, rank)


def incoming_tokens(n_tokens_by_rank: Sequence[int], rank: int, step: int) -> int:
    """Return the number of tokens that arrive at a rank in this step."""
    source = (rank - step - 1) % len(n_tokens_by_rank)
    return n_tokens_by_rank[source]


class RingAttention(torch.autograd.Function):
    """``RingAttention.apply(q, k, v, n_tokens_by_rank)``: the attention of this rank's tokens to all tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BNTE: Tensor,
        k_BNTE: Tensor,
        v_BNTE: Tensor,
        n_tokens_by_rank: Sequence[int],
        group: Group = None,
    ) -> Tensor:
        """Send keys and values around the ring, and merge the attention to them."""
        p = dist.get_world_size(group)
        rank = dist.get_rank(group)
        kv_2BNSE = torch.stack([k_BNTE, v_BNTE])
        merged: Attention | None = None
        for step in range(p):
            is_last = step == p - 1
            if not is_last:
                n_incoming = incoming_tokens(n_tokens_by_rank, rank, step)
                exchange = RingExchange(kv_2BNSE, n_incoming, group)
            attention = attend(q_BNTE, kv_2BNSE[0], kv_2BNSE[1])
            merged = attention if merged is None else merge(merged, attention)
            if not is_last:
                kv_2BNSE = exchange.wait()
        assert merged is not None
        output_BNTE, log_sum_BNT1 = merged
        ctx.n_tokens_by_rank = n_tokens_by_rank
        ctx.group = group
        ctx.save_for_backward(q_BNTE, k_BNTE, v_BNTE, output_BNTE, log_sum_BNT1)
        return output_BNTE

    @staticmethod
    def backward(ctx: Any, upstream_BNTE: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Send keys, values and their gradients around the ring. Each rank adds its contribution to the gradients."""
        q_BNTE, k_BNTE, v_BNTE, output_BNTE, log_sum_BNT1 = ctx.saved_tensors
        p = dist.get_world_size(ctx.group)
        rank = dist.get_rank(ctx.group)
        scale = q_BNTE.shape[-1] ** -0.5
        # The gradient of softmax subtracts this sum, because the weights of a token always sum to 1.
        correction_BNT1 = (upstream_BNTE * output_BNTE).sum(-1, keepdim=True)
        kv_2BNSE = torch.stack([k_BNTE, v_BNTE])
        d_q_BNTE = torch.zeros_like(q_BNTE)
        d_kv_2BNSE = torch.zeros_like(kv_2BNSE)
        for step in range(p):
            is_last = step == p - 1
            n_incoming = incoming_tokens(ctx.n_tokens_by_rank, rank, step)
            if not is_last:
                exchange = RingExchange(kv_2BNSE, n_incoming, ctx.group)
            k_BNSE, v_BNSE = kv_2BNSE
            weights_BNTS = (scale * q_BNTE @ k_BNSE.transpose(-2, -1) - log_sum_BNT1).exp()
            d_weights_BNTS = upstream_BNTE @ v_BNSE.transpose(-2, -1)
            d_scores_BNTS = scale * weights_BNTS * (d_weights_BNTS - correction_BNT1)
            d_q_BNTE += d_scores_BNTS @ k_BNSE
            d_kv_2BNSE[0] += d_scores_BNTS.transpose(-2, -1) @ q_BNTE
            d_kv_2BNSE[1] += weights_BNTS.transpose(-2, -1) @ upstream_BNTE
            if p > 1:
                # The gradients follow their keys. The last exchange returns them to the rank of these keys.
                d_kv_2BNSE = RingExchange(d_kv_2BNSE, n_incoming, ctx.group).wait()
            if not is_last:
                kv_2BNSE = exchange.wait()
        d_k_BNTE, d_v_BNTE = d_kv_2BNSE
        return d_q_BNTE, d_k_BNTE, d_v_BNTE, None, None
