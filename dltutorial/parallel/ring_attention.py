"""Ring attention: each rank has some of the tokens, and the keys and values travel around a ring of ranks.

Inputs are q, k and v of this rank's tokens. Each rank has the same number of tokens. The output is the attention of
this rank's tokens to the tokens of all ranks. With three ranks there are three steps:

              rank 0      rank 1      rank 2
    step 0    keys 0 ──►  keys 1 ──►  keys 2 ──► to rank 0
    step 1    keys 2 ──►  keys 0 ──►  keys 1 ──► to rank 0
    step 2    keys 1      keys 2      keys 0

In each step a rank attends to the keys that it has, while it sends them to the next rank. Softmax divides by a sum over
all keys. Therefore :func:`attend` also returns the logarithm of the sum over its keys, and :func:`merge` combines two
results with these logarithms as weights.

The forward pass needs p − 1 exchanges. The backward pass recomputes the weights of the attention from the saved
logarithms. The gradients of keys and values travel with them, and one more exchange brings them back to their rank.

Legend: B samples, N heads, T tokens of this rank, S tokens whose keys this rank has in a step (as many as T),
E values of a head, p ranks (at least two). ``kv_2BNSE`` holds keys and values. The *upstream* gradient is the gradient
of the output, and ``d_q`` is the gradient of q.

Source: Liu, Zaharia, Abbeel 2023 (arXiv:2310.01889). The merge is that of Milakov and Gimelshein 2018
(arXiv:1805.02867), and the backward pass is that of Dao et al. 2022 (arXiv:2205.14135).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Attention = tuple[Tensor, Tensor]  # output (B, N, T, E), and log-sum-exp of the scores (B, N, T, 1)


def attend(q_BNTE: Tensor, k_BNSE: Tensor, v_BNSE: Tensor) -> Attention:
    """Compute the attention to these keys alone, and the logarithm of the sum of exponentials for each token."""
    scores_BNTS = q_BNTE @ k_BNSE.mT / q_BNTE.shape[-1] ** 0.5
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


def no_attention(q_BNTE: Tensor) -> Attention:
    """Return the attention to no keys, which does not change the result of a merge."""
    B, N, T, E = q_BNTE.shape
    return q_BNTE.new_zeros(B, N, T, E), q_BNTE.new_full((B, N, T, 1), -torch.inf)


def attend_backward(
    q_BNTE: Tensor, kv_2BNSE: Tensor, attention: Attention, upstream_BNTE: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the gradients that these keys contribute.

    Args:
        q_BNTE: The queries.
        kv_2BNSE: The keys and values.
        attention: The output of the forward pass, which is the attention to all keys.
        upstream_BNTE: The gradient of the output.

    Returns:
        The gradients of the queries, shape (B, N, T, E), and of keys and values, shape (2, B, N, S, E).
    """
    k_BNSE, v_BNSE = kv_2BNSE
    output_BNTE, log_sum_BNT1 = attention
    scale = q_BNTE.shape[-1] ** -0.5
    weights_BNTS = (scale * q_BNTE @ k_BNSE.mT - log_sum_BNT1).exp()
    d_weights_BNTS = upstream_BNTE @ v_BNSE.mT
    # The gradient of softmax subtracts this sum, because the weights of a token always sum to 1.
    sum_BNT1 = (upstream_BNTE * output_BNTE).sum(-1, keepdim=True)
    d_scores_BNTS = scale * weights_BNTS * (d_weights_BNTS - sum_BNT1)
    d_q_BNTE = d_scores_BNTS @ k_BNSE
    d_k_BNSE = d_scores_BNTS.mT @ q_BNTE
    d_v_BNSE = weights_BNTS.mT @ upstream_BNTE
    return d_q_BNTE, torch.stack([d_k_BNSE, d_v_BNSE])


class RingExchange:
    """A tensor that travels to the next rank, while another one arrives from the previous rank."""

    def __init__(self, outgoing: Tensor) -> None:
        """Start both transfers, and return at once."""
        p = dist.get_world_size()
        rank = dist.get_rank()
        self.outgoing = outgoing.contiguous()  # this memory must exist until the transfer has ended
        self.incoming = torch.empty_like(self.outgoing)
        send = dist.P2POp(dist.isend, self.outgoing, (rank + 1) % p)
        receive = dist.P2POp(dist.irecv, self.incoming, (rank - 1) % p)
        self.works = dist.batch_isend_irecv([send, receive])

    def wait(self) -> Tensor:
        """Wait for both transfers, and return the tensor that has arrived."""
        for work in self.works:
            work.wait()
        return self.incoming


class RingAttention(torch.autograd.Function):
    """``RingAttention.apply(q, k, v)``: the attention of this rank's tokens to all tokens."""

    @staticmethod
    def forward(ctx: Any, q_BNTE: Tensor, k_BNTE: Tensor, v_BNTE: Tensor) -> Tensor:
        """Send keys and values around the ring, and merge the attention to them."""
        kv_2BNSE = torch.stack([k_BNTE, v_BNTE])
        attention = no_attention(q_BNTE)
        for _ in range(dist.get_world_size() - 1):
            exchange = RingExchange(kv_2BNSE)
            attention = merge(attention, attend(q_BNTE, *kv_2BNSE))
            kv_2BNSE = exchange.wait()
        attention = merge(attention, attend(q_BNTE, *kv_2BNSE))
        ctx.save_for_backward(q_BNTE, k_BNTE, v_BNTE, *attention)
        output_BNTE, _ = attention
        return output_BNTE

    @staticmethod
    def backward(ctx: Any, upstream_BNTE: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Send keys, values and their gradients around the ring. Each rank adds its contribution to the gradients."""
        q_BNTE, k_BNTE, v_BNTE, *attention = ctx.saved_tensors
        kv_2BNSE = torch.stack([k_BNTE, v_BNTE])
        d_q_BNTE, d_kv_2BNSE = attend_backward(q_BNTE, kv_2BNSE, attention, upstream_BNTE)
        for _ in range(dist.get_world_size() - 1):
            kv_exchange = RingExchange(kv_2BNSE)
            # The gradients follow their keys.
            d_kv_exchange = RingExchange(d_kv_2BNSE)
            kv_2BNSE = kv_exchange.wait()
            more_d_q_BNTE, more_d_kv_2BNSE = attend_backward(q_BNTE, kv_2BNSE, attention, upstream_BNTE)
            d_q_BNTE += more_d_q_BNTE
            d_kv_2BNSE = d_kv_exchange.wait() + more_d_kv_2BNSE
        d_kv_2BNSE = RingExchange(d_kv_2BNSE).wait()  # back to the rank of these keys
        d_k_BNTE, d_v_BNTE = d_kv_2BNSE
        return d_q_BNTE, d_k_BNTE, d_v_BNTE
