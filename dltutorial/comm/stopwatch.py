"""How long collectives take on real ranks: all of them in turn, inside one launch.

In: names, sizes in bytes, how often. Out: for each (name, size) the seconds of one call, one figure for each turn: that
of the slowest rank. Starting ranks costs far more than a small message, so all is measured between the same ranks;
turns alternate, so that a slow moment of the machine hits all alike. Where ranks share cores, only the *least* time
tells what the algorithm costs: any other has waited for a core as well.

Bandwidths as nccl-tests defines them: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from dltutorial.comm import collectives
from dltutorial.comm.communicator import Communicator
from dltutorial.launch import launch
from dltutorial.profile.timing import Timing

if TYPE_CHECKING:
    from torch import Tensor

ONE_WAY = (collectives.broadcast, collectives.reduce, collectives.reduce_scatter, collectives.all_gather)
OURS: Mapping[str, Callable[..., object]] = {**collectives.ALL_REDUCES, **{run.__name__: run for run in ONE_WAY}}
MIB = 2**20
_BATCH_BYTES, _BATCH_CALLS = MIB, 5  # small ones are called several times for one sample
Key = TypeVar("Key")
Samples = dict[tuple[str, int], list[float]]  # (name, bytes) → seconds


def clock(
    names: Sequence[str], world_size: int, sizes_bytes: Sequence[int], repeats: int = 20, node_size: int = 0,
    backend: str = "gloo", timeout_s: float = 300.0,
) -> dict[tuple[str, int], Timing]:  # fmt: skip
    """Time collectives of float32 on ranks of this machine.

    Args:
        names: of ``OURS``, or "backend": the all-reduce of gloo or NCCL itself.
        world_size: number of ranks.
        sizes_bytes: of the whole tensor; multiples of 4.
        repeats: turns; a size above 4 MiB gets fewer, at least 3.
        node_size: of the hierarchical one.
        backend: gloo or nccl.
        timeout_s: of the launch.
    """

    def on_rank() -> Samples:
        import torch.distributed as dist

        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        variants = named(names, Communicator(node_size=node_size), dist.all_reduce)
        return turns(variants, sizes_bytes, repeats, device=device)

    return slowest(launch(on_rank, world_size, timeout_s=timeout_s, backend=backend))


def slowest(ranks: Sequence[Mapping[Key, Sequence[float]]]) -> dict[Key, Timing]:
    """Of each turn the time of the rank that took longest."""
    return {key: Timing(tuple(map(max, zip(*(rank[key] for rank in ranks), strict=True)))) for key in ranks[0]}


def named(
    names: Sequence[str], comm: Communicator, backend: Callable[["Tensor"], object]
) -> dict[str, Callable[["Tensor"], object]]:
    """Functions of a tensor by name: our own over ``comm``, and the backend's."""
    known = {name: functools.partial(run, comm=comm) for name, run in OURS.items()} | {"backend": backend}
    return {name: known[name] for name in names}


def turns(
    variants: Mapping[str, Callable[["Tensor"], object]],
    sizes_bytes: Sequence[int],
    repeats: int,
    barrier: Callable[[], object] | None = None,
    device: str = "cpu",
) -> Samples:
    """Time every variant with every size, in turn, on this rank; to be called on all ranks with the same arguments.

    Args:
        variants: name → what to do with a float32 tensor.
        sizes_bytes: of that tensor.
        repeats: turns; a size above 4 MiB gets fewer, at least 3.
        barrier: waits for all ranks; default: torch.distributed's.
        device: where the tensor lies, cpu or cuda.
    """
    import torch
    import torch.distributed as dist

    barrier = barrier or dist.barrier
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    x = torch.zeros(max(sizes_bytes) // 4, device=device)
    found: Samples = {(name, size): [] for size in sizes_bytes for name in variants}
    for turn in range(-1, repeats):  # the first, to warm up, does not count
        for name, size in found:
            if size > 4 * MIB and turn >= max(3, repeats // 4):
                continue
            part, calls = x[: size // 4], max(1, min(_BATCH_CALLS, _BATCH_BYTES // size))
            barrier()
            settle()
            started_s = time.perf_counter()
            for _ in range(calls):
                variants[name](part)
            settle()
            if turn >= 0:
                found[name, size].append((time.perf_counter() - started_s) / calls)
    return found
