"""Where the time of a step goes, in seconds, from a trace alone.

In: a :class:`~dltutorial.profile.events.Trace` with steps. Out: a frozen :class:`StepBreakdown`, all per step.

The thread that steps either waits for a batch, or waits in a call that synchronises, or sits in a long gap in which
torch does nothing, or works. Where there is a device, the thread's work is launching, and the device's own time is
split by what its kernels are. Where there is none, the thread's work is split in the same way, and operators too
short to be about their data count as the cost of calling them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dltutorial.errors import CourseError
from dltutorial.profile.events import (
    STEP,
    Event,
    Interval,
    Trace,
    clip,
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
        steps: how many the trace holds.
        step_s: from one step to the next, everything included.
        wait_s: the stepping thread waits for a batch.
        read_s, prepare_s: ranges of reading and of preparing, on any thread; 0 where the trace names none.
        loading_operators_s: torch operators that run while the thread loads.
        synchronise_s: it waits in calls that wait for the device.
        n_synchronise: such calls; without a device, the reads of a value (``item()``) that would wait on one.
        gap_s: nothing of torch runs on it for more than a millisecond at a time.
        gap_where: the innermost range around the longest gap, or the operator before it.
        launch_s: the rest of its time on a machine with a device; without one, short operators and short gaps.
        n_calls: kernels launched, or operators called.
        device_s: the device computes or copies; None without a device.
        product_s, other_s: kernels (operators, without a device) that are matrix products, and all others.
    """

    steps: int
    step_s: float
    wait_s: float
    read_s: float
    prepare_s: float
    loading_operators_s: float
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
        """Read it out of a trace.

        Raises:
            CourseError: the trace has no step.
        """
        if not trace.steps:
            raise CourseError("the trace holds no step; take it with trace.take, or name each step's range 'step'")
        return _Reader(trace).breakdown()


class _Reader:
    """One trace, cut to its steps, with the lists that several entries need."""

    def __init__(self, trace: Trace) -> None:
        first, self.n, self.row = trace.steps[0], len(trace.steps), trace.steps[0].row
        own = [event for event in trace.events if event.row == self.row]
        # Some load inside of their steps, others before each of them.
        self.start_s = min(event.start_s for event in [first, *own] if event is first or event.is_loading)
        self.host_end_s = trace.steps[-1].end_s
        self.kernels = [e for e in trace.events if e.category in ("kernel", "copy") and e.end_s > self.start_s]
        self.end_s = max([self.host_end_s, *(event.end_s for event in self.kernels)])
        self.n_devices = len({trace.rows[event.row].device for event in self.kernels})
        self.ranges = [event for event in trace.events if event.category == "range"]
        self.loads = self.cut(event for event in own if event.is_loading)
        self.waits = without(self.cut(event for event in own if _waits_for_device(event)), self.loads)
        self.busy = self.cut(event for event in own if event.category in ("operator", "runtime"))
        found = [event for event in own if self.start_s <= event.start_s < self.host_end_s]
        self.inside = [event for event in found if not any(a <= event.start_s < b for a, b in self.loads)]
        self.operators = [event for event in self.inside if event.category == "operator"]
        # With a device, the backward pass has a thread of its own: while it works, the stepping thread is not idle.
        others = [e for e in trace.events if e.row != self.row and e.category in ("operator", "runtime")]
        helped = self.cut(others) if self.kernels else []
        idle = without([(self.start_s, self.host_end_s)], [*self.busy, *self.loads, *helped])
        self.gaps = [(a, b) for a, b in idle if b - a >= LONG_GAP_S]

    def cut(self, events: Iterable[Event]) -> list[Interval]:
        """Their intervals, merged, within the steps."""
        return clip(merged(intervals(events)), self.start_s, self.host_end_s)

    def breakdown(self) -> StepBreakdown:
        """All entries."""
        work_s = self.host_end_s - self.start_s - length([*self.loads, *self.waits, *self.gaps])
        device_s = self.device_s()
        product_s, other_s = self.by_kind(device_s)
        entries = {
            "step_s": self.end_s - self.start_s,
            "wait_s": length(self.loads),
            "read_s": self.named_s(READ),
            "prepare_s": self.named_s(PREPARE),
            "loading_operators_s": length(self.busy) - length(without(self.busy, self.loads)),
            "synchronise_s": length(self.waits),
            "n_synchronise": sum(map(_waits_for_device, self.inside)) if self.kernels else self.values_read(),
            "gap_s": length(self.gaps),
            "launch_s": work_s if self.kernels else max(0.0, work_s - product_s - other_s),
            "n_calls": len(self.kernels) if self.kernels else len(outermost(self.operators)),
            "product_s": product_s,
            "other_s": other_s,
        }
        per_step = {name: value / self.n for name, value in entries.items()}
        per_device_s = device_s / self.n if self.kernels else None
        return StepBreakdown(steps=self.n, gap_where=self.longest_gap(), device_s=per_device_s, **per_step)

    def values_read(self) -> int:
        """Calls of ``item()``; those of the optimizer are left out: they read counters that no device holds."""
        own = [event for event in self.ranges if event.name.startswith("Optimizer.step")]
        read = [event for event in self.operators if event.name == _READS_A_VALUE]
        return sum(not any(range_.start_s <= event.start_s < range_.end_s for range_ in own) for event in read)

    def named_s(self, names: tuple[str, ...]) -> float:
        """Seconds of ranges with one of these names, on any thread of the host, added up."""
        return sum(event.duration_s for event in self.ranges if event.name in names)

    def device_s(self) -> float:
        """Seconds a device was busy, the mean over devices."""
        if self.n_devices <= 1:
            return length(intervals(self.kernels))
        return sum(event.duration_s for event in self.kernels) / self.n_devices

    def by_kind(self, device_s: float) -> tuple[float, float]:
        """Seconds of products and of everything else: of kernels, or of operators that are not short."""
        if self.kernels:
            timed = [(event, event.duration_s) for event in self.kernels]
            scale = device_s / max(1e-12, sum(seconds for _, seconds in timed))  # kernels may overlap
        else:
            pairs = zip(self.operators, self_seconds(self.operators), strict=True)
            timed, scale = [(event, seconds) for event, seconds in pairs if seconds >= SHORT_OPERATOR_S], 1.0
        products = sum(seconds for event, seconds in timed if is_product(event))
        return scale * products, scale * (sum(seconds for _, seconds in timed) - products)

    def longest_gap(self) -> str:
        """Where it is: the innermost range around it, else the last operator before it."""
        if not self.gaps:
            return ""
        start_s, end_s = max(self.gaps, key=lambda gap: gap[1] - gap[0])
        middle_s = (start_s + end_s) / 2
        around = [event for event in self.ranges if event.row == self.row and event.start_s <= middle_s < event.end_s]
        inner = [event for event in around if event.name != STEP]
        if inner:
            return f"in {inner[-1].name}"
        before = [event for event in self.operators if event.start_s < start_s]
        return f"after {before[-1].name}" if before else "before any operator"


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
