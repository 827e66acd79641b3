"""Where the time of a step goes, in seconds, from a trace alone.

In: a :class:`~dltutorial.profile.events.Trace` with steps. Out: a frozen :class:`StepBreakdown`, all per step.

The thread that steps either waits for a batch, or waits in a call that synchronises, or sits in a long gap in which
torch does nothing, or works. Where there is a device, the thread's work is launching, and the device's own time is
split by what its kernels are. Where there is none, the thread's work is split in the same way, and operators too
short to be about their data count as the cost of calling them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dltutorial.errors import CourseError
from dltutorial.profile.events import (
    STEP,
    Event,
    Interval,
    Trace,
    clip,
    covers,
    intervals,
    length,
    merged,
    outermost,
    self_seconds,
    without,
)

SHORT_OPERATOR_S = 20e-6  # of self time; below it, calling costs more than computing on any machine of the course
LONG_GAP_S = 1e-3  # Python between two operators takes microseconds; longer, and the thread does something else
READ, PREPARE = ("read",), ("augment", "decode", "prepare")  # ranges inside the loading that tell its parts apart

_SYNCHRONISING = ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize")
_READS_A_VALUE = "aten::item"
_PRODUCTS = (
    *("gemm", "gemv", "matmul", "convolve", "conv2d", "conv3d", "fprop", "dgrad", "wgrad"),
    *("attention", "attn", "fmha", "cutlass", "xmma", "nvjet"),
)
_PRODUCT_OPERATORS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::dot", "aten::mv")


@dataclass(frozen=True)
class StepBreakdown:
    """Seconds per step.

    Attributes:
        step_s: from one step to the next, everything included.
        wait_s: the stepping thread waits for a batch.
        read_s, prepare_s: ranges of reading and of preparing, on any thread; 0 where the trace names none.
        synchronise_s: it waits in calls that wait for the device.
        n_synchronise: such calls; without a device, the reads of a value (``item()``) that would wait on one.
        gap_s: nothing of torch runs on it for more than a millisecond at a time.
        gap_where: the innermost range around the longest gap, or the operator before it.
        launch_s: the rest of its time on a machine with a device; without one, short operators and short gaps.
        n_calls: kernels launched, or operators called.
        device_s: a device computes or copies; None without one.
        product_s, other_s: kernels (operators, without a device) that are matrix products, and all others.
    """

    step_s: float
    wait_s: float
    read_s: float
    prepare_s: float
    synchronise_s: float
    n_synchronise: float
    gap_s: float
    gap_where: str
    launch_s: float
    n_calls: float
    device_s: float | None
    product_s: float
    other_s: float

    @classmethod
    def of(cls, trace: Trace) -> "StepBreakdown":
        """Read it out of a trace. CourseError: the trace has no step."""
        if not trace.steps:
            raise CourseError("the trace holds no step; take it with trace.take, or name each step's range 'step'")
        n, first, end_s = len(trace.steps), trace.steps[0], trace.steps[-1].end_s
        own = [event for event in trace.events if event.row == first.row]
        # Some load inside of their steps, others before each of them.
        start_s = min(event.start_s for event in own if event is first or event.is_loading)

        def cut(events: Iterable[Event]) -> list[Interval]:
            return clip(merged(intervals(events)), start_s, end_s)

        kernels = [e for e in trace.events if e.category in ("kernel", "copy") and e.end_s > start_s]
        ranges = [event for event in trace.events if event.category == "range"]
        loads = cut(event for event in own if event.is_loading)
        waits = without(cut(event for event in own if _waits_for_device(event)), loads)
        # With a device, the backward pass has a thread of its own: while it works, the stepping thread is not idle.
        calls = [e for e in trace.events if e.category in ("operator", "runtime") and (kernels or e.row == first.row)]
        gaps = [(a, b) for a, b in without([(start_s, end_s)], [*cut(calls), *loads]) if b - a >= LONG_GAP_S]
        stepping = [e for e in own if start_s <= e.start_s < end_s and not covers(loads, e.start_s)]
        operators = [event for event in stepping if event.category == "operator"]
        work_s = end_s - start_s - length([*loads, *waits, *gaps])
        device_s = length(intervals(kernels))
        product_s, other_s = _by_kind(kernels, device_s) if kernels else _by_kind_of_operator(operators)
        return cls(
            step_s=(max([end_s, *(event.end_s for event in kernels)]) - start_s) / n,
            wait_s=length(loads) / n,
            read_s=sum(event.duration_s for event in ranges if event.name in READ) / n,
            prepare_s=sum(event.duration_s for event in ranges if event.name in PREPARE) / n,
            synchronise_s=length(waits) / n,
            n_synchronise=(sum(map(_waits_for_device, stepping)) if kernels else _values_read(operators, ranges)) / n,
            gap_s=length(gaps) / n,
            gap_where=_longest(gaps, [e for e in ranges if e.row == first.row and e.name != STEP], operators),
            launch_s=(work_s if kernels else max(0.0, work_s - product_s - other_s)) / n,
            n_calls=len(kernels or outermost(operators)) / n,
            device_s=device_s / n if kernels else None,
            product_s=product_s / n,
            other_s=other_s / n,
        )


def _values_read(operators: Iterable[Event], ranges: Iterable[Event]) -> int:
    """Calls of ``item()``; those of the optimizer are left out: they read counters that no device holds."""
    own = merged(intervals(event for event in ranges if event.name.startswith("Optimizer.step")))
    return sum(event.name == _READS_A_VALUE and not covers(own, event.start_s) for event in operators)


def _by_kind(kernels: Sequence[Event], device_s: float) -> tuple[float, float]:
    """Seconds of products and of all other kernels; kernels may overlap, together they are the device's seconds."""
    whole_s = sum(event.duration_s for event in kernels)
    product_s = device_s * sum(event.duration_s for event in kernels if is_product(event)) / max(1e-12, whole_s)
    return product_s, device_s - product_s


def _by_kind_of_operator(operators: Sequence[Event]) -> tuple[float, float]:
    """Seconds of products and of everything else, of operators that are not short."""
    timed = [pair for pair in zip(operators, self_seconds(operators), strict=True) if pair[1] >= SHORT_OPERATOR_S]
    product_s = sum(seconds for event, seconds in timed if is_product(event))
    return product_s, sum(seconds for _, seconds in timed) - product_s


def _longest(gaps: Sequence[Interval], ranges: Iterable[Event], operators: Iterable[Event]) -> str:
    """Where the longest gap is: the innermost range around it, else the last operator before it."""
    if not gaps:
        return ""
    start_s, end_s = max(gaps, key=lambda gap: gap[1] - gap[0])
    around = [event.name for event in ranges if event.start_s <= (start_s + end_s) / 2 < event.end_s]
    before = [event.name for event in operators if event.start_s < start_s]
    return f"in {around[-1]}" if around else f"after {before[-1]}" if before else "before any operator"


def is_product(event: Event) -> bool:
    """Whether a kernel or an operator is a matrix product, a convolution or attention, by its name."""
    name = event.name.lower()
    if event.category == "operator":
        return name in _PRODUCT_OPERATORS or any(word in name for word in ("conv", "attention"))
    return event.category == "kernel" and any(word in name for word in _PRODUCTS)


def _waits_for_device(event: Event) -> bool:
    if event.category != "runtime":
        return False
    blocking_copy = event.name.endswith(("Memcpy", "MemcpyDtoH", "MemcpyHtoD"))
    return blocking_copy or any(name in event.name for name in _SYNCHRONISING)
