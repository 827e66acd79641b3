"""What is known about a run, in seconds per batch: the one form in which the detective's rules read their evidence.

In: any of a throughput split, a trace, a step's work, a machine's peaks. Out: a frozen :class:`Facts`; None where
nothing tells. The trace says how a step's time divides, the split how long it takes when nobody watches: recording
costs time, most of all for short operators.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from dltutorial.errors import CourseError
from dltutorial.profile.account import Account
from dltutorial.profile.events import Trace
from dltutorial.profile.peaks import Peaks
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
        load_s: to make a batch, if that goes on alone; None without a split.
        step_s: of the step alone; without a split, of the step in the trace.
        overlapped: loading goes on beside the step.
        lost_s: what a batch takes beyond both loading and stepping, though they go on side by side.
        read_s, prepare_s: parts of the loading that the trace names.
        loading_cores: cores that loading alone wants; None without a split.
        step_thread: the share of the step in which its thread computes or wants to; None without a split.
        synchronise_s, n_synchronise, gap_s, gap_where, launch_s, n_calls, device_s, product_s, other_s: as in
            ``Account``, in the step's own time; None without a trace.
        roof_compute_s, roof_memory_s: least seconds of the operators that arithmetic, or memory, limits; None
            without work and peaks.
        faster_dtype: a precision with a higher peak here, and how many times higher; ("", 1) if there is none.
        split: for what only a split can tell.
    """

    batch_s: float
    wait_s: float
    load_s: float | None
    step_s: float
    overlapped: bool
    lost_s: float = 0.0
    read_s: float = 0.0
    prepare_s: float = 0.0
    loading_cores: float | None = None
    step_thread: float | None = None
    synchronise_s: float | None = None
    n_synchronise: float = 0.0
    gap_s: float | None = None
    gap_where: str = ""
    launch_s: float | None = None
    n_calls: float = 0.0
    device_s: float | None = None
    product_s: float | None = None
    other_s: float | None = None
    roof_compute_s: float | None = None
    roof_memory_s: float | None = None
    faster_dtype: tuple[str, float] = ("", 1.0)
    split: Split | None = None

    @classmethod
    def of(cls, evidence: Evidence) -> "Facts":
        """Bring the evidence into one form.

        Raises:
            CourseError: neither a split nor a trace with steps.
        """
        account = Account.of(evidence.trace) if evidence.trace else None
        if evidence.split is None and account is None:
            raise CourseError("no evidence: give a throughput split, a trace, or both")
        times = _times(evidence.split, account)
        divided = _divided(account, min(times["step_s"], times["batch_s"]), evidence.split) if account else {}
        return cls(**times, **divided, **_roof(evidence), split=evidence.split)


def _times(split: Split | None, account: Account | None) -> dict[str, Any]:
    """The run as a whole: from the split, which nobody's recording slowed; else from the trace."""
    if split is None:
        assert account is not None
        step_s = account.step_s - account.wait_s
        return {
            "batch_s": account.step_s,
            "wait_s": account.wait_s,
            "load_s": None,
            "step_s": step_s,
            "overlapped": account.device_s is not None,
        }
    lost_s = split.full_s - max(split.io_s, split.synthetic_s) if fighting(split) else 0.0
    return {
        "batch_s": split.full_s,
        "wait_s": max(0.0, split.io_s - split.synthetic_s) if lost_s else split.wait_s,
        "load_s": split.io_s,
        "step_s": split.synthetic_s,
        "overlapped": split.overlapped,
        "lost_s": lost_s,
        "loading_cores": split.io_cores,
        "step_thread": split.step_thread,
    }


def fighting(split: Split) -> bool:
    """Whether loader and step, side by side, are far slower than min(I/O, synthetic), and stand in each other's way.

    Either the step takes longer beside the loader than alone, or both together want many more core seconds than each
    alone. A run that loads and steps in turn shows neither.
    """
    in_the_way = split.slowed > SLOWED or split.queueing > QUEUEING
    return split.overlapped and in_the_way and split.of_limit < FAR_BELOW


def _divided(account: Account, step_s: float, split: Split | None) -> dict[str, Any]:
    """The step's time as the trace divides it, in the step's own seconds."""
    told = {field.name for field in dataclasses.fields(Facts)}
    parts = {name: value for name, value in dataclasses.asdict(account).items() if name in told}
    del parts["step_s"], parts["wait_s"]
    if split is None:
        return parts
    if account.device_s is not None:
        scale = split.full_s / account.step_s
        return {name: scale * value if name.endswith("_s") else value for name, value in parts.items()}
    # Long operators and gaps last as long as they last without a recorder; what is left is the cost of calling.
    names = ("gap_s", "synchronise_s", "product_s", "other_s")
    whole_s = sum(parts[name] for name in names)
    scale = min(1.0, step_s / whole_s) if whole_s else 1.0
    parts |= {name: scale * parts[name] for name in names}
    traced_s = max(1e-12, account.step_s - account.wait_s)
    parts["launch_s"] = max(0.0, min(step_s - scale * whole_s, parts["launch_s"] * max(1.0, step_s / traced_s)))
    return parts


def _roof(evidence: Evidence) -> dict[str, Any]:
    if evidence.work is None or evidence.peaks is None:
        return {}
    peaks, dtype = evidence.peaks, evidence.dtype
    here = peaks.peak_flops_per_s(dtype)
    others = {name: peaks.peak_flops_per_s(name) / here for name in ("tf32", "bf16", "fp16") if peaks.matmul.get(name)}
    best = max(others, key=others.__getitem__, default="")
    return {
        "roof_compute_s": evidence.work.compute_s(peaks, dtype),
        "roof_memory_s": evidence.work.memory_s(peaks, dtype),
        "faster_dtype": (best, others[best]) if best and others[best] > 1.2 else ("", 1.0),
    }
