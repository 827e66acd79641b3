"""The functions that the ranks of ``test_split.py`` run."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dltutorial.errors import CourseError
from dltutorial.parallel.ring_attention import RingAttention
from dltutorial.parallel.tensor_parallel import shard_block


class Block(nn.Module):
    """The transformer block of chapter 01."""

    def __init__(self, dim=16, heads=4, hidden_size=64):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden_size), nn.GELU(), nn.Linear(hidden_size, dim))

    def forward(self, x_BTD):
        qkv_BT3NE = self.qkv(self.norm1(x_BTD)).unflatten(2, (3, self.heads, -1))
        q_BNTE, k_BNTE, v_BNTE = qkv_BT3NE.permute(2, 0, 3, 1, 4)
        mixed_BNTE = F.scaled_dot_product_attention(q_BNTE, k_BNTE, v_BNTE)
        x_BTD = x_BTD + self.out(mixed_BNTE.transpose(1, 2).flatten(2))
        return x_BTD + self.mlp(self.norm2(x_BTD))


class Counter(TorchDispatchMode):
    """Lists the collectives that run inside its context, with the bytes of their largest tensor."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            tensors = []
            for arg in args:
                tensors += [t for t in (arg if isinstance(arg, (list, tuple)) else [arg]) if torch.is_tensor(t)]
            self.calls.append((func._opname, max(t.nbytes for t in tensors)))
        return func(*args, **(kwargs or {}))

    def sent_bytes(self):
        return [n_bytes for name, n_bytes in self.calls if name == "send"]


def blocks(n=2, **options):
    torch.manual_seed(1)
    return [Block(**options).double() for _ in range(n)]


def tokens(n_tokens=8, dim=16):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(3, n_tokens, dim, generator=generator, dtype=torch.float64) for _ in range(2)]


def train(model, x, y, sum_gradients=False, n_steps=3):
    """Return the outputs after some updates, and the gradient of the input."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = x.clone().requires_grad_()
    for _ in range(n_steps):
        optimizer.zero_grad()
        x.grad = None
        ((model(x) - y).square().sum() / 128).backward()
        if sum_gradients:
            for parameter in replicated(model):
                dist.all_reduce(parameter.grad)
        optimizer.step()
    return model(x).detach(), x.grad


def replicated(blocks):
    """Return the parameters that every rank has."""
    named = [named for block in blocks for named in block.named_parameters()]
    return [p for name, p in named if "norm" in name or name in ("out.bias", "mlp.2.bias")]


def updates(sequence_parallel):
    """Return the errors of outputs, input gradients and replicated parameters, and the collectives of one step."""
    p, me = dist.get_world_size(), dist.get_rank()
    x, y = tokens()
    whole, sharded = nn.Sequential(*blocks()), nn.Sequential(*blocks())
    expected, expected_gradient = train(whole, x, y)
    for block in sharded:
        shard_block(block, block.mlp, sequence_parallel=sequence_parallel)
    if sequence_parallel:
        x, y, expected, expected_gradient = (t.chunk(p, 1)[me] for t in (x, y, expected, expected_gradient))
    outputs, gradient = train(sharded, x, y, sum_gradients=sequence_parallel)
    with Counter() as counter:
        sharded[0](x.clone().requires_grad_()).sum().backward()
    pairs = zip(replicated(sharded), replicated(whole), strict=True)
    errors = [outputs - expected, gradient - expected_gradient, *(own - one for own, one in pairs)]
    return max(largest(error) for error in errors), counter.calls


def largest(errors):
    return errors.abs().max().item()


def ring(n_tokens):
    """Return the errors of the output and of three gradients, and the bytes of each send, forward and backward."""
    p, me = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator().manual_seed(3)
    *qkv, grad_output = (torch.randn(2, 3, n_tokens, 4, generator=generator, dtype=torch.float64) for _ in range(4))
    all_qkv = [t.clone().requires_grad_() for t in qkv]
    expected = F.scaled_dot_product_attention(*all_qkv)
    expected.backward(grad_output)
    own_qkv = [t.tensor_split(p, 2)[me].clone().requires_grad_() for t in qkv]
    with Counter() as forward:
        output = RingAttention.apply(*own_qkv)
    with Counter() as backward:
        output.backward(grad_output.tensor_split(p, 2)[me])
    pairs = [(output, expected), *((own.grad, all_.grad) for own, all_ in zip(own_qkv, all_qkv, strict=True))]
    errors = [largest(own - all_.tensor_split(p, 2)[me]) for own, all_ in pairs]
    return errors, forward.sent_bytes(), backward.sent_bytes()


def refusals():
    """Return the error for an odd number of heads, and the one for an odd hidden size. The blocks must not change."""
    messages = []
    for block in (Block(dim=12, heads=3), Block(hidden_size=63)):
        before = str(block), block.heads
        try:
            shard_block(block, block.mlp, sequence_parallel=False)
        except CourseError as error:
            messages.append(str(error))
        assert (str(block), block.heads) == before
    return messages
