"""One training step on a time axis: gradients are computed, buckets are sent, beside each other or in turn."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dltutorial.course.explorers.explorer import Explorer, around, geometric, size, slider, span
from dltutorial.errors import CourseError
from dltutorial.parallel.bucket_model import Link, Message, Step
from dltutorial.record.plots import BLUE, ORANGE

_MIB = 2**20


def overlap(step: Step, link: Link, bucket_mib: float = 25.0) -> Explorer:
    """A step, a link and a bucket size to move. Model: ``parallel.bucket_model``.

    Args:
        step: of one rank, as ``ddp_comparison.measure_parts`` measures it.
        link: what a message costs.
        bucket_mib: that buckets start with.

    Raises:
        CourseError: no gradients, or a number that is not positive.
    """
    if not sum(step.gradient_bytes):
        raise CourseError("the step has no gradients, so there is nothing to send; give the bytes of at least one")
    least, total = max(min(step.gradient_bytes) / _MIB, 1e-4), sum(step.gradient_bytes) / _MIB
    latency_ms, gigabytes, most = 1e3 * link.latency_s, 1e-9 * link.bytes_per_s, max(256, 2 * total)
    backward_ms, rest_ms = 1e3 * step.backward_s, 1e3 * step.rest_s

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
        best = min(np.geomspace(least, total, 24), key=lambda mib: moved.seconds(way, mib * _MIB, overlap=True))
        step_s, late_s = (moved.rest_s + max(sent[-1].end_s, moved.backward_s) for sent in (early, late))
        return (
            f"Buckets of {size(v.bucket * _MIB)}: {len(early)} message{'s' * (len(early) > 1)}, a step of "
            f"{span(step_s)}. Of {span(sum(m.end_s - m.start_s for m in early))} of communication "
            f"{hidden_share(early, moved.backward_s):.0%} hides behind the backward pass, "
            f"{span(max(0.0, early[-1].end_s - moved.backward_s))} sticks out. Sent after it, the step takes "
            f"{span(late_s)}, {late_s / step_s:.2f} × as long. The best of 24 bucket sizes is {size(best * _MIB)}: "
            f"{span(moved.seconds(way, best * _MIB, overlap=True))}."
        )

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
