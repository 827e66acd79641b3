"""Where the time of a step goes, from a trace alone.

Input: a :class:`~dltutorial.profile.events.Trace` with steps.
Output: a frozen :class:`StepBreakdown`, in seconds per step.

The stepping thread does one of four things: it waits for a batch, it waits in a call that synchronises with the GPU, it
is in a long gap in which torch does nothing, or it works. With a GPU, its work is launching kernels, and the time of
the GPU is divided by the kind of kernel. Without a GPU, its work is divided by the kind of operator, and operators that
are too short to compute much count as the cost of calling them.

Source: docs.pytorch.org, torch.profiler, for the names of events; docs.nvidia.com, CUDA Runtime API, for calls that
synchronise.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    outermost,
    self_seconds,
    without,
)

SHORT_OPERATOR_S = 20e-6  # of self time; on all machines of the course, calling such an operator is most of its cost
LONG_GAP_S = 1e-3  # Python between two operators takes microseconds, so in a longer gap the thread does something else
READ, PREPARE = "read", "augment"  # names of ranges inside the loading

_SYNCHRONISING_CALLS = ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize")
_BLOCKING_COPIES = ("Memcpy", "MemcpyDtoH", "MemcpyHtoD")
_PRODUCT_KERNELS = (
    *("gemm", "gemv", "matmul", "convolve", "conv2d", "conv3d", "fprop", "dgrad", "wgrad"),
    *("attention", "attn", "fmha", "cutlass", "xmma", "nvjet"),
)
_PRODUCT_OPERATORS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::dot", "aten::mv")


@dataclass(frozen=True)
class StepBreakdown:
    """The parts of a step, in seconds per step, and two counts per step.

    Attributes:
        step_s: From one step to the next, everything included.
        wait_s: The stepping thread waits for a batch.
        read_s: Ranges of reading, on any thread. It is 0 where the trace names none.
        prepare_s: Ranges of preparing, on any thread. It is 0 where the trace names none.
        synchronise_s: The stepping thread waits in calls that wait for the GPU.
        n_synchronise: The number of such calls.
        gap_s: Nothing of torch runs on the stepping thread for more than a millisecond at a time.
        gap_where: The innermost range around the longest gap, or the operator before it.
        launch_s: With a GPU, the rest of the thread's time. Without a GPU, short operators and short gaps.
        n_calls: The number of kernels launched. Without a GPU it is the number of operators called.
        device_s: A GPU computes or copies. It is None without a GPU.
        product_s: Kernels that are matrix products. Without a GPU it counts operators.
        other_s: All other kernels or operators.
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
        """Compute the breakdown of a trace.

        Args:
            trace: Its steps are ranges named ``step``.

        Returns:
            The means over the steps.

        Raises:
            CourseError: The trace has no step.
        """
        if not trace.steps:
            raise CourseError("the trace holds no step; take it with trace.take, or name each step's range 'step'")
        host = _host_time(trace)
        ranges = trace.of_category("range")
        kernels = [event for event in trace.of_category("kernel", "copy") if event.end_s > host.start_s]
        if kernels:
            device_s = length(intervals(kernels))
            product_s, other_s = _seconds_by_kernel(kernels, device_s)
            launch_s = host.work_s
            n_calls = len(kernels)
        else:
            device_s = None
            product_s, other_s = _seconds_by_operator(host.operators)
            launch_s = max(0.0, host.work_s - product_s - other_s)
            n_calls = len(outermost(host.operators))
        end_s = max([host.end_s, *(event.end_s for event in kernels)])
        n_synchronise = sum(_waits_for_device(event) for event in host.events)
        n_steps = len(trace.steps)
        return cls(
            step_s=(end_s - host.start_s) / n_steps,
            wait_s=length(host.loads) / n_steps,
            read_s=_seconds_of(ranges, READ) / n_steps,
            prepare_s=_seconds_of(ranges, PREPARE) / n_steps,
            synchronise_s=length(host.waits) / n_steps,
            n_synchronise=n_synchronise / n_steps,
            gap_s=length(host.gaps) / n_steps,
            gap_where=_locate_longest_gap(host, ranges),
            launch_s=launch_s / n_steps,
            n_calls=n_calls / n_steps,
            device_s=None if device_s is None else device_s / n_steps,
            product_s=product_s / n_steps,
            other_s=other_s / n_steps,
        )


class _HostTime(NamedTuple):
    """The time of the stepping thread.

    Attributes:
        row: The row of the thread.
        start_s: The start of the first step, or of its loading if that comes before it.
        end_s: The end of the last step.
        loads: Intervals in which the thread waits for a batch.
        waits: Intervals in which it waits for the GPU.
        gaps: Long intervals in which nothing of torch runs.
        events: The events of the thread that are not part of the loading.
    """

    row: int
    start_s: float
    end_s: float
    loads: list[Interval]
    waits: list[Interval]
    gaps: list[Interval]
    events: list[Event]

    @property
    def operators(self) -> list[Event]:
        """The operators that the thread called."""
        return [event for event in self.events if event.category == "operator"]

    @property
    def work_s(self) -> float:
        """Seconds that are neither wait nor gap."""
        return self.end_s - self.start_s - length([*self.loads, *self.waits, *self.gaps])


def _host_time(trace: Trace) -> _HostTime:
    """Divide the time of the stepping thread."""
    row = trace.steps[0].row
    in_row = [event for event in trace.events if event.row == row]
    loading = [event for event in in_row if event.is_loading]
    # Some programs load inside of their steps, others before each of them.
    start_s = min(event.start_s for event in (trace.steps[0], *loading))
    end_s = trace.steps[-1].end_s
    calls = trace.of_category("operator", "runtime")
    has_device = bool(trace.of_category("kernel", "copy"))
    if not has_device:  # with a GPU, the backward pass runs on a thread of its own, so calls of all threads count
        calls = [event for event in calls if event.row == row]
    loads = clip(intervals(loading), start_s, end_s)
    in_waits = clip(intervals(event for event in in_row if _waits_for_device(event)), start_s, end_s)
    idle = without([(start_s, end_s)], [*intervals(calls), *loads])
    return _HostTime(
        row=row,
        start_s=start_s,
        end_s=end_s,
        loads=loads,
        waits=without(in_waits, loads),
        gaps=[gap for gap in idle if length([gap]) >= LONG_GAP_S],
        events=[event for event in in_row if start_s <= event.start_s < end_s and not covers(loads, event.start_s)],
    )


def _seconds_of(ranges: Iterable[Event], name: str) -> float:
    """Seconds of the ranges with this name."""
    return sum(event.duration_s for event in ranges if event.name == name)


def _seconds_by_kernel(kernels: Sequence[Event], device_s: float) -> tuple[float, float]:
    """Seconds of products and of all other kernels. Kernels may overlap, and all together take ``device_s``."""
    total_s = sum(event.duration_s for event in kernels)
    products_s = sum(event.duration_s for event in kernels if is_product(event))
    product_s = device_s * products_s / max(1e-12, total_s)
    return product_s, device_s - product_s


def _seconds_by_operator(operators: Sequence[Event]) -> tuple[float, float]:
    """Seconds of products and of all other operators, without short operators."""
    product_s = 0.0
    other_s = 0.0
    for event, self_s in zip(operators, self_seconds(operators), strict=True):
        if self_s < SHORT_OPERATOR_S:
            continue
        if is_product(event):
            product_s += self_s
        else:
            other_s += self_s
    return product_s, other_s


def _locate_longest_gap(host: _HostTime, ranges: Iterable[Event]) -> str:
    """Say where the longest gap is: in the innermost range around it, or after the last operator before it."""
    if not host.gaps:
        return ""
    start_s, end_s = max(host.gaps, key=lambda gap: gap[1] - gap[0])
    middle_s = (start_s + end_s) / 2
    around = [
        event.name
        for event in ranges
        if event.row == host.row and event.name != STEP and event.start_s <= middle_s < event.end_s
    ]
    if around:
        return f"in {around[-1]}"
    before = [event.name for event in host.operators if event.start_s < start_s]
    if before:
        return f"after {before[-1]}"
    return "before any operator"


def is_product(event: Event) -> bool:
    """Whether a kernel or an operator is a matrix product, a convolution or attention, judged by its name."""
    name = event.name.lower()
    if event.category == "operator":
        return name in _PRODUCT_OPERATORS or any(word in name for word in ("conv", "attention"))
    return event.category == "kernel" and any(word in name for word in _PRODUCT_KERNELS)


def _waits_for_device(event: Event) -> bool:
    """Whether the event is a call of CUDA that waits for the GPU."""
    if event.category != "runtime":
        return False
    return event.name.endswith(_BLOCKING_COPIES) or any(name in event.name for name in _SYNCHRONISING_CALLS)
