"""What the ranks of ``test_split.py`` do."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dltutorial.parallel.ring_attention import RingAttention
from dltutorial.parallel.tensor import shard_block


class Block(nn.Module):
    """Chapter 01's."""

    def __init__(self, dim=16, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x_BTD):
        qkv_BT3NE = self.qkv(self.norm1(x_BTD)).unflatten(2, (3, self.heads, -1))
        q_BNTE, k_BNTE, v_BNTE = qkv_BT3NE.permute(2, 0, 3, 1, 4)
        mixed_BNTE = F.scaled_dot_product_attention(q_BNTE, k_BNTE, v_BNTE)
        x_BTD = x_BTD + self.out(mixed_BNTE.transpose(1, 2).flatten(2))
        return x_BTD + self.mlp(self.norm2(x_BTD))


class Counter(TorchDispatchMode):
    """Which messages, and the bytes given to them."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            tensors = []
            for arg in args:
                tensors += [t for t in (arg if isinstance(arg, (list, tuple)) else [arg]) if torch.is_tensor(t)]
            self.found.append((func._opname, max(t.nbytes for t in tensors)))
        return func(*args, **(kwargs or {}))


def blocks(n=2, **options):
    torch.manual_seed(1)
    return [Block(**options).double() for _ in range(n)]


def tokens(n_tokens=8, dim=16):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(3, n_tokens, dim, generator=generator, dtype=torch.float64) for _ in range(2)]


def train(layers, x, y, also=None, n_steps=3):
    """After some updates: the outputs, and the slope at the input."""
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = x.clone().requires_grad_()
    for _ in range(n_steps):
        optimizer.zero_grad()
        x.grad = None
        ((model(x) - y).square().sum() / 128).backward()
        for parameter in also() if also else ():
            dist.all_reduce(parameter.grad)
        optimizer.step()
    return model(x).detach(), x.grad


def partial(block):
    """What all hold whole, while each sees only its own tokens pass."""
    return [*block.norm1.parameters(), *block.norm2.parameters(), block.out.bias, block.mlp[2].bias]


def updates(sequence):
    """How far whole and split training are apart, and the messages of one step."""
    p, me = dist.get_world_size(), dist.get_rank()
    x, y = tokens()
    wanted, slope = train(blocks(), x, y)
    split = blocks()
    for block in split:
        shard_block(block, block.mlp, sequence=sequence)
    if sequence:
        x, y, wanted, slope = (t.chunk(p, 1)[me] for t in (x, y, wanted, slope))
    also = (lambda: [w for block in split for w in partial(block)]) if sequence else None
    got, got_slope = train(split, x, y, also)
    with Counter() as counter:
        split[0](x.clone().requires_grad_()).sum().backward()
    return (got - wanted).abs().max().item(), (got_slope - slope).abs().max().item(), counter.found


def ring(n_tokens):
    """Errors of the result and of three gradients, and what was sent forward and backward."""
    p, me = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator().manual_seed(3)
    whole = [torch.randn(2, 3, n_tokens, 4, generator=generator, dtype=torch.float64) for _ in range(4)]
    q, k, v = (t.clone().requires_grad_() for t in whole[:3])
    wanted = F.scaled_dot_product_attention(q, k, v)
    wanted.backward(whole[3])
    mine = [t.tensor_split(p, 2)[me].clone() for t in whole]
    for t in mine[:3]:
        t.requires_grad_()
    sizes = [t.shape[2] for t in whole[0].tensor_split(p, 2)]
    counters = Counter(), Counter()
    with counters[0]:
        got = RingAttention.apply(*mine[:3], sizes)
    with counters[1]:
        got.backward(mine[3])
    pairs = [(got, wanted), *((a.grad, b.grad) for a, b in zip(mine, (q, k, v), strict=False))]
    errors = [(a - b.tensor_split(p, 2)[me]).abs().max().item() for a, b in pairs]
    return errors, *[[n for name, n in c.found if name == "send"] for c in counters]


def odd_heads():
    block = Block(dim=12, heads=3)
    shard_block(block, block.mlp)
