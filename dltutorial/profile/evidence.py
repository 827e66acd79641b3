"""What is known about a run, in seconds per batch: the one form in which the detective's rules read it.

In: any of a throughput split, a trace, a step's work, a machine's peaks. Out: a frozen :class:`Evidence`, whose
properties are None where nothing tells. The trace says how a step's time divides, the split how long it takes when
nobody watches: recording costs time, most of all for short operators.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from dltutorial.errors import CourseError
from dltutorial.profile.events import Trace
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.throughput import Throughput
from dltutorial.profile.trace_breakdown import StepBreakdown
from dltutorial.profile.work import Work

SLOWED, QUEUEING, FAR_BELOW = 1.25, 1.3, 0.8  # when loader and step count as standing in each other's way


@dataclass(frozen=True)
class Evidence:
    """What was measured; anything may be missing but one of split and trace.

    Attributes:
        split: of the run's loader and step.
        trace: of some of its steps.
        work: of one step.
        peaks: of the machine.
        dtype: in which the step computes.
    """

    split: Throughput | None = None
    trace: Trace | None = None
    work: Work | None = None
    peaks: Peaks | None = None
    dtype: str = "fp32"

    @cached_property
    def traced(self) -> StepBreakdown:
        """The step as it was while the recorder watched.

        Raises:
            CourseError: there is no trace with steps.
        """
        if self.trace is None:
            raise CourseError("no evidence: give a throughput split, a trace, or both")
        return StepBreakdown.of(self.trace)

    @cached_property
    def batch_s(self) -> float:
        """Seconds of a batch of the whole run."""
        return self.split.full.batch_s if self.split else self.traced.step_s

    @cached_property
    def lost_s(self) -> float:
        """What a batch takes beyond both loading and stepping, though they go on side by side.

        It counts if they stand in each other's way: the step takes longer beside the loader than alone, or both
        together want many more core seconds than each alone. A run that loads and steps in turn shows neither.
        """
        split = self.split
        if split is None or not split.overlapped or split.of_limit >= FAR_BELOW:
            return 0.0
        fighting = split.slowed > SLOWED or split.queueing > QUEUEING
        return split.full.batch_s - max(split.io.batch_s, split.synthetic.batch_s) if fighting else 0.0

    @cached_property
    def wait_s(self) -> float:
        """Seconds that the step waits for its batch."""
        if self.split is None:
            return self.traced.wait_s
        if self.lost_s:
            return max(0.0, self.split.io.batch_s - self.split.synthetic.batch_s)
        return self.split.full.wait_s

    @cached_property
    def step_s(self) -> float:
        """Seconds of the step alone; without a split, of the step in the trace."""
        return self.split.synthetic.batch_s if self.split else self.traced.step_s - self.traced.wait_s

    @cached_property
    def overlapped(self) -> bool:
        """Whether loading goes on beside the step."""
        return self.split.overlapped if self.split else self.traced.device_s is not None

    @cached_property
    def parts(self) -> StepBreakdown | None:
        """The step as the trace divides it, in the seconds that it takes when nobody records it; None without one."""
        if self.trace is None or self.split is None:
            return self.traced if self.trace else None
        parts = self.traced
        if parts.device_s is not None:
            scale = self.batch_s / parts.step_s
            return replace(parts, **{name: scale * value for name, value in vars(parts).items() if name.endswith("_s")})
        # Long operators and gaps last as long as they last without a recorder; what is left is the cost of calling.
        step_s = min(self.step_s, self.batch_s)
        long = {name: getattr(parts, name) for name in ("gap_s", "synchronise_s", "product_s", "other_s")}
        long_s = sum(long.values())
        scale = min(1.0, step_s / long_s) if long_s else 1.0
        slower = max(1.0, step_s / max(1e-12, parts.step_s - parts.wait_s))
        launch_s = max(0.0, min(step_s - scale * long_s, parts.launch_s * slower))
        return replace(parts, launch_s=launch_s, **{name: scale * seconds for name, seconds in long.items()})

    @cached_property
    def device_s(self) -> float | None:
        """Seconds in which a device is busy; None without one."""
        return self.parts.device_s if self.parts else None

    @cached_property
    def work_s(self) -> float | None:
        """Seconds in which operators or kernels do what they are for; None if neither trace nor roofline says."""
        if self.parts is not None:
            return self.parts.product_s + self.parts.other_s
        return sum(self.roof_s) if self.roof_s else None

    @cached_property
    def roof_s(self) -> tuple[float, float] | None:
        """Least seconds of the operators that arithmetic, and that memory, limits; None without work and peaks."""
        return self.work.roof_s(self.peaks, self.dtype) if self.work and self.peaks else None

    @cached_property
    def faster_dtype(self) -> tuple[str, float]:
        """A precision with a peak at least 1.2 × as high here, and how many times; ("", 1) if there is none."""
        if not self.work or not self.peaks:
            return "", 1.0
        peaks, here = self.peaks, self.peaks.peak_flops_per_s(self.dtype)
        others = [
            (peaks.peak_flops_per_s(name) / here, name) for name in ("tf32", "bf16", "fp16") if peaks.matmul.get(name)
        ]
        times, name = max(others, default=(1.0, ""))
        return (name, times) if times > 1.2 else ("", 1.0)
