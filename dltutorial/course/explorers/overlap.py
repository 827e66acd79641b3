"""The explorer of chapter 09: one training step on a time axis, with buckets that are sent beside it or after it.

The input is the times of a step without communication, and the cost of an all-reduce. The output is an explorer. Times
are in seconds in the arguments, and in milliseconds in the picture. The model is ``parallel.bucket_model``.
"""

from typing import Any

from dltutorial.course.explorers.explorer import Explorer, log_slider, size
from dltutorial.parallel.bucket_model import Link, Step
from dltutorial.profile.timing import duration
from dltutorial.record.plots import BLUE, ORANGE

_MIB = 2**20


def overlap(step: Step, link: Link, bucket_mib: float = 25.0) -> Explorer:
    """Return an explorer of the buckets, the link and the step.

    Args:
        step: A step of one rank without communication.
        link: The cost of an all-reduce.
        bucket_mib: The size of a bucket at the start in MiB.
    """

    def draw(ax: Any, bucket: float, latency: float, bandwidth: float, backward: float, rest: float) -> str:
        moved = Step(step.gradient_bytes, 1e-3 * backward, 1e-3 * rest)
        moved_link = Link(1e-3 * latency, 1e9 * bandwidth)
        steps_s = []
        for row, is_overlapped in ((0, True), (-3, False)):
            messages = moved.messages(moved_link, bucket * _MIB, overlap=is_overlapped)
            spans_ms = [(1e3 * message.start_s, 1e3 * (message.end_s - message.start_s)) for message in messages]
            ready_ms = max(backward, 1e3 * messages[-1].end_s)
            ax.broken_barh([(0, backward)], (row, 0.8), color=BLUE)
            ax.broken_barh([(ready_ms, rest)], (row, 0.8), fc="none", ec="black")
            ax.broken_barh(spans_ms, (row - 1, 0.8), fc="white", ec=ORANGE, hatch="///")
            steps_s.append(1e-3 * (ready_ms + rest))
        ax.axvline(backward, color="black", ls="--", lw=1)
        ax.set_yticks([0.4, -0.6, -2.6, -3.6], ["sent when full", "network", "sent after it", "network"])
        ax.set(xlabel="ms: backward pass (filled), messages (striped), the rest (empty)", xlim=(0, None))
        ax.grid(False, axis="y")
        return (
            f"Buckets of {size(bucket * _MIB)} make {len(messages):,} messages. If each is sent when it is full, a "
            f"step takes {duration(steps_s[0])}. If all are sent after the backward pass, it takes "
            f"{duration(steps_s[1])}, {steps_s[1] / steps_s[0]:.2f} × as long."
        )

    total_mib = sum(step.gradient_bytes) / _MIB
    latency_ms = 1e3 * link.latency_s
    gigabytes_per_s = 1e-9 * link.bytes_per_s
    backward_ms = 1e3 * step.backward_s
    rest_ms = 1e3 * step.rest_s
    return Explorer(
        draw,
        bucket=log_slider("Bucket [MiB]", bucket_mib, min(step.gradient_bytes) / _MIB, max(256, 2 * total_mib)),
        latency=log_slider("Latency [ms]", latency_ms, latency_ms / 100, latency_ms * 100),
        bandwidth=log_slider("Bandwidth [GB/s]", gigabytes_per_s, gigabytes_per_s / 100, gigabytes_per_s * 100),
        backward=log_slider("Backward pass [ms]", backward_ms, backward_ms / 10, backward_ms * 10),
        rest=log_slider("The rest of the step [ms]", rest_ms, rest_ms / 10, rest_ms * 10),
    )
