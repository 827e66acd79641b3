"""The time of collectives on real ranks. All of them are measured in turn, inside one launch.

Inputs are the names of collectives, the sizes in bytes and the number of repeats. The output is, for each pair of a
name and a size, the seconds of one call in each repeat, on the rank that took longest.

All collectives are measured between the same ranks, because starting ranks takes far longer than a small message. They
take turns, so that a slow moment of the machine hits all of them. Where ranks share cores, use the *least* time of a
collective, because the others include waiting for a core.

Bandwidths are defined as in nccl-tests: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dltutorial.comm import collectives
from dltutorial.comm.communicator import Communicator
from dltutorial.launch import launch
from dltutorial.profile.timing import Timing

if TYPE_CHECKING:
    from torch import Tensor

OURS: Mapping[str, Callable[..., object]] = {
    **collectives.ALL_REDUCES,
    "broadcast": collectives.broadcast,
    "reduce": collectives.reduce,
    "reduce_scatter": collectives.reduce_scatter,
    "all_gather": collectives.all_gather,
}
MIB = 2**20
_SAMPLE_BYTES, _SAMPLE_CALLS = MIB, 5  # a small collective is called several times for one sample
_LARGE_BYTES = 4 * MIB  # larger collectives get fewer repeats
_TIMEOUT_S = 300.0
Samples = dict[tuple[str, int], list[float]]  # (name, bytes) → seconds of one call, for each repeat


def clock(
    names: Sequence[str],
    world_size: int,
    sizes_bytes: Sequence[int],
    repeats: int = 20,
    node_size: int = 0,
    backend: str = "gloo",
) -> dict[tuple[str, int], Timing]:
    """Launch ranks on this machine, and measure the time of collectives of float32 values.

    Args:
        names: Names from ``OURS``, or "backend" for the all-reduce of gloo or NCCL itself.
        world_size: The number of ranks.
        sizes_bytes: The bytes of the whole tensor, multiples of 4.
        repeats: The number of samples. Sizes above 4 MiB get a quarter of them, and at least 3.
        node_size: The number of ranks on a node, for the hierarchical all-reduce.
        backend: gloo or nccl.

    Returns:
        The times of the slowest rank, for each pair of a name and a size.
    """

    def on_rank() -> Samples:
        import torch.distributed as dist

        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        comm = Communicator(node_size=node_size)
        variants = functions_by_name(names, comm, dist.all_reduce)
        return turns(variants, sizes_bytes, repeats, device=device)

    samples_by_rank = launch(on_rank, world_size, timeout_s=_TIMEOUT_S, backend=backend)
    return slowest(samples_by_rank)


def slowest(samples_by_rank: Sequence[Samples]) -> dict[tuple[str, int], Timing]:
    """Return, for each name, size and repeat, the time of the rank that took longest."""
    timings = {}
    for key in samples_by_rank[0]:
        repeats = zip(*(samples[key] for samples in samples_by_rank), strict=True)
        timings[key] = Timing(tuple(max(seconds_of_ranks) for seconds_of_ranks in repeats))
    return timings


def functions_by_name(
    names: Sequence[str], comm: Communicator, backend: Callable[["Tensor"], object]
) -> dict[str, Callable[["Tensor"], object]]:
    """Return functions of a tensor: the course's collectives over ``comm``, and ``backend`` under that name."""
    functions: dict[str, Callable[[Tensor], object]] = {}
    for name in names:
        if name == "backend":
            functions[name] = backend
        else:
            functions[name] = functools.partial(OURS[name], comm=comm)
    return functions


def turns(
    variants: Mapping[str, Callable[["Tensor"], object]],
    sizes_bytes: Sequence[int],
    repeats: int,
    barrier: Callable[[], object] | None = None,
    device: str = "cpu",
) -> Samples:
    """Measure every variant with every size, in turn, on this rank. All ranks call this with the same arguments.

    Args:
        variants: Functions of a float32 tensor, by name.
        sizes_bytes: The bytes of that tensor.
        repeats: The number of samples. Sizes above 4 MiB get a quarter of them, and at least 3.
        barrier: A function that waits for all ranks. The default is the barrier of torch.distributed.
        device: The device of the tensor, cpu or cuda.

    Returns:
        The seconds of one call in each repeat, for each pair of a name and a size.
    """
    import torch
    import torch.distributed as dist

    barrier = barrier or dist.barrier
    x_N = torch.zeros(max(sizes_bytes) // 4, device=device)
    samples: Samples = {(name, n_bytes): [] for n_bytes in sizes_bytes for name in variants}
    for name, n_bytes in samples:  # warm-up
        _seconds_of_call(variants[name], x_N, n_bytes, barrier)
    for repeat in range(repeats):
        for name, n_bytes in samples:
            if n_bytes > _LARGE_BYTES and repeat >= max(3, repeats // 4):
                continue
            samples[name, n_bytes].append(_seconds_of_call(variants[name], x_N, n_bytes, barrier))
    return samples


def _seconds_of_call(
    function: Callable[["Tensor"], object], x_N: "Tensor", n_bytes: int, barrier: Callable[[], object]
) -> float:
    """Return the mean seconds of some calls with the first ``n_bytes`` of ``x_N``."""
    n_calls = max(1, min(_SAMPLE_CALLS, _SAMPLE_BYTES // n_bytes))
    x_n = x_N[: n_bytes // 4]
    barrier()
    _wait_for_device(x_N)
    start_s = time.perf_counter()
    for _ in range(n_calls):
        function(x_n)
    _wait_for_device(x_N)
    return (time.perf_counter() - start_s) / n_calls


def _wait_for_device(x: "Tensor") -> None:
    """Wait until a GPU has finished its work, because calls return earlier."""
    if x.is_cuda:
        import torch

        torch.cuda.synchronize()
