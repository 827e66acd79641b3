"""Efficiency of training from one GPU to 27,360, with the step, the network and the spread of the ranks to move.

In: a rank's work and a network, as measured or as of a data sheet. Out: efficiency against GPUs, with the published
runs beside it, and in words where the time of a step goes. Model: ``dltutorial.scaling.simulator``; the published
figures and their sources: ``dltutorial.scaling.published``. Nothing is fitted to them.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from dltutorial.course.explorers import svg
from dltutorial.course.explorers.parts import Choice, Drawing, Explorer, Slider, around
from dltutorial.course.explorers.words import span, three
from dltutorial.course.guess import positive
from dltutorial.errors import CourseError
from dltutorial.scaling import clusters, published, simulator
from dltutorial.scaling.clusters import Cluster, Latency
from dltutorial.scaling.simulator import Spread, Steps
from dltutorial.scaling.workloads import Workload, even

MOST = 27_360
WEAK, STRONG = "weak: a batch for each GPU", "strong: one batch for all"
BESIDE, AFTER = "beside the backward pass", "after the backward pass"
_P = np.unique(np.geomspace(1, MOST, 70).astype(int))
_HEIGHT, _KEY = 412, 112  # of the picture; of the list of what is drawn, below the axes


def scaling(workload: Workload, network: Cluster, samples: float = 1.0, spread: Spread = published.GPU_SPREAD) -> None:
    """Show how a step scales, beside the published runs; arguments as of :func:`make`."""
    make(workload, network, samples, spread).explore()


def make(workload: Workload, network: Cluster, samples: float = 1.0, spread: Spread = published.GPU_SPREAD) -> Explorer:
    """A step to move, from 1 GPU to 27,360.

    Args:
        workload: what a rank computes for a sample, and the gradients it sends; their shares stay as they are.
        network: links and latencies; the sliders move the links out of a node, and all latencies in proportion.
        samples: of one GPU in a step.
        spread: of the ranks' speeds.

    Raises:
        CourseError: a step that takes no time, or links without latency or an end to their bandwidth.
    """
    runs = published.runs()
    step_ms = 1e3 * positive(workload.sample_s * samples, "the step's computing")
    megabytes = 1e-6 * positive(workload.gradient_bytes, "bytes of the gradients")
    hop_us = 1e6 * positive(network.latency.inter_ring_s, "latency between nodes")
    link = 1e-9 * positive(network.inter_bytes_per_s, "bandwidth between nodes")

    def draw(
        gpus: int, mode: str, overlap: str, step: float, gradients: float, bandwidth: float, latency: float,
        speed: float, jitter: float,
    ) -> Drawing:  # fmt: skip
        work = dataclasses.replace(
            workload, sample_s=1e-3 * step, weights_L=tuple(w * gradients / megabytes for w in workload.weights_L)
        )
        latencies = Latency(*(each_s * latency / hop_us for each_s in dataclasses.astuple(network.latency)))
        there = dataclasses.replace(network, inter_bytes_per_s=1e9 * bandwidth, latency=latencies)
        ranks = np.unique(np.append(_P, gpus))
        found = simulator.simulate(
            work, there, ranks, 1.0 if mode == WEAK else 1 / ranks, overlap=overlap == BESIDE,
            spread=Spread(speed / 100, 1e-3 * jitter, spread.shape),
        )  # fmt: skip
        at = int(np.searchsorted(ranks, gpus))
        return Drawing(_words(found, at, mode, runs), _picture(found, at, runs), height=_HEIGHT)

    controls = [
        Slider("gpus", "GPUs", value=MOST, low=1, high=MOST, log=True, integer=True,
               help="For which the words tell where the time goes."),
        Choice("mode", "Scaling", (WEAK, STRONG), value=WEAK,
               help="Whether the whole batch grows with the GPUs, or is shared among them."),
        Choice("overlap", "Messages", (BESIDE, AFTER), value=BESIDE,
               help="Whether a bucket leaves when it is full, or all when the backward pass is over."),
        Slider("step", "Step of one GPU", **around(step_ms, 100), unit="ms",
               help="Forward and backward pass of the batch on one GPU."),
        Slider("gradients", "Gradients", **around(megabytes, 100), unit="MB",
               help="What every GPU brings to the all-reduces of a step."),
        Slider("bandwidth", "Links", **around(link, 1000), unit="GB/s",
               help="Into a node and out of it, each way."),
        Slider("latency", "Latency", **around(hop_us, 1000), unit="µs",
               help="Of one hop between nodes; those inside follow in proportion."),
        Slider("speed", "Spread of speeds", value=min(100 * spread.speed, 10), low=0, high=10, unit="%",
               help="Standard deviation between GPUs; the slowest of all sets the pace."),
        Slider("jitter", "Jitter", value=min(1e3 * spread.jitter_s, 100), low=0, high=100, unit="ms",
               help="Standard deviation of a disturbance that hits each GPU anew in each step."),
    ]  # fmt: skip
    return Explorer("Efficiency from 1 to 27,360 GPUs", controls, draw)


def example() -> Explorer:
    """An assumed network of 100 MB on the links of Summit, half a second a step."""
    work = dataclasses.replace(even("assumed", 25e6), sample_s=0.5)
    return make(work, clusters.load("Summit"))


def nearest(runs: Sequence[published.Run], gpus: int) -> published.Run:
    """The published run whose size is nearest, by ratio.

    Raises:
        CourseError: there are no runs.
    """
    if not runs:
        raise CourseError("no published run to compare with; reference/scaling_published.csv is empty")
    return min(runs, key=lambda run: abs(np.log(run.gpus / gpus)))


def efficiency(found: Steps) -> np.ndarray:
    """Throughput of P GPUs over P times that of one; the first entry is the one."""
    each = found.samples_P / found.step_s
    return each / each[0]


def _words(found: Steps, at: int, mode: str, runs: Sequence[published.Run]) -> str:
    gpus, share = int(found.ranks_P[at]), float(efficiency(found)[at])
    run = nearest(runs, gpus)
    parts = [
        f"{span(seconds[at])} {what}"
        for what, seconds in (
            ("computing", found.compute_s),
            ("waiting for the slowest", found.straggler_s),
            ("for gradients that nothing hides", found.exposed_s),
        )
    ]
    plural = "" if gpus == 1 else "s"
    return (
        f"{mode.partition(':')[0].capitalize()} scaling to {gpus:,} GPU{plural}: efficiency {share:.1%}, the work of "
        f"{three(gpus * share)}. A step takes {span(found.step_s[at])}: {', '.join(parts)}. Published nearest to it: "
        f"{run.key}, {run.gpus:,} GPUs, {run.efficiency:.0%}{' (weak scaling)' if mode == STRONG else ''}."
    )


def _picture(found: Steps, at: int, runs: Sequence[published.Run]) -> list[str]:
    """The curve, a diamond where the words are, and published runs as rings with a letter, listed below."""
    axes = svg.Axes(
        (1, 40_000), (0, 1.08), log_x=True, labels=("GPUs", "efficiency"), size=(svg.WIDTH, _HEIGHT - _KEY),
        ticks_y={n / 5: f"{n / 5:.0%}" for n in range(6)}, ticks_x={10.0**n: f"{10**n:,}" for n in range(5)},
    )  # fmt: skip
    share = efficiency(found)
    below = _HEIGHT - _KEY + 14
    return [
        *axes.frame(),
        axes.curve(list(zip(found.ranks_P.tolist(), share.tolist(), strict=True)), svg.BLUE),
        *_published(axes, runs),
        svg.diamond(axes.x(found.ranks_P[at]), axes.y(share[at]), svg.BLUE),
        *svg.legend([(svg.line([(-12, 0), (12, 0)], svg.BLUE) + svg.diamond(0, 0, svg.BLUE), "model")], 22, below),
        *svg.legend([(svg.ring(0, 0, svg.RED, filled=True), "published:")], 110, below),
    ]


def _published(axes: svg.Axes, runs: Sequence[published.Run]) -> list[str]:
    parts = []
    rows = -(-len(runs) // 2)
    for number, run in enumerate(runs):
        letter, x, y = chr(ord("A") + number), axes.x(run.gpus), axes.y(run.efficiency)
        left = any(other.gpus == run.gpus and other.efficiency > run.efficiency for other in runs[number + 1 :])
        parts.append(svg.ring(x, y, svg.RED, filled=True))
        parts.append(svg.text(x + (-9 if left else 9), y + 5, letter, anchor="end" if left else "start", bold=True))
        column, row = divmod(number, rows)
        listed = f"{letter} {run.key}, {run.gpus:,}: {run.efficiency:.0%}"
        parts.append(svg.text(8 + column * (svg.WIDTH // 2), _HEIGHT - _KEY + 44 + 19 * row, listed))
    return parts
