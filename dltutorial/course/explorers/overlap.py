"""The explorer of chapter 09: one training step on a time axis, with buckets that are sent beside it or after it.

The input is the times of a step without communication, and the cost of an all-reduce. The output is an explorer. Times
are in seconds in the arguments, and in milliseconds in the picture. The model is ``parallel.bucket_model``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dltutorial.course.explorers.explorer import Explorer, around, count, geometric, size, slider
from dltutorial.errors import CourseError
from dltutorial.parallel.bucket_model import Link, Message, Step
from dltutorial.profile.timing import duration
from dltutorial.record.plots import BLUE, ORANGE

_MIB = 2**20


def overlap(step: Step, link: Link, bucket_mib: float = 25.0) -> Explorer:
    """Return an explorer of the buckets, the link and the step.

    Args:
        step: A step of one rank without communication.
        link: The cost of an all-reduce.
        bucket_mib: The size of a bucket at the start in MiB.

    Raises:
        CourseError: There are no gradients, or a number is not positive.
    """
    if not sum(step.gradient_bytes):
        raise CourseError("the step has no gradients, so there is nothing to send; give the bytes of at least one")
    total_mib = sum(step.gradient_bytes) / _MIB
    least_mib = max(min(step.gradient_bytes) / _MIB, 1e-4)

    def draw(ax: Any, values: Any) -> str:
        moved = Step(step.gradient_bytes, 1e-3 * values.backward, 1e-3 * values.rest)
        moved_link = Link(1e-3 * values.latency, 1e9 * values.bandwidth)
        overlapped = moved.messages(moved_link, values.bucket * _MIB, overlap=True)
        sequential = moved.messages(moved_link, values.bucket * _MIB, overlap=False)
        _draw_step(ax, 0, moved, overlapped)
        _draw_step(ax, -3, moved, sequential)
        ax.axvline(values.backward, color="black", ls="--", lw=1)
        ax.set_yticks([0.4, -0.6, -2.6, -3.6], ["sent when full", "network", "sent after it", "network"])
        ax.set(xlabel="ms: backward pass (filled), messages (striped), all else (empty)", xlim=(0, None))
        ax.grid(False, axis="y")
        ax.figure.subplots_adjust(left=0.2)
        sizes_mib = np.geomspace(least_mib, total_mib, 24)
        best_s, best_mib = min((moved.seconds(moved_link, mib * _MIB, overlap=True), mib) for mib in sizes_mib)
        best = f"The best of 24 bucket sizes is {size(best_mib * _MIB)}: {duration(best_s)}."
        return f"Buckets of {size(values.bucket * _MIB)}: {_in_words(moved, overlapped, sequential)} {best}"

    gigabytes_per_s = 1e-9 * link.bytes_per_s
    buckets = geometric(least_mib, max(256, 2 * total_mib))
    latency_ms = 1e3 * link.latency_s
    backward_ms = 1e3 * step.backward_s
    rest_ms = 1e3 * step.rest_s
    return Explorer(
        "A step with its messages",
        draw,
        bucket=slider("Bucket", "It leaves when it holds so much.", bucket_mib, buckets, "MiB"),
        latency=slider("Latency", "What the smallest message costs.", latency_ms, around(latency_ms, 100), "ms"),
        bandwidth=slider(
            "Bandwidth", "What an all-reduce carries.", gigabytes_per_s, around(gigabytes_per_s, 100), "GB/s"
        ),
        backward=slider("Backward pass", "Gradients are computed.", backward_ms, around(backward_ms, 10), "ms"),
        rest=slider("All else", "Optimizer and forward pass.", rest_ms, around(rest_ms, 10), "ms"),
    )


def _draw_step(ax: Any, row: int, step: Step, messages: Sequence[Message]) -> None:
    """Draw the computation of a step in a row, and its messages in the row below."""
    spans_ms = [(1e3 * message.start_s, 1e3 * (message.end_s - message.start_s)) for message in messages]
    ready_s = max(step.backward_s, messages[-1].end_s)
    ax.broken_barh([(0, 1e3 * step.backward_s)], (row, 0.8), color=BLUE)
    ax.broken_barh([(1e3 * ready_s, 1e3 * step.rest_s)], (row, 0.8), fc="none", ec="black")
    ax.broken_barh(spans_ms, (row - 1, 0.8), fc="white", ec=ORANGE, hatch="///")


def _in_words(step: Step, overlapped: Sequence[Message], sequential: Sequence[Message]) -> str:
    """Say how long the step takes, and how much of the communication the backward pass hides."""
    communication_s = sum(message.end_s - message.start_s for message in overlapped)
    hidden_s = sum(max(0.0, min(message.end_s, step.backward_s) - message.start_s) for message in overlapped)
    exposed_s = max(0.0, overlapped[-1].end_s - step.backward_s)
    step_s = step.rest_s + max(step.backward_s, overlapped[-1].end_s)
    step_after_s = step.rest_s + max(step.backward_s, sequential[-1].end_s)
    return (
        f"{count(len(overlapped), 'message')}, a step of {duration(step_s)}. "
        f"Of {duration(communication_s)} of communication {hidden_s / communication_s:.0%} hides behind the backward "
        f"pass, {duration(exposed_s)} sticks out. "
        f"Sent after it, the step takes {duration(step_after_s)}, {step_after_s / step_s:.2f} × as long."
    )
