"""Where the time of a step goes, in seconds, from a trace alone.

In: a :class:`~dltutorial.profile.events.Trace` with steps. Out: a frozen :class:`Account`, all per step.

The thread that steps either waits for a batch, or waits in a call that synchronises, or sits in a long gap in which
torch does nothing, or works. Where there is a device, the thread's work is launching, and the device's own time is
split by what its kernels are. Where there is none, the thread's work is split in the same way, and operators too
short to be about their data count as the cost of calling them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dltutorial.errors import CourseError
from dltutorial.profile import spans
from dltutorial.profile.events import STEP, Event, Trace
from dltutorial.profile.spans import Interval
from dltutorial.profile.trace_summary import is_loading, steps_of

SHORT_OPERATOR_S = 20e-6  # of self time; below it, calling costs more than computing on any machine of the course
LONG_GAP_S = 1e-3  # Python between two operators takes microseconds; longer, and the thread does something else
READ, PREPARE = ("read",), ("augment", "decode", "prepare")  # ranges inside the loading that tell its parts apart

_SYNCHRONISING = ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize")
_READS_A_VALUE = "aten::item"
_PRODUCTS = ("gemm", "gemv", "matmul", "convolve", "conv2d", "conv3d", "fprop", "dgrad", "wgrad")
_PRODUCTS += ("attention", "attn", "fmha", "cutlass", "xmma", "nvjet")
_PRODUCT_OPERATORS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::dot", "aten::mv")


@dataclass(frozen=True)
class Account:
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
    def of(cls, trace: Trace) -> "Account":
        """Read it out of a trace.

        Raises:
            CourseError: the trace has no step.
        """
        steps = spans.outermost(steps_of(trace))
        if not steps:
            raise CourseError("the trace holds no step; take it with trace.take, or name each step's range 'step'")
        return _Reader(trace, steps).account()


class _Reader:
    """One trace, cut to its steps, with the lists that several entries need."""

    def __init__(self, trace: Trace, steps: list[Event]) -> None:
        self.row, self.n = steps[0].row, len(steps)
        on_device = [event for event in trace.events if event.category in ("kernel", "copy")]
        self.start_s = steps[0].start_s
        self.host_end_s = steps[-1].end_s
        self.end_s = max([self.host_end_s, *(event.end_s for event in on_device)])
        self.kernels = [event for event in on_device if event.end_s > self.start_s]
        self.events = [event for event in trace.events if event.row == self.row]
        self.elsewhere = [event for event in trace.events if event.row != self.row]
        self.loads = self._cut(event for event in self.events if is_loading(event))
        self.ranges = [event for event in trace.events if event.category == "range"]
        self.devices = {trace.rows[event.row].device for event in self.kernels}

    def account(self) -> Account:
        """All entries."""
        synchronise = self._cut(event for event in self.events if _waits_for_device(event))
        synchronise = spans.without(synchronise, self.loads)
        busy = self._cut(event for event in self.events if event.category in ("operator", "runtime"))
        idle = spans.without([(self.start_s, self.host_end_s)], [*busy, *self.loads, *self._helped()])
        gaps = [(a, b) for a, b in idle if b - a >= LONG_GAP_S]
        host_s = self.host_end_s - self.start_s
        work_s = host_s - spans.length([*self.loads, *synchronise, *gaps])
        product_s, other_s = self._by_kind()
        entries = {
            "step_s": self.end_s - self.start_s,
            "wait_s": spans.length(self.loads),
            "read_s": self._named(READ),
            "prepare_s": self._named(PREPARE),
            "loading_operators_s": spans.length(busy) - spans.length(spans.without(busy, self.loads)),
            "synchronise_s": spans.length(synchronise),
            "n_synchronise": sum(map(_waits_for_device, self._inside())) if self.kernels else self._values_read(),
            "gap_s": spans.length(gaps),
            "launch_s": work_s if self.kernels else max(0.0, work_s - product_s - other_s),
            "n_calls": len(self.kernels) if self.kernels else len(spans.outermost(self._operators())),
            "product_s": product_s,
            "other_s": other_s,
        }
        device_s = self._device_s() / self.n if self.kernels else None
        per_step = {name: value / self.n for name, value in entries.items()}
        return Account(steps=self.n, gap_where=self._where(gaps), device_s=device_s, **per_step)

    def _helped(self) -> list[Interval]:
        """When other threads of the host call operators: with a device, the backward pass has a thread of its own."""
        if not self.kernels:
            return []
        return self._cut(event for event in self.elsewhere if event.category in ("operator", "runtime"))

    def _cut(self, events: Iterable[Event]) -> list[Interval]:
        """Their intervals, merged, within the steps."""
        return spans.clip(spans.merged((e.start_s, e.end_s) for e in events), self.start_s, self.host_end_s)

    def _inside(self) -> list[Event]:
        """What starts on the stepping thread during the steps, outside loading."""
        found = [event for event in self.events if self.start_s <= event.start_s < self.host_end_s]
        return [event for event in found if not any(a <= event.start_s < b for a, b in self.loads)]

    def _operators(self) -> list[Event]:
        return [event for event in self._inside() if event.category == "operator"]

    def _values_read(self) -> int:
        """Calls of ``item()``; those of the optimizer are left out: they read counters that no device holds."""
        own = [event for event in self.ranges if event.name.startswith("Optimizer.step")]
        read = [event for event in self._operators() if event.name == _READS_A_VALUE]
        return sum(not any(range_.start_s <= event.start_s < range_.end_s for range_ in own) for event in read)

    def _named(self, names: tuple[str, ...]) -> float:
        """Seconds of ranges with one of these names, on any thread of the host, added up."""
        return sum(event.duration_s for event in self.ranges if event.name in names)

    def _device_s(self) -> float:
        """Seconds a device was busy, the mean over devices."""
        busy = spans.length((event.start_s, event.end_s) for event in self.kernels)
        if len(self.devices) <= 1:
            return busy
        return sum(event.duration_s for event in self.kernels) / len(self.devices)

    def _by_kind(self) -> tuple[float, float]:
        """Seconds of products and of everything else: of kernels, or of operators that are not short."""
        if self.kernels:
            timed = [(event, event.duration_s) for event in self.kernels]
            scale = self._device_s() / max(1e-12, sum(seconds for _, seconds in timed))  # kernels may overlap
        else:
            operators = self._operators()
            timed = list(zip(operators, spans.self_seconds(operators), strict=True))
            timed, scale = [(event, seconds) for event, seconds in timed if seconds >= SHORT_OPERATOR_S], 1.0
        products = sum(seconds for event, seconds in timed if is_product(event))
        return scale * products, scale * (sum(seconds for _, seconds in timed) - products)

    def _where(self, gaps: list[Interval]) -> str:
        """The innermost range around the longest gap, else the last operator before it."""
        if not gaps:
            return ""
        start_s, end_s = max(gaps, key=lambda gap: gap[1] - gap[0])
        middle_s = (start_s + end_s) / 2
        around = [event for event in self.ranges if event.row == self.row and event.start_s <= middle_s < event.end_s]
        inner = [event for event in around if event.name != STEP]
        if inner:
            return f"in {inner[-1].name}"
        before = [event for event in self._operators() if event.start_s < start_s]
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
