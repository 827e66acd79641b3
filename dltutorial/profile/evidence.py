"""What was measured of a run, and what follows from it, in seconds per batch. The rules of ``bottlenecks`` use it.

Input: a trace and, if available, a throughput split, the work of a step, and the peaks of a machine.
Output: a frozen :class:`Evidence`.

The trace says how the time of a step divides into parts. The split says how long a step takes without a profiler. Both
are needed, because recording takes time, most of all for short operators.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from dltutorial.profile.events import Trace
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.throughput import Throughput
from dltutorial.profile.trace_breakdown import StepBreakdown
from dltutorial.profile.work import Work

# Loader and step compete if full throughput is below MAX_SHARE_OF_LIMIT, and one of the other two ratios is exceeded.
MAX_SHARE_OF_LIMIT = 0.8
MIN_SLOWDOWN = 1.25
MIN_QUEUEING = 1.3
BUSY_DEVICE_SHARE = 0.75  # a GPU that is busy for a smaller share of the time is not limited by its own work
ROOFLINE_SHARE = 0.25  # operators that reach a smaller share of their roofline are limited by something else


@dataclass(frozen=True)
class Evidence:
    """What was measured. Everything but the trace may be missing.

    Attributes:
        trace: Some steps of the run.
        split: The throughput of its loader and its step.
        work: The FLOP and bytes of one step.
        peaks: The peaks of the machine.
    """

    trace: Trace
    split: Throughput | None = None
    work: Work | None = None
    peaks: Peaks | None = None

    @cached_property
    def traced(self) -> StepBreakdown:
        """The parts of a step while the profiler recorded it."""
        return StepBreakdown.of(self.trace)

    @cached_property
    def parts(self) -> StepBreakdown:
        """The parts of a step, scaled to the time that it takes without a profiler."""
        if self.split is None:
            return self.traced
        if self.traced.device_s is not None:
            scale = self.batch_s / self.traced.step_s
            scaled = {name: scale * value for name, value in vars(self.traced).items() if name.endswith("_s")}
            return replace(self.traced, **scaled)
        return self._scale_without_device()

    def _scale_without_device(self) -> StepBreakdown:
        """Scale the parts of a step on a CPU.

        The profiler does not make long operators and gaps longer. The rest of the step is the cost of calling.
        """
        parts = self.traced
        step_s = min(self.step_s, self.batch_s)
        long_s = parts.gap_s + parts.synchronise_s + parts.product_s + parts.other_s
        scale = 1.0
        if long_s:
            scale = min(1.0, step_s / long_s)
        slowdown = max(1.0, step_s / max(1e-12, parts.step_s - parts.wait_s))
        rest_s = step_s - scale * long_s
        return replace(
            parts,
            gap_s=scale * parts.gap_s,
            synchronise_s=scale * parts.synchronise_s,
            product_s=scale * parts.product_s,
            other_s=scale * parts.other_s,
            launch_s=max(0.0, min(rest_s, slowdown * parts.launch_s)),
        )

    @cached_property
    def batch_s(self) -> float:
        """Seconds of a batch of the complete run."""
        if self.split is None:
            return self.traced.step_s
        return self.split.full.batch_s

    @cached_property
    def step_s(self) -> float:
        """Seconds of the step without loading. Without a split it is the step in the trace."""
        if self.split is None:
            return self.traced.step_s - self.traced.wait_s
        return self.split.synthetic.batch_s

    @property
    def load_s(self) -> float:
        """Seconds to load a batch. Without a split it is the wait in the trace."""
        if self.split is None:
            return self.traced.wait_s
        return self.split.io.batch_s

    @cached_property
    def wait_s(self) -> float:
        """Seconds that the step waits for its batch, without the time that contention adds."""
        if self.split is None:
            return self.traced.wait_s
        if self.contention_s:
            return max(0.0, self.load_s - self.step_s)
        return self.split.full.wait_s

    @cached_property
    def contention_s(self) -> float:
        """Seconds by which a batch takes longer than both loading and the step, although these run side by side.

        It is 0 unless the two compete: the step takes longer beside the loader than alone, or both together want many
        more core seconds than each alone. A run that loads and steps in turn shows neither.
        """
        split = self.split
        if split is None or not split.overlapped or split.share_of_limit >= MAX_SHARE_OF_LIMIT:
            return 0.0
        if split.slowdown <= MIN_SLOWDOWN and split.queueing <= MIN_QUEUEING:
            return 0.0
        return split.full.batch_s - max(split.io.batch_s, split.synthetic.batch_s)

    @property
    def work_s(self) -> float:
        """Seconds in which operators or kernels compute or move data."""
        return self.parts.product_s + self.parts.other_s

    @cached_property
    def roof_s(self) -> tuple[float, float] | None:
        """Shortest time of the operators that arithmetic limits, and of those that memory limits, in seconds.

        None means that work or peaks are missing.
        """
        if self.work is None or self.peaks is None:
            return None
        return self.work.roof_s(self.peaks)

    @property
    def seconds_by_limit(self) -> tuple[float, float]:
        """Seconds of the operators that arithmetic limits, and of those that memory limits.

        The roofline divides the time. Without work and peaks, the names of the operators do.
        """
        if self.roof_s is None:
            return self.parts.product_s, self.parts.other_s
        compute_s, memory_s = self.roof_s
        scale = self.work_s / max(1e-12, compute_s + memory_s)
        return scale * compute_s, scale * memory_s

    @property
    def is_near_roofline(self) -> bool:
        """Whether the operators are about as fast as the roofline allows. Without a roofline we assume that."""
        return self.roof_s is None or sum(self.roof_s) >= ROOFLINE_SHARE * self.work_s

    @property
    def is_limited_by_operators(self) -> bool:
        """Whether the operators are near their roofline and, if there is a GPU, keep it busy."""
        device_s = self.parts.device_s
        if device_s is not None and device_s < BUSY_DEVICE_SHARE * self.batch_s:
            return False
        return self.is_near_roofline

    def saved_in_step_s(self, seconds: float) -> float:
        """How much shorter a batch becomes if its step is ``seconds`` shorter. Loading beside it still takes time."""
        if self.parts.device_s is not None:
            return min(seconds, self.batch_s - self.wait_s - self.parts.launch_s)
        if self.split is not None and self.split.overlapped:
            return min(seconds, self.batch_s - self.contention_s - self.split.io.batch_s)
        return seconds

    def saved_on_host_s(self, seconds: float) -> float:
        """How much shorter a batch becomes if the host needs ``seconds`` less. The GPU still takes its time."""
        if self.parts.device_s is None:
            return self.saved_in_step_s(seconds)
        return min(seconds, self.batch_s - self.parts.device_s)
