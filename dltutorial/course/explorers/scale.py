"""Explorers of many ranks: an all-reduce (chapter 08), buckets (09), efficiency (11), large batches (12)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dltutorial.comm.collectives import ALL_REDUCES
from dltutorial.comm.cost import Prices, Regimes, counts
from dltutorial.convergence import curves
from dltutorial.course.explorers.explorer import Explorer, around, choice, geometric, size, slider, whole
from dltutorial.errors import CourseError
from dltutorial.parallel.bucket_model import Link, Message, Step
from dltutorial.profile.timing import duration, three
from dltutorial.record.plots import BLUE, ORANGE
from dltutorial.scaling import published, simulator
from dltutorial.scaling.clusters import Cluster, Latency
from dltutorial.scaling.workloads import Workload

LINKS = ("a link for each rank", "one lane for all")
MODES = ("weak: a batch for each GPU", "strong: one batch for all")
_MESSAGES = (("beside the backward pass", True), ("after the backward pass", False))
_BYTES_N = np.geomspace(16, 2**32, 1401)
_STYLES = ("-", "--", (0, (8, 1, 1, 1)), ":", "-.")
_MIB = 2**20
_GPUS = 27_360
_GPUS_P = np.unique(np.geomspace(1, _GPUS, 70).astype(int))

Points = Mapping[int, Sequence[float]]


def allreduce(prices: Prices | Regimes, ranks: int = 4, node_size: int = 8) -> Explorer:
    """Time of five all-reduces against the bytes, at prices to move. Model: ``comm.cost``.

    Args:
        prices: where the sliders start. Of two regimes α is that of the small messages, as always, and the bytes cost
            what they cost in the large ones, where they matter. With one lane all messages share it.
        ranks: that the number of ranks starts with, at least 2.
        node_size: ranks on a node, for the hierarchical one.
    """

    def draw(ax: Any, v: Any) -> str:
        lanes = v.ranks if v.links == LINKS[0] else 1
        prices = Prices(1e-6 * v.latency, 1e-9 / v.bandwidth, 1e-9 / v.adding, lanes)
        # With prices fixed, every collective costs a + b n seconds for n bytes.
        a, a_b = (np.array([prices.seconds(counts(name, v.ranks, n, v.node)) for name in ALL_REDUCES]) for n in (0, 1))
        seconds_AN = a[:, None] + (a_b - a)[:, None] * _BYTES_N
        now = sorted(zip(a + (a_b - a) * v.n_bytes, ALL_REDUCES, strict=True))
        for name, seconds_N, style in zip(ALL_REDUCES, seconds_AN, _STYLES, strict=True):
            ax.plot(_BYTES_N[::25], seconds_N[::25], ls=style, label=name)
        ax.axvline(v.n_bytes, color="black", ls="--", lw=1)
        ax.plot(v.n_bytes, now[0][0], "D", color="black")
        ax.set(xscale="log", yscale="log", ylabel="seconds", xlabel="bytes of the message")
        ax.legend(loc="upper left")
        first, *changes = leads(seconds_AN)
        times = ", ".join(f"{name} {duration(seconds)}" for seconds, name in now)
        return (
            f"{size(v.n_bytes)} on {v.ranks:,} ranks, quickest first: {times}. Quickest for the smallest messages is "
            f"{first[1]}{''.join(f'; from {size(begin)} on {names}' for begin, names in changes)}."
        )

    start = prices.large if isinstance(prices, Regimes) else prices
    alpha = 1e6 * start.message_s
    beta, gamma = (1e-9 / max(price, 1e-15) for price in (start.byte_s, start.reduced_byte_s))
    return Explorer(
        "Time of an all-reduce against its bytes",
        draw,
        n_bytes=slider("Message", "The vector that every rank holds.", 2**20, geometric(16, 2**32), text=size),
        ranks=slider("Ranks", "How many take part.", ranks, whole(2, 4096)),
        latency=slider("Latency α", "Of one message, however small.", alpha, geometric(0.1, 1e5), "µs"),
        bandwidth=slider("Bandwidth β", "What a link, or the lane, carries.", beta, geometric(0.01, 1000), "GB/s"),
        adding=slider("Adding 1/γ", "What a rank adds to others in a second.", gamma, geometric(0.01, 1000), "GB/s"),
        links=choice("Links", "Whether all ranks send at once, or through one.", LINKS, LINKS[start.lanes == 1]),
        node=slider("Ranks on a node", "For the hierarchical one: trees inside, a ring out.", node_size, whole(1, 64)),
    )


def leads(seconds_AN: np.ndarray) -> list[tuple[float, str]]:
    """(bytes, names) from which on these all-reduces are the quickest; those that cost the same share the lead."""
    first_AN = seconds_AN <= seconds_AN.min(0) * (1 + 1e-9)
    changes = np.flatnonzero((first_AN[:, 1:] != first_AN[:, :-1]).any(0)) + 1
    return [(float(_BYTES_N[n]), " = ".join(np.array(list(ALL_REDUCES))[first_AN[:, n]])) for n in (0, *changes)]


def overlap(step: Step, link: Link, bucket_mib: float = 25.0) -> Explorer:
    """One step on a time axis, its buckets sent beside it or after it. Model: ``parallel.bucket_model``.

    Args:
        step: of one rank, without communication.
        link: what a message costs.
        bucket_mib: that buckets start with.

    Raises:
        CourseError: no gradients, or a number that is not positive.
    """
    if not sum(step.gradient_bytes):
        raise CourseError("the step has no gradients, so there is nothing to send; give the bytes of at least one")
    least, total = max(min(step.gradient_bytes) / _MIB, 1e-4), sum(step.gradient_bytes) / _MIB

    def draw(ax: Any, v: Any) -> str:
        moved = Step(step.gradient_bytes, 1e-3 * v.backward, 1e-3 * v.rest)
        way = Link(1e-3 * v.latency, 1e9 * v.bandwidth)
        early, late = (moved.messages(way, v.bucket * _MIB, overlap=overlap) for overlap in (True, False))
        for row, sent in ((0, early), (-3, late)):
            spans = [(1e3 * m.start_s, 1e3 * (m.end_s - m.start_s)) for m in sent]
            ax.broken_barh([(0, v.backward)], (row, 0.8), color=BLUE)
            ax.broken_barh([(max(v.backward, 1e3 * sent[-1].end_s), v.rest)], (row, 0.8), fc="none", ec="black")
            ax.broken_barh(spans, (row - 1, 0.8), fc="white", ec=ORANGE, hatch="///")
        ax.axvline(v.backward, color="black", ls="--", lw=1)
        ax.set_yticks([0.4, -0.6, -2.6, -3.6], ["sent when full", "network", "sent after it", "network"])
        ax.set(xlabel="ms: backward pass (filled), messages (striped), all else (empty)", xlim=(0, None))
        ax.grid(False, axis="y")
        ax.figure.subplots_adjust(left=0.2)
        best_s, best = min((moved.seconds(way, m * _MIB, overlap=True), m) for m in np.geomspace(least, total, 24))
        step_s, late_s = (moved.rest_s + max(sent[-1].end_s, moved.backward_s) for sent in (early, late))
        return (
            f"Buckets of {size(v.bucket * _MIB)}: {len(early)} message{'s' * (len(early) > 1)}, a step of "
            f"{duration(step_s)}. Of {duration(sum(m.end_s - m.start_s for m in early))} of communication "
            f"{hidden_share(early, moved.backward_s):.0%} hides behind the backward pass, "
            f"{duration(max(0.0, early[-1].end_s - moved.backward_s))} sticks out. Sent after it, the step takes "
            f"{duration(late_s)}, {late_s / step_s:.2f} × as long. The best of 24 bucket sizes is "
            f"{size(best * _MIB)}: {duration(best_s)}."
        )

    latency_ms, gigabytes, most = 1e3 * link.latency_s, 1e-9 * link.bytes_per_s, max(256, 2 * total)
    backward_ms, rest_ms = 1e3 * step.backward_s, 1e3 * step.rest_s
    return Explorer(
        "A step with its messages",
        draw,
        bucket=slider("Bucket", "It leaves when it holds so much.", bucket_mib, geometric(least, most), "MiB"),
        latency=slider("Latency", "What the smallest message costs.", latency_ms, around(latency_ms, 100), "ms"),
        bandwidth=slider("Bandwidth", "What an all-reduce carries.", gigabytes, around(gigabytes, 100), "GB/s"),
        backward=slider("Backward pass", "Gradients are computed.", backward_ms, around(backward_ms, 10), "ms"),
        rest=slider("All else", "Optimizer and forward pass.", rest_ms, around(rest_ms, 10), "ms"),
    )


def hidden_share(sent: Sequence[Message], backward_s: float) -> float:
    """Share of the time that messages are under way in which the backward pass still runs."""
    under_way_s = sum(message.end_s - message.start_s for message in sent)
    return sum(max(0.0, min(message.end_s, backward_s) - message.start_s) for message in sent) / under_way_s


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
        ranks_P, weak = np.unique(np.append(_GPUS_P, v.gpus)), v.mode == MODES[0]
        differ = simulator.Spread(v.speed / 100, v.jitter / 1e3)
        found = simulator.simulate(work, there, ranks_P, 1.0 if weak else 1 / ranks_P, overlap=v.overlap, spread=differ)
        at, efficiency_P = int(np.searchsorted(ranks_P, v.gpus)), found.samples_P / found.step_s
        efficiency_P /= efficiency_P[0]
        ax.plot(ranks_P, efficiency_P, color=BLUE, label="model")
        ax.plot(v.gpus, efficiency_P[at], "D", color=BLUE)
        for letter, run in zip("ABCDEFGHIJ", runs, strict=False):
            listed = f"{run.key}, {run.gpus:,}: {run.efficiency:.0%}"
            ax.plot(run.gpus, run.efficiency, ls="", marker=f"${letter}$", color=ORANGE, ms=9, label=listed)
        ax.set(xscale="log", xlim=(0.9, 40_000), xlabel="GPUs")
        ax.set(ylim=(0, 1.08), ylabel="efficiency (letters: published)")
        ax.yaxis.set_major_formatter("{x:.0%}")
        ax.legend(loc="lower left", fontsize=9)
        near, share, gpus = min(runs, key=lambda run: abs(np.log(run.gpus / v.gpus))), efficiency_P[at], v.gpus
        return (
            f"{'Weak' if weak else 'Strong'} scaling to {gpus:,} GPU{'s' * (gpus > 1)}: efficiency {share:.1%}, the "
            f"work of {three(gpus * share)}. A step takes {duration(found.step_s[at])}: "
            f"{duration(found.compute_s[at])} computing, {duration(found.straggler_s[at])} waiting for the slowest, "
            f"{duration(found.exposed_s[at])} for gradients that nothing hides. Published nearest to it: {near.key}, "
            f"{near.gpus:,} GPUs, {near.efficiency:.0%}{'' if weak else ' (weak scaling)'}."
        )

    return Explorer(
        "Efficiency from 1 to 27,360 GPUs",
        draw,
        gpus=slider("GPUs", "For which the words tell where the time goes.", _GPUS, whole(1, _GPUS)),
        mode=choice("Scaling", "Whether the whole batch grows with the GPUs, or is shared.", MODES, MODES[0]),
        overlap=choice("Messages", "Whether a bucket leaves when it is full, or all at the end.", _MESSAGES, True),
        step=slider("Step of one GPU", "Forward and backward pass of its batch.", step_ms, around(step_ms, 100), "ms"),
        gradients=slider("Gradients", "Of every GPU, in a step.", megabytes, around(megabytes, 100), "MB"),
        bandwidth=slider("Links", "Into a node and out of it, each way.", link, around(link, 1000), "GB/s"),
        latency=slider("Latency", "Of one hop between nodes; those inside follow.", hop_us, around(hop_us, 1000), "µs"),
        speed=slider("Spread of speeds", "The slowest GPU sets the pace.", spread, [n / 6 for n in range(61)], "%"),
        jitter=slider("Jitter", "Disturbs each GPU anew in each step.", 0, whole(0, 60), "ms"),
    )


def batches(points: Points, s_min: float, b_crit: float, best: tuple[float, float]) -> Explorer:
    """Measured steps to a target, a curve S_min (1 + B_crit / B) to move, and how far it is from them.

    Args:
        points: batch size → steps to the target, one number a seed; nan where it was never reached.
        s_min, b_crit: where the sliders start.
        best: S_min and B_crit of a fit, whose misfit is told for comparison.

    Raises:
        CourseError: fewer than two batch sizes reached the target with most seeds, or a number that is not positive.
    """
    if sum(math.isfinite(_middle(values)) for values in points.values()) < 2:
        raise CourseError("fewer than two batch sizes reached the target with most seeds; train for more steps")
    seen = np.array([(batch, steps) for batch, values in points.items() for steps in values], float)
    reached = seen[np.isfinite(seen[:, 1])]
    batch_N = np.array(geometric(reached[:, 0].min() / 1.5, reached[:, 0].max() * 1.5))

    def draw(ax: Any, v: Any) -> str:
        ax.plot(*reached.T, "o", mfc="none", color=BLUE, label="measured, one seed")
        ax.plot(batch_N, curves.steps(batch_N, v.s_min, v.b_crit), color=ORANGE, label="S_min (1 + B_crit / B)")
        ax.axhline(v.s_min, color=ORANGE, ls="--", lw=1.2)
        ax.axvline(v.b_crit, color=ORANGE, ls=":", lw=1.2)
        ax.set(xscale="log", yscale="log", xlabel="batch size, images (dotted: B_crit)", xlim=batch_N[[0, -1]])
        ax.set(ylabel="steps to the target (dashed: S_min)", ylim=(min(reached[:, 1]) / 3, max(reached[:, 1]) * 1.5))
        ax.legend()
        off, least = (f"a factor of {misfit(points, *curve):,.2f}" for curve in ((v.s_min, v.b_crit), best))
        missing = len(seen) - len(reached)
        untold = f". {missing} runs never reached the target and are not drawn" if missing else ""
        return (
            f"S_min {v.s_min:,.0f} steps, B_crit {v.b_crit:,.0f} images: typically off by {off} "
            f"(the fit: {least}){untold}."
        )

    most_b, most_s = (10.0 ** math.ceil(math.log10(most)) for most in reached.max(0))
    return Explorer(
        "Steps to the target against the batch size",
        draw,
        s_min=slider("S_min", "Steps that no batch saves.", s_min, geometric(most_s / 1e4, most_s), "steps"),
        b_crit=slider("B_crit", "Needs twice S_min steps.", b_crit, geometric(most_b / 1e4, most_b), "images"),
    )


def misfit(points: Points, s_min: float, b_crit: float) -> float:
    """By what factor the curve is typically off: e to the root mean square of ln(measured / curve).

    As in ``curves.fit``: the median seed counts, one that never reached the target is later than all that did, and a
    batch size at which half of them or more never did is left out.
    """
    off = np.log([_middle(values) / float(curves.steps(batch, s_min, b_crit)) for batch, values in points.items()])
    return float(np.exp(np.sqrt(np.mean(np.square(off[np.isfinite(off)])))))


def _middle(values: Sequence[float]) -> float:
    """The median, by ratio; infinite where half of the seeds or more never reached the target."""
    return float(np.exp(np.median(np.log(np.nan_to_num(np.asarray(values, float), nan=np.inf, posinf=np.inf)))))
