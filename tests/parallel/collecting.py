"""What ranks do to test the collectives: they compare with the backend themselves, and return what differs."""

import torch
import torch.distributed as dist

from dltutorial.comm import collectives
from dltutorial.comm.communicator import Communicator, TorchTransport, Traffic
from dltutorial.comm.stopwatch import OURS

DTYPES = ("float64", "bfloat16", "int64")


def sizes(p):
    return [(n,) for n in sorted({0, 1, p + 1, 101})] + [(3, 5)]


def drawn(shape, dtype, rank):
    """Whole numbers, other ones on each rank; sums of small ones are exact in any dtype, of large ones they wrap."""
    generator = torch.Generator().manual_seed(rank)
    high = 100 if dtype.is_floating_point is False else 1000
    x = torch.randint(0, high, shape, generator=generator)
    return (x / 7).to(dtype) if dtype.is_floating_point else x.to(dtype)


def same(got, wanted, parts):
    """To the bit for whole numbers; floats to as many roundings as there are sums."""
    if not got.dtype.is_floating_point:
        return torch.equal(got, wanted)
    size = sum(part.double().abs() for part in parts)
    limit = 2 * len(parts) * torch.finfo(got.dtype).eps * size
    return bool(((got.double() - wanted.double()).abs() <= limit).all())


def all_against_backend():
    """Names, dtypes, shapes and node sizes for which a collective differs from the backend's."""
    p, me = dist.get_world_size(), dist.get_rank()
    wrong = []
    for dtype in (getattr(torch, name) for name in DTYPES):
        for shape in sizes(p):
            parts = [drawn(shape, dtype, rank) for rank in range(p)]
            total = parts[me].clone()
            dist.all_reduce(total)
            for name, node_size in [*((name, 0) for name in OURS), ("hierarchical", 2)]:
                x = parts[me].clone()
                OURS[name](x, Communicator(node_size=node_size))
                if not right(name, x, parts, total):
                    wrong.append((name, node_size, str(dtype), shape))
    return wrong


def right(name, x, parts, total):
    me, p = dist.get_rank(), dist.get_world_size()
    if name == "broadcast":
        wanted = parts[me].clone()
        dist.broadcast(wanted, 0)
        return torch.equal(x, wanted)
    if name == "reduce":
        return me != 0 or same(x, total, parts)
    mine = [collectives.chunks_of(part, p) for part in parts]
    if name == "reduce_scatter":
        return same(
            collectives.chunks_of(x, p)[me], collectives.chunks_of(total, p)[me], [chunks[me] for chunks in mine]
        )
    if name == "all_gather":
        return torch.equal(x.view(-1), torch.cat([chunks[rank] for rank, chunks in enumerate(mine)]))
    return same(x, total, parts)


def gathers_like_torch(n_each):
    """all_gather and reduce_scatter beside torch's own of the same name, for chunks of one size."""
    p, me = dist.get_world_size(), dist.get_rank()
    x = drawn((p * n_each,), torch.float64, me)
    theirs, chunk = torch.empty_like(x), torch.empty(n_each, dtype=x.dtype)
    dist.all_gather_into_tensor(theirs, collectives.chunks_of(x, p)[me].clone())
    dist.reduce_scatter_tensor(chunk, x.clone())
    gathered, scattered = x.clone(), x.clone()
    collectives.all_gather(gathered, Communicator())
    mine = collectives.reduce_scatter(scattered, Communicator())
    return torch.equal(gathered, theirs) and torch.allclose(mine, chunk)


def bits():
    """The sums of numbers that are hard to round, as this rank holds them, by all-reduce."""
    sums = {}
    for name, all_reduce in collectives.ALL_REDUCES.items():
        sums[name] = torch.randn(101, generator=torch.Generator().manual_seed(dist.get_rank()))
        all_reduce(sums[name], Communicator(node_size=2))
    return sums


def counted(n, node_size):
    """For each collective, the traffic of this rank."""
    found = {}
    for name, run in OURS.items():
        traffic = Traffic()
        run(torch.zeros(n), Communicator(TorchTransport(), node_size=node_size, traffic=traffic))
        found[name] = traffic
    return found


def two_subsets_at_once():
    """Even and odd ranks sum among themselves, and count into the whole comm's traffic."""
    whole = Communicator()
    x = torch.full((4,), float(whole.rank))
    collectives.ring_all_reduce(x, whole.subset(range(whole.rank % 2, whole.size, 2)))
    return x[3].item(), whole.traffic.messages
