"""What is known about a run, in seconds per batch: the one form in which the detective's rules read their evidence.

In: any of a throughput split, a trace, a step's work, a machine's peaks. Out: a frozen :class:`Facts`; None where
nothing tells. The trace says how a step's time divides, the split how long it takes when nobody watches: recording
costs time, most of all for short operators.
"""

from dataclasses import dataclass, replace

from dltutorial.errors import CourseError
from dltutorial.profile.events import Trace
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.step_breakdown import StepBreakdown
from dltutorial.profile.throughput import Split
from dltutorial.profile.work import Work

SLOWED, QUEUEING, FAR_BELOW = 1.25, 1.3, 0.8  # when loader and step count as standing in each other's way


@dataclass(frozen=True)
class Evidence:
    """What was measured; anything may be missing.

    Attributes:
        split: of the run's loader and step.
        trace: of some of its steps.
        work: of one step.
        peaks: of the machine.
        dtype: in which the step computes.
    """

    split: Split | None = None
    trace: Trace | None = None
    work: Work | None = None
    peaks: Peaks | None = None
    dtype: str = "fp32"


@dataclass(frozen=True)
class Facts:
    """Seconds per batch.

    Attributes:
        batch_s: of the whole run.
        wait_s: the step waits for its batch.
        step_s: of the step alone; without a split, of the step in the trace.
        overlapped: loading goes on beside the step.
        lost_s: what a batch takes beyond both loading and stepping, though they go on side by side.
        parts: of the step, as the trace divides it, in the step's own seconds; None without a trace.
        roof_s: least seconds of the operators that arithmetic, and that memory, limits; None without work and peaks.
        faster_dtype: a precision with a higher peak here, and how many times higher; ("", 1) if there is none.
        split: for what only a split can tell.
    """

    batch_s: float
    wait_s: float
    step_s: float
    overlapped: bool
    lost_s: float
    parts: StepBreakdown | None
    roof_s: tuple[float, float] | None
    faster_dtype: tuple[str, float]
    split: Split | None

    @classmethod
    def of(cls, evidence: Evidence) -> "Facts":
        """Bring the evidence into one form: times from the split, which nobody's recording slowed; else from the trace.

        Raises:
            CourseError: neither a split nor a trace with steps.
        """
        split, lost_s = evidence.split, 0.0
        parts = StepBreakdown.of(evidence.trace) if evidence.trace else None
        if split is not None:
            lost_s = split.full_s - max(split.io_s, split.synthetic_s) if fighting(split) else 0.0
            wait_s = max(0.0, split.io_s - split.synthetic_s) if lost_s else split.wait_s
            batch_s, step_s, overlapped = split.full_s, split.synthetic_s, split.overlapped
            parts = _in_own_seconds(parts, split) if parts else None
        elif parts is not None:
            batch_s, wait_s, overlapped = parts.step_s, parts.wait_s, parts.device_s is not None
            step_s = batch_s - wait_s
        else:
            raise CourseError("no evidence: give a throughput split, a trace, or both")
        roof_s, faster_dtype = None, ("", 1.0)
        if evidence.work is not None and evidence.peaks is not None:
            roof_s = evidence.work.roof_s(evidence.peaks, evidence.dtype)
            faster_dtype = _faster_dtype(evidence.peaks, evidence.dtype)
        return cls(batch_s, wait_s, step_s, overlapped, lost_s, parts, roof_s, faster_dtype, split)


def fighting(split: Split) -> bool:
    """Whether loader and step, side by side, are far slower than min(I/O, synthetic), and stand in each other's way.

    Either the step takes longer beside the loader than alone, or both together want many more core seconds than each
    alone. A run that loads and steps in turn shows neither.
    """
    in_the_way = split.slowed > SLOWED or split.queueing > QUEUEING
    return split.overlapped and in_the_way and split.of_limit < FAR_BELOW


def _in_own_seconds(parts: StepBreakdown, split: Split) -> StepBreakdown:
    """The parts of a traced step as they are when nobody records it."""
    if parts.device_s is not None:
        scale = split.full_s / parts.step_s
        return replace(parts, **{name: scale * value for name, value in vars(parts).items() if name.endswith("_s")})
    # Long operators and gaps last as long as they last without a recorder; what is left is the cost of calling.
    step_s = min(split.synthetic_s, split.full_s)
    long = {name: getattr(parts, name) for name in ("gap_s", "synchronise_s", "product_s", "other_s")}
    long_s = sum(long.values())
    scale = min(1.0, step_s / long_s) if long_s else 1.0
    slower = max(1.0, step_s / max(1e-12, parts.step_s - parts.wait_s))
    launch_s = max(0.0, min(step_s - scale * long_s, parts.launch_s * slower))
    return replace(parts, launch_s=launch_s, **{name: scale * seconds for name, seconds in long.items()})


def _faster_dtype(peaks: Peaks, dtype: str) -> tuple[str, float]:
    here = peaks.peak_flops_per_s(dtype)
    others = {name: peaks.peak_flops_per_s(name) / here for name in ("tf32", "bf16", "fp16") if peaks.matmul.get(name)}
    best = max(others, key=others.__getitem__, default="")
    return (best, others[best]) if best and others[best] > 1.2 else ("", 1.0)
