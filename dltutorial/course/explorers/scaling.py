"""Efficiency of training from one GPU to 27,360, with the step, the network and the spread of the ranks to move."""

import dataclasses
from typing import Any

import numpy as np

from dltutorial.course.explorers.explorer import Explorer, around, choice, slider, span, three, whole
from dltutorial.record.plots import BLUE, ORANGE
from dltutorial.scaling import published, simulator
from dltutorial.scaling.clusters import Cluster, Latency
from dltutorial.scaling.workloads import Workload

_MOST = 27_360
_P = np.unique(np.geomspace(1, _MOST, 70).astype(int))
_MODES = ("weak: a batch for each GPU", "strong: one batch for all")
_MESSAGES = (("beside the backward pass", True), ("after the backward pass", False))


def scaling(workload: Workload, network: Cluster, samples: float = 1.0) -> Explorer:
    """A step to move, from 1 GPU to 27,360, beside the published runs, to which nothing is fitted.

    Model: ``scaling.simulator``; the published figures and their sources: ``scaling.published``.

    Args:
        workload: what a rank computes for a sample, and the gradients it sends; their shares stay as they are.
        network: links and latencies; the sliders move the links out of a node, and all latencies in proportion.
        samples: of one GPU in a step.
    """
    runs, spread = published.runs(), 100 * published.GPU_SPREAD.speed
    megabytes, hop_us = 1e-6 * workload.gradient_bytes, 1e6 * network.latency.inter_ring_s
    step_ms, link = 1e3 * workload.sample_s * samples, 1e-9 * network.inter_bytes_per_s

    def draw(ax: Any, v: Any) -> str:
        weights_L = tuple(weights * v.gradients / megabytes for weights in workload.weights_L)
        work = dataclasses.replace(workload, sample_s=1e-3 * v.step, weights_L=weights_L)
        latencies = Latency(*(each_s * v.latency / hop_us for each_s in dataclasses.astuple(network.latency)))
        there = dataclasses.replace(network, inter_bytes_per_s=1e9 * v.bandwidth, latency=latencies)
        ranks_P, weak = np.unique(np.append(_P, v.gpus)), v.mode == _MODES[0]
        differ = simulator.Spread(v.speed / 100, v.jitter / 1e3)
        found = simulator.simulate(work, there, ranks_P, 1.0 if weak else 1 / ranks_P, overlap=v.overlap, spread=differ)
        at, efficiency_P = int(np.searchsorted(ranks_P, v.gpus)), found.samples_P / found.step_s
        efficiency_P /= efficiency_P[0]
        ax.plot(ranks_P, efficiency_P, color=BLUE, label="model")
        ax.plot(v.gpus, efficiency_P[at], "D", color=BLUE)
        for letter, run in zip("ABCDEFGHIJ", runs, strict=False):
            listed = f"{run.key}, {run.gpus:,}: {run.efficiency:.0%}"
            ax.plot(run.gpus, run.efficiency, ls="", marker=f"${letter}$", color=ORANGE, ms=9, label=listed)
        ax.set(
            xscale="log", xlim=(0.9, 40_000), xlabel="GPUs", ylim=(0, 1.08), ylabel="efficiency (letters: published)"
        )
        ax.yaxis.set_major_formatter("{x:.0%}")
        ax.legend(loc="lower left", fontsize=9)
        near, share, gpus = min(runs, key=lambda run: abs(np.log(run.gpus / v.gpus))), efficiency_P[at], v.gpus
        return (
            f"{'Weak' if weak else 'Strong'} scaling to {gpus:,} GPU{'s' * (gpus > 1)}: efficiency {share:.1%}, the "
            f"work of {three(gpus * share)}. A step takes {span(found.step_s[at])}: {span(found.compute_s[at])} "
            f"computing, {span(found.straggler_s[at])} waiting for the slowest, {span(found.exposed_s[at])} for "
            f"gradients that nothing hides. Published nearest to it: {near.key}, {near.gpus:,} GPUs, "
            f"{near.efficiency:.0%}{'' if weak else ' (weak scaling)'}."
        )

    return Explorer(
        "Efficiency from 1 to 27,360 GPUs",
        draw,
        gpus=slider("GPUs", "For which the words tell where the time goes.", _MOST, whole(1, _MOST)),
        mode=choice("Scaling", "Whether the whole batch grows with the GPUs, or is shared.", _MODES, _MODES[0]),
        overlap=choice("Messages", "Whether a bucket leaves when it is full, or all at the end.", _MESSAGES, True),
        step=slider("Step of one GPU", "Forward and backward pass of its batch.", step_ms, around(step_ms, 100), "ms"),
        gradients=slider("Gradients", "Of every GPU, in a step.", megabytes, around(megabytes, 100), "MB"),
        bandwidth=slider("Links", "Into a node and out of it, each way.", link, around(link, 1000), "GB/s"),
        latency=slider("Latency", "Of one hop between nodes; those inside follow.", hop_us, around(hop_us, 1000), "µs"),
        speed=slider("Spread of speeds", "The slowest GPU sets the pace.", spread, [n / 6 for n in range(61)], "%"),
        jitter=slider("Jitter", "Disturbs each GPU anew in each step.", 0, whole(0, 60), "ms"),
    )
