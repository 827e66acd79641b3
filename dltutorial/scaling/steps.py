"""Steps on more ranks than there are cores: computing is *emulated*, communication is real.

Ranks that share a core cannot show how training scales: their computing queues up. A wait does not queue. So in an
emulated step computing is a wait of the length that a ``Workload`` says, and the communication is real: buckets of
gradients, all-reduced among real processes, during the wait or after it. Every such figure is to be labelled so.

In: workloads, for ``launch`` to run on every rank: ``launch(steps.emulated, 4, variants, 10, backend="gloo")``. Out:
for each variant and step, seconds of waiting (as if computing), of waiting for the all-reduces, and of the whole.

Legend: S steps, B buckets.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dltutorial.comm.stopwatch import MIB, MeasuredNetwork
from dltutorial.parallel.bucket_model import DEFAULT_BYTES
from dltutorial.scaling.simulator import FORWARD_SHARE, Steps, buckets, simulate
from dltutorial.scaling.workloads import Workload


@dataclass(frozen=True)
class EmulatedStep:
    """One way to do a step.

    Attributes:
        workload: how long computing takes, and what is sent.
        samples: of one rank, or one number for each rank.
        overlap: start a bucket's all-reduce during the backward pass.
        bucket_bytes: of a bucket.
        pace: by rank: how many times as long as the others its computing takes; empty: all alike.
    """

    workload: Workload
    samples: float | Sequence[float] = 1.0
    overlap: bool = True
    bucket_bytes: float = DEFAULT_BYTES
    pace: Sequence[float] = ()


def emulated(variants: Mapping[str, EmulatedStep], n_steps: int) -> dict[str, np.ndarray]:
    """On every rank: do steps of all variants in turn; returns seconds, of shape (S, 3), for each variant.

    The first turn warms up and does not count.
    """
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    arrays = {
        name: [torch.zeros(int(n_bytes) // 4) for n_bytes in buckets(variant.workload, variant.bucket_bytes)[0]]
        for name, variant in variants.items()
    }
    found: dict[str, list] = {name: [] for name in variants}
    for _ in range(n_steps + 1):
        for name, variant in variants.items():
            dist.barrier()
            found[name].append(_step(variant, arrays[name], rank))
    return {name: np.array(times[1:]) for name, times in found.items()}


def _step(variant: EmulatedStep, arrays_B: list, rank: int) -> tuple[float, float, float]:
    """One step of this rank: seconds of computing, of waiting for the all-reduces, of both."""
    import torch.distributed as dist

    samples = variant.samples if isinstance(variant.samples, (int, float)) else variant.samples[rank]
    busy_s = variant.workload.sample_s * samples * (variant.pace[rank] if variant.pace else 1.0)
    _, ready_B = buckets(variant.workload, variant.bucket_bytes)
    start = time.perf_counter()
    pending = []
    for array, ready in zip(arrays_B, ready_B, strict=True):
        full_s = start + busy_s * (FORWARD_SHARE + (1 - FORWARD_SHARE) * ready)
        time.sleep(max(0.0, full_s - time.perf_counter()))
        if variant.overlap:
            pending.append(dist.all_reduce(array, async_op=True))
    computed = time.perf_counter()
    if not variant.overlap:
        for array in arrays_B:
            dist.all_reduce(array)
    for work in pending:
        work.wait()
    communicated = time.perf_counter()
    time.sleep(variant.workload.fixed_s)
    return computed - start, communicated - computed, time.perf_counter() - start


def workload_for(network: MeasuredNetwork, samples: int = 20) -> Workload:
    """Four buckets of 1 MiB, and a step of 20 samples as long as 3 of its 4 all-reduces on the most ranks measured.

    So there is something to hide on any machine, and something to hide it behind.
    """
    most = max(network.by_ranks)
    step_s = float(np.clip(3 * network.all_reduce_s(np.array([most]), MIB)[0], 0.008, 0.12))
    return Workload("emulated", (MIB / 4,) * 4, (1 / 4,) * 4, sample_s=step_s / samples)


def variants(work: Workload, ranks: int, samples: int = 20) -> dict[str, EmulatedStep]:
    """The ways in which a step is done: the batch of each rank fixed, without and with overlap; that of all fixed."""
    return {
        "weak, no overlap": EmulatedStep(work, samples, overlap=False, bucket_bytes=MIB),
        "weak, overlap": EmulatedStep(work, samples, bucket_bytes=MIB),
        "strong, overlap": EmulatedStep(work, 4 * samples / ranks, bucket_bytes=MIB),
    }


def predict(variant: EmulatedStep, network: MeasuredNetwork, ranks: int) -> Steps:
    """What the simulator says of a variant without slow ranks."""
    samples, overlap = np.asarray(variant.samples), variant.overlap
    return simulate(variant.workload, network, ranks, samples, overlap=overlap, bucket_bytes=variant.bucket_bytes)


def step_times(found: Sequence[Mapping[str, np.ndarray]], name: str) -> np.ndarray:
    """Seconds of each step of a variant, from what ``emulated`` returned on every rank: those of the slowest rank."""
    return np.max([times[name][:, 2] for times in found], axis=0)
