"""The functions that the ranks of ``test_collectives.py`` run. They return what differs from the backend."""

import torch
import torch.distributed as dist

from dltutorial.comm import collectives
from dltutorial.comm.communicator import Communicator, TorchTransport, Traffic
from dltutorial.comm.stopwatch import OURS

DTYPES = ("float64", "bfloat16", "int64")


def sizes(p):
    return [(n,) for n in sorted({0, 1, p + 1, 101})] + [(3, 5)]


def random_tensor(shape, dtype, rank):
    """Return values that differ between ranks. Integers are small, so that their sums are exact."""
    generator = torch.Generator().manual_seed(rank)
    high = 100 if dtype.is_floating_point is False else 1000
    x = torch.randint(0, high, shape, generator=generator)
    return (x / 7).to(dtype) if dtype.is_floating_point else x.to(dtype)


def is_same(actual, expected, summands):
    """Integers are equal to the bit. Floats may differ by one rounding for each sum."""
    if not actual.dtype.is_floating_point:
        return torch.equal(actual, expected)
    size = sum(summand.double().abs() for summand in summands)
    limit = 2 * len(summands) * torch.finfo(actual.dtype).eps * size
    return bool(((actual.double() - expected.double()).abs() <= limit).all())


def all_against_backend():
    """Return the names, node sizes, dtypes and shapes for which a collective differs from the backend's."""
    p, me = dist.get_world_size(), dist.get_rank()
    wrong = []
    for dtype in (getattr(torch, name) for name in DTYPES):
        for shape in sizes(p):
            inputs = [random_tensor(shape, dtype, rank) for rank in range(p)]
            total = inputs[me].clone()
            dist.all_reduce(total)
            for name, node_size in [*((name, 0) for name in OURS), ("hierarchical", 2)]:
                x = inputs[me].clone()
                OURS[name](x, Communicator(node_size=node_size))
                if not is_right(name, x, inputs, total):
                    wrong.append((name, node_size, str(dtype), shape))
    return wrong


def is_right(name, x, inputs, total):
    me, p = dist.get_rank(), dist.get_world_size()
    if name == "broadcast":
        expected = inputs[me].clone()
        dist.broadcast(expected, 0)
        return torch.equal(x, expected)
    if name == "reduce":
        return me != 0 or is_same(x, total, inputs)
    chunks_by_rank = [collectives.chunks_of(x, p) for x in inputs]
    if name == "reduce_scatter":
        own, expected = (collectives.chunks_of(tensor, p)[me] for tensor in (x, total))
        return is_same(own, expected, [chunks[me] for chunks in chunks_by_rank])
    if name == "all_gather":
        return torch.equal(x.view(-1), torch.cat([chunks[rank] for rank, chunks in enumerate(chunks_by_rank)]))
    return is_same(x, total, inputs)


def gathers_like_torch(n_each):
    """Compare all_gather and reduce_scatter with those of torch, for chunks of one size."""
    p, me = dist.get_world_size(), dist.get_rank()
    x = random_tensor((p * n_each,), torch.float64, me)
    torchs, torchs_chunk = torch.empty_like(x), torch.empty(n_each, dtype=x.dtype)
    dist.all_gather_into_tensor(torchs, collectives.chunks_of(x, p)[me].clone())
    dist.reduce_scatter_tensor(torchs_chunk, x.clone())
    gathered, scattered = x.clone(), x.clone()
    collectives.all_gather(gathered, Communicator())
    chunk = collectives.reduce_scatter(scattered, Communicator())
    return torch.equal(gathered, torchs) and torch.allclose(chunk, torchs_chunk)


def bits():
    """Return this rank's sums of random values, for each all-reduce."""
    sums = {}
    for name, all_reduce in collectives.ALL_REDUCES.items():
        sums[name] = torch.randn(101, generator=torch.Generator().manual_seed(dist.get_rank()))
        all_reduce(sums[name], Communicator(node_size=2))
    return sums


def counted(n, node_size):
    """Return the traffic of this rank for each collective."""
    traffic_of = {}
    for name, run in OURS.items():
        traffic = Traffic()
        run(torch.zeros(n), Communicator(TorchTransport(), node_size=node_size, traffic=traffic))
        traffic_of[name] = traffic
    return traffic_of


def two_subsets_at_once():
    """Even and odd ranks compute separate sums. Their counts are in the traffic of the whole group."""
    whole = Communicator()
    x = torch.full((4,), float(whole.rank))
    collectives.ring_all_reduce(x, whole.subset(range(whole.rank % 2, whole.size, 2)))
    return x[3].item(), whole.traffic.messages
