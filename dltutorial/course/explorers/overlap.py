"""One training step on a time axis: gradients are computed, buckets are sent, beside each other or one after the other.

In: what a rank computes, what a message costs, and the size of a bucket, as measured. Out: two timelines, and in words
how much of the communication hides. Model: ``dltutorial.parallel.bucket_model``.
"""

from collections.abc import Sequence

from dltutorial.course.explorers import svg
from dltutorial.course.explorers.parts import Drawing, Explorer, Slider, around
from dltutorial.course.explorers.words import size, span
from dltutorial.course.guess import positive
from dltutorial.errors import CourseError
from dltutorial.parallel.bucket_model import Link, Message, Step

_MIB = 2**20
_LEFT, _TOP, _ROW = 84, 44, 24
_LANES = ("computing", "network")
_TRIED = 24  # sizes of buckets, among which the best is looked for


def overlap(step: Step, link: Link, bucket_mib: float = 25.0) -> None:
    """Show when a step's gradients are computed and sent; arguments as of :func:`make`."""
    make(step, link, bucket_mib).explore()


def make(step: Step, link: Link, bucket_mib: float = 25.0) -> Explorer:
    """A step, a link and a bucket size to move.

    Args:
        step: of one rank, as ``ddp_comparison.measure_parts`` measures it.
        link: what a message costs.
        bucket_mib: that buckets start with.

    Raises:
        CourseError: no gradients, or a number that is not positive.
    """
    if not step.gradient_bytes or not sum(step.gradient_bytes):
        raise CourseError("the step has no gradients, so there is nothing to send; give the bytes of at least one")
    smallest = max(min(step.gradient_bytes) / _MIB, 1e-4)
    least, whole = smallest * _MIB, sum(step.gradient_bytes)
    most = max(256.0, 2 * whole / _MIB)
    tried = [least * (whole / least) ** (n / (_TRIED - 1)) for n in range(_TRIED)]

    def draw(bucket: float, latency: float, bandwidth: float, backward: float, rest: float) -> Drawing:
        moved = Step(step.gradient_bytes, 1e-3 * backward, 1e-3 * rest)
        way = Link(1e-3 * latency, 1e9 * bandwidth)
        sent = {early: moved.messages(way, bucket * _MIB, overlap=early) for early in (True, False)}
        best = min(tried, key=lambda n_bytes: moved.seconds(way, n_bytes, overlap=True))
        words = _words(moved, way, bucket * _MIB, sent[True], sent[False][-1].end_s, best)
        return Drawing(words, _picture(moved, sent[True], sent[False]))

    controls = [
        Slider("bucket", "Bucket", value=min(max(positive(bucket_mib, "bucket_mib"), smallest), most), low=smallest,
               high=most, log=True, unit="MiB", help="A bucket leaves when it holds so much, or more."),
        Slider("latency", "Latency", **around(1e3 * positive(link.latency_s, "latency_s"), 100), unit="ms",
               help="What the smallest message costs."),
        Slider("bandwidth", "Bandwidth", **around(1e-9 * positive(link.bytes_per_s, "bytes_per_s"), 100), unit="GB/s",
               help="Bytes of gradient that an all-reduce brings to all ranks in a second."),
        Slider("backward", "Backward pass", **around(1e3 * positive(step.backward_s, "backward_s"), 10), unit="ms",
               help="How long the gradients are computed."),
        Slider("rest", "All else", **around(1e3 * positive(step.rest_s, "rest_s"), 10), unit="ms",
               help="Optimizer and forward pass, behind which nothing hides here."),
    ]  # fmt: skip
    return Explorer("A step with its messages", controls, draw)


def example() -> Explorer:
    """Forty gradients of 1 MiB on an assumed device and network: 6 ms of backward pass, 0.2 ms and 5 GB/s."""
    return make(Step([_MIB] * 40, backward_s=6e-3, rest_s=4e-3), Link(2e-4, 5e9), bucket_mib=4)


def hidden_share(sent: Sequence[Message], backward_s: float) -> float:
    """Share of the time that messages are under way in which the backward pass still runs."""
    under_way_s = sum(message.end_s - message.start_s for message in sent)
    return sum(max(0.0, min(message.end_s, backward_s) - message.start_s) for message in sent) / under_way_s


def _words(
    step: Step, link: Link, bucket_bytes: float, sent: Sequence[Message], late_end_s: float, best_bytes: float
) -> str:
    step_s, under_way_s = step.rest_s + max(sent[-1].end_s, step.backward_s), sum(m.end_s - m.start_s for m in sent)
    late_s, best_s = step.rest_s + late_end_s, step.seconds(link, best_bytes, overlap=True)
    exposed_s = max(0.0, sent[-1].end_s - step.backward_s)
    return (
        f"Buckets of {size(bucket_bytes)}: {len(sent)} message{'' if len(sent) == 1 else 's'}, a step of "
        f"{span(step_s)}. Of {span(under_way_s)} of communication {hidden_share(sent, step.backward_s):.0%} hides "
        f"behind the backward pass, {span(exposed_s)} sticks out. Sent after it, the step takes {span(late_s)}, "
        f"{late_s / step_s:.2f} × as long. The best of {_TRIED} bucket sizes is {size(best_bytes)}: {span(best_s)}."
    )


def _picture(step: Step, early: Sequence[Message], late: Sequence[Message]) -> list[str]:
    """Two pairs of lanes on one axis of time."""
    end_ms = 1e3 * (step.rest_s + max(step.backward_s, early[-1].end_s, late[-1].end_s))
    axes = svg.Axes(
        (0, end_ms), (0, 1), labels=("milliseconds from the start of the backward pass", ""), ticks_y={},
        margins=(_LEFT, 16, _TOP - 12, 48),
    )  # fmt: skip
    parts = [*axes.frame(), *_key()]
    rows = (("each bucket leaves when it is full", early), ("all leave after the backward pass", late))
    for number, (title, sent) in enumerate(rows):
        parts += _lanes(axes, _TOP + 8 + 104 * number, title, step, sent)
    return parts


def _lanes(axes: svg.Axes, top: float, title: str, step: Step, sent: Sequence[Message]) -> list[str]:
    """Computing above, the network below; a dashed line where the backward pass ends."""
    done_ms, waited_ms = 1e3 * step.backward_s, 1e3 * max(step.backward_s, sent[-1].end_s)
    rows = [top + 10, top + 10 + _ROW + 8]
    parts = [svg.text(_LEFT + 6, top + 2, title, bold=True)]
    parts += [svg.text(_LEFT - 6, y + 17, name, anchor="end") for y, name in zip(rows, _LANES, strict=True)]
    parts.append(svg.bar(axes.x(0), rows[0], axes.x(done_ms) - axes.x(0), _ROW, svg.BLUE))
    rest = axes.x(waited_ms + 1e3 * step.rest_s) - axes.x(waited_ms)
    parts.append(svg.bar(axes.x(waited_ms), rows[0], rest, _ROW, svg.GREY, "none"))
    for message in sent:
        left, right = axes.x(1e3 * message.start_s), axes.x(1e3 * message.end_s)
        gap = 1.0 if right - left > 4 else 0.0  # so that neighbours can be told apart
        parts.append(svg.bar(left, rows[1], right - left - gap, _ROW, svg.RED, "striped"))
    at = axes.x(done_ms)
    return [*parts, svg.line([(at, rows[0] - 4), (at, rows[1] + _ROW + 4)], "currentColor", svg.DASHED, 1.5)]


def _key() -> list[str]:
    """What the bars are, in one row above them."""
    entries = [
        (svg.bar(-10, -6, 20, 12, svg.BLUE), "backward", _LEFT + 12),
        (svg.bar(-10, -6, 20, 12, svg.RED, "striped"), "message", _LEFT + 122),
        (svg.bar(-10, -6, 20, 12, svg.GREY, "none"), "optimizer, forward", _LEFT + 232),
    ]
    return [part for mark, words, x in entries for part in svg.legend([(mark, words)], x, 14)]
