"""The explorer of chapter 11: the efficiency of a training step from 1 to 27,360 GPUs.

The input is a workload and a cluster. The output is an explorer with the curve of the model ``scaling.simulator`` and
the points of published runs. ``scaling.published`` has their sources. Nothing is fitted to them.

    P  the number of GPUs    L  the layer
"""

import dataclasses
from typing import Any

import numpy as np

from dltutorial.course.explorers.explorer import Explorer, around, choice, count, slider, whole
from dltutorial.profile.timing import duration, three
from dltutorial.record.plots import BLUE, ORANGE
from dltutorial.scaling import published, simulator
from dltutorial.scaling.clusters import Cluster, Latency
from dltutorial.scaling.workloads import Workload

MODES = ("weak: a batch for each GPU", "strong: one batch for all")
_MESSAGES = (("beside the backward pass", True), ("after the backward pass", False))
_GPUS = 27_360  # of Summit
_GPUS_P = np.unique(np.geomspace(1, _GPUS, 70).astype(int))


def scaling(workload: Workload, network: Cluster, samples: float = 1.0) -> Explorer:
    """Return an explorer of the workload, the network and the differences between GPUs.

    Args:
        workload: What a rank computes for a sample, and the gradients that it sends. The shares of the layers stay.
        network: The links and latencies. One slider moves the links out of a node, and one moves all latencies in
            proportion.
        samples: Samples of one GPU in a step.
    """
    runs = published.runs()

    def draw(ax: Any, values: Any) -> str:
        ranks_P = np.unique(np.append(_GPUS_P, values.gpus))
        is_weak = values.mode == MODES[0]
        steps = simulator.simulate(
            _moved_workload(workload, values),
            _moved_network(network, values),
            ranks_P,
            1.0 if is_weak else 1 / ranks_P,
            overlap=values.overlap,
            spread=simulator.Spread(values.speed / 100, values.jitter / 1e3),
        )
        samples_per_s_P = steps.samples_P / steps.step_s
        efficiency_P = samples_per_s_P / samples_per_s_P[0]
        p = int(np.searchsorted(ranks_P, values.gpus))
        ax.plot(ranks_P, efficiency_P, color=BLUE, label="model")
        ax.plot(values.gpus, efficiency_P[p], "D", color=BLUE)
        _draw_published(ax, runs)
        ax.set(xscale="log", xlim=(0.9, 40_000), xlabel="GPUs")
        ax.set(ylim=(0, 1.08), ylabel="efficiency (letters: published)")
        ax.yaxis.set_major_formatter("{x:.0%}")
        ax.legend(loc="lower left", fontsize=9)
        nearest = min(runs, key=lambda run: abs(np.log(run.gpus / values.gpus)))
        published_as = f"{nearest.key}, {nearest.gpus:,} GPUs, {nearest.efficiency:.0%}"
        return (
            f"{'Weak' if is_weak else 'Strong'} scaling to {count(values.gpus, 'GPU')}: efficiency "
            f"{efficiency_P[p]:.1%}, the work of {three(values.gpus * efficiency_P[p])}. {_times_in_words(steps, p)} "
            f"Published nearest to it: {published_as}{'' if is_weak else ' (weak scaling)'}."
        )

    step_ms = 1e3 * workload.sample_s * samples
    megabytes = 1e-6 * workload.gradient_bytes
    gigabytes_per_s = 1e-9 * network.inter_bytes_per_s
    hop_us = 1e6 * network.latency.inter_ring_s
    speeds = around(gigabytes_per_s, 1000)
    hops = around(hop_us, 1000)
    percent = 100 * published.GPU_SPREAD.speed
    return Explorer(
        "Efficiency from 1 to 27,360 GPUs",
        draw,
        gpus=slider("GPUs", "For which the words tell where the time goes.", _GPUS, whole(1, _GPUS)),
        mode=choice("Scaling", "Whether the whole batch grows with the GPUs, or is shared.", MODES, MODES[0]),
        overlap=choice("Messages", "Whether a bucket leaves when it is full, or all at the end.", _MESSAGES, True),
        step=slider("Step of one GPU", "Forward and backward pass of its batch.", step_ms, around(step_ms, 100), "ms"),
        gradients=slider("Gradients", "Of every GPU, in a step.", megabytes, around(megabytes, 100), "MB"),
        bandwidth=slider("Links", "Into a node and out of it, each way.", gigabytes_per_s, speeds, "GB/s"),
        latency=slider("Latency", "Of one hop between nodes; those inside follow.", hop_us, hops, "µs"),
        speed=slider("Spread of speeds", "The slowest GPU sets the pace.", percent, [n / 6 for n in range(61)], "%"),
        jitter=slider("Jitter", "Disturbs each GPU differently in each step.", 0, whole(0, 60), "ms"),
    )


def _moved_workload(workload: Workload, values: Any) -> Workload:
    """Return the workload with the step and the gradients of the sliders."""
    factor = values.gradients / (1e-6 * workload.gradient_bytes)
    weights_L = tuple(weights * factor for weights in workload.weights_L)
    return dataclasses.replace(workload, sample_s=1e-3 * values.step, weights_L=weights_L)


def _moved_network(network: Cluster, values: Any) -> Cluster:
    """Return the network with the links and latencies of the sliders."""
    factor = values.latency / (1e6 * network.latency.inter_ring_s)
    latency = Latency(*(seconds * factor for seconds in dataclasses.astuple(network.latency)))
    return dataclasses.replace(network, inter_bytes_per_s=1e9 * values.bandwidth, latency=latency)


def _draw_published(ax: Any, runs: tuple[published.PublishedRun, ...]) -> None:
    """Draw a letter for each published run, which the legend explains."""
    for letter, run in zip("ABCDEFGHIJ", runs, strict=False):
        label = f"{run.key}, {run.gpus:,}: {run.efficiency:.0%}"
        ax.plot(run.gpus, run.efficiency, ls="", marker=f"${letter}$", color=ORANGE, ms=9, label=label)


def _times_in_words(steps: simulator.Steps, p: int) -> str:
    """Say where the time of a step goes."""
    return (
        f"A step takes {duration(steps.step_s[p])}: {duration(steps.compute_s[p])} computing, "
        f"{duration(steps.straggler_s[p])} waiting for the slowest, {duration(steps.exposed_s[p])} for gradients that "
        "nothing hides."
    )
