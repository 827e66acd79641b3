"""What is known about a run, in seconds per batch: the one form in which the detective's rules read it.

In: a trace, and any of a throughput split, a step's work, a machine's peaks. Out: a frozen :class:`Evidence`. The trace
says how a step's time divides, the split how long it takes when nobody watches: recording costs time, most of all for
short operators.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from dltutorial.profile.events import Trace
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.throughput import Throughput
from dltutorial.profile.trace_breakdown import StepBreakdown
from dltutorial.profile.work import Work

SLOWED, QUEUEING, FAR_BELOW = 1.25, 1.3, 0.8  # when loader and step count as standing in each other's way


@dataclass(frozen=True)
class Evidence:
    """What was measured; all but the trace may be missing.

    Attributes:
        trace: of some steps of the run.
        split: of its loader and step.
        work: of one step.
        peaks: of the machine.
        dtype: in which the step computes.
    """

    trace: Trace
    split: Throughput | None = None
    work: Work | None = None
    peaks: Peaks | None = None
    dtype: str = "fp32"

    @cached_property
    def traced(self) -> StepBreakdown:
        """The step as it was while the recorder watched."""
        return StepBreakdown.of(self.trace)

    @cached_property
    def parts(self) -> StepBreakdown:
        """The step as the trace divides it, in the seconds that it takes when nobody records it."""
        parts = self.traced
        if self.split is None:
            return parts
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
    def batch_s(self) -> float:
        """Seconds of a batch of the whole run."""
        return self.split.full.batch_s if self.split else self.traced.step_s

    @cached_property
    def step_s(self) -> float:
        """Seconds of the step alone; without a split, of the step in the trace."""
        return self.split.synthetic.batch_s if self.split else self.traced.step_s - self.traced.wait_s

    @cached_property
    def wait_s(self) -> float:
        """Seconds that the step waits for its batch."""
        if self.split is None:
            return self.traced.wait_s
        alone_s = max(0.0, self.split.io.batch_s - self.split.synthetic.batch_s)
        return alone_s if self.lost_s else self.split.full.wait_s

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

    @property
    def work_s(self) -> float:
        """Seconds in which operators or kernels do what they are for."""
        return self.parts.product_s + self.parts.other_s

    @cached_property
    def roof_s(self) -> tuple[float, float] | None:
        """Least seconds of the operators that arithmetic, and that memory, limits; None without work and peaks."""
        return self.work.roof_s(self.peaks, self.dtype) if self.work and self.peaks else None
