"""The explorer of chapter 11: the efficiency of a training step from 1 to 27,360 GPUs.

The input is a workload and a cluster. The output is an explorer with the curve of the model ``scaling.simulator`` and
the points of published runs. ``scaling.published`` has their sources. Nothing is fitted to them.

    P  the number of GPUs    L  the layer
"""

import dataclasses
from typing import Any

import numpy as np

from dltutorial.course.explorers.explorer import Explorer, choice, int_slider, log_slider, power_slider
from dltutorial.profile.timing import duration
from dltutorial.record.plots import BLUE, ORANGE
from dltutorial.scaling import published, simulator
from dltutorial.scaling.clusters import Cluster, Latency
from dltutorial.scaling.workloads import Workload

_MODES = (("weak: a batch for each GPU", True), ("strong: one batch for all", False))
_MESSAGES = (("beside the backward pass", True), ("after the backward pass", False))
_MOST_GPUS = 27_360  # of Summit


def scaling(workload: Workload, network: Cluster, samples: int) -> Explorer:
    """Return an explorer of the workload, the network and the differences between GPUs.

    Args:
        workload: What a rank computes for a sample, and the gradients that it sends. The shares of the layers stay.
        network: The links and latencies. One slider moves the links out of a node, and one moves all latencies in
            proportion.
        samples: Samples of one GPU in a step.
    """
    step_ms = 1e3 * workload.sample_s * samples
    gigabytes_per_s = 1e-9 * network.inter_bytes_per_s
    hop_us = 1e6 * network.latency.inter_ring_s
    latencies_s = np.array(dataclasses.astuple(network.latency))

    def draw(
        ax: Any, gpus: int, weak: bool, overlap: bool, step: float, bandwidth: float, latency: float, jitter: int
    ) -> str:
        ranks_P = np.unique(np.append(np.geomspace(1, _MOST_GPUS, 70).astype(int), gpus))
        steps = simulator.simulate(
            dataclasses.replace(workload, sample_s=1e-3 * step),
            dataclasses.replace(
                network, inter_bytes_per_s=1e9 * bandwidth, latency=Latency(*(latencies_s * latency / hop_us))
            ),
            ranks_P,
            1.0 if weak else 1 / ranks_P,
            overlap=overlap,
            spread=simulator.Spread(published.GPU_SPREAD.speed, jitter / 1e3),
        )
        samples_per_s_P = steps.samples_P / steps.step_s
        efficiency_P = samples_per_s_P / samples_per_s_P[0]
        p = int(np.searchsorted(ranks_P, gpus))
        ax.semilogx(ranks_P, efficiency_P, color=BLUE, label="model")
        ax.plot(gpus, efficiency_P[p], "D", color=BLUE)
        for letter, run in zip("ABCDEFGHIJ", published.runs(), strict=False):
            label = f"{run.key}, {run.gpus:,}: {run.efficiency:.0%}"
            ax.plot(run.gpus, run.efficiency, ls="", marker=f"${letter}$", color=ORANGE, ms=9, label=label)
        ax.set(xlabel="GPUs", ylim=(0, 1.08), ylabel="efficiency (letters: published, weak scaling)")
        ax.legend(loc="lower left", fontsize=9)
        return (
            f"On {gpus:,} GPUs the efficiency is {efficiency_P[p]:.1%}. A step takes {duration(steps.step_s[p])}, of "
            f"which {duration(steps.compute_s[p])} are computing, {duration(steps.straggler_s[p])} waiting for the "
            f"slowest GPU, and {duration(steps.exposed_s[p])} communication that nothing hides."
        )

    return Explorer(
        draw,
        gpus=power_slider("GPUs", _MOST_GPUS, 1, _MOST_GPUS),
        weak=choice("Scaling", _MODES, True),
        overlap=choice("Messages", _MESSAGES, True),
        step=log_slider("Step of one GPU [ms]", step_ms, step_ms / 100, step_ms * 100),
        bandwidth=log_slider("Links of a node [GB/s]", gigabytes_per_s, gigabytes_per_s / 1000, gigabytes_per_s * 1000),
        latency=log_slider("Latency of a hop [µs]", hop_us, hop_us / 1000, hop_us * 1000),
        jitter=int_slider("Jitter [ms]", 0, 0, 60),
    )
