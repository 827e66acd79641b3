"""The bottleneck detective: what limits a run, how one can tell, what to try next, and what that should gain.

In: a loader and a step, or :class:`~dltutorial.profile.evidence.Evidence` about them. Out: a :class:`Report`.

Each rule asks one question: *how long would a batch take if this cost nothing?* The rule whose answer is the shortest
time names the bottleneck. That is why a loader that hides behind the step is not blamed, however slow it is, and why
a synchronising call after which nothing is left to wait for is not, however long it lasts. If no single cause accounts
for much of the time, the detective cannot tell, and says why.

Two models give the answers. On a machine with a device, host and device work side by side, and a batch takes as long
as the busier of the two. Without one, all of it happens one after the other, unless workers load beside the step.
"""

import html
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dltutorial import machine
from dltutorial.profile import throughput, work
from dltutorial.profile import trace as traces
from dltutorial.profile.evidence import Evidence
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.ranges import annotate
from dltutorial.profile.timing import duration
from dltutorial.record.table import Table

READ, PREPARE, LOADING = "slow read", "slow augmentation", "slow loading"
CONTENTION, SYNCHRONISATION, LAUNCHES = "contention", "hidden synchronisation", "launch-bound"
BANDWIDTH, COMPUTE, UNKNOWN = "bandwidth-bound", "compute-bound", "cannot tell"
LEAST_SHARE = 0.2  # of the time must vanish with a cause, or it is not the bottleneck
BUSY_DEVICE = 0.75  # a device that idles more than the rest of this is not limited by what it computes
FEW_CORES = 0.5  # a loader that wants less than half a core waits for its data
AT_THE_ROOF = 0.25  # operators slower than four times their roofline are limited by something that it does not know
FASTER = 1.2  # a precision with a peak so many times as high is worth a try
MOST_WORKERS = 16
WORTH_A_WORD = 0.01  # of the time; less is not reported


@dataclass(frozen=True)
class Finding:
    """One possible cause.

    Attributes:
        name: of the cause.
        share: of the time of a batch that would vanish if the cause cost nothing.
        why: the evidence, with numbers.
        advice: what to try next.
        gain: how many times faster a batch should get by it; None where the evidence gives no number.
    """

    name: str
    share: float
    why: str
    advice: str
    gain: float | None

    @property
    def gain_text(self) -> str:
        """The gain in words."""
        return "not known" if self.gain is None else f"{self.gain:.2f} ×"


@dataclass(frozen=True)
class Report:
    """The verdict, and every cause that was looked at, the largest first."""

    verdict: Finding
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        found = self.verdict
        gain = "" if found.name == UNKNOWN else f"\n  expected gain: {found.gain_text}"
        return f"{found.name}: {found.why}\n  try next: {found.advice}{gain}"

    def _repr_html_(self) -> str:
        lines = [(one.name, f"{one.share:.0%}", one.why, one.advice, one.gain_text) for one in self.findings]
        table = Table.of(("cause", "share", "evidence", "try next", "expected gain"), lines)
        return f"<p>Verdict: {html.escape(str(self)).replace(chr(10), '<br>')}</p>{table._repr_html_()}"


def investigate(evidence: Evidence) -> Report:
    """Ask every rule, and name the cause without which a batch would be quickest.
    CourseError: the trace has no step.
    """
    rules = (loading, contention, synchronisation, launches, compute, bandwidth)
    findings = sorted(filter(None, (rule(evidence) for rule in rules)), key=lambda finding: -finding.share)
    if findings and findings[0].share >= LEAST_SHARE:
        return Report(findings[0], tuple(findings))
    return Report(cannot_tell(evidence, findings), tuple(findings))


def gather(
    loader: Iterable | Callable[[], Iterable], step: Callable[[Any], object], *, peaks: Peaks | None = None,
    dtype: str = "fp32", rounds: int = 5, phase_s: float = 0.3, steps: int = 5,
) -> Evidence:  # fmt: skip
    """Measure a loader and a step: throughput split, trace, and, with ``peaks``, the work of a step.

    Args:
        loader: as for ``throughput.measure``; name its parts with ``annotate("read")`` and ``annotate("augment")``
            where you can.
        step: trains on one batch that is on the device. Give the step as it is before ``torch.compile``, or no peaks.
        peaks: of this machine.
        dtype: in which the step computes.
        rounds, phase_s: of the split.
        steps: in the trace.

    Raises:
        CourseError: the loader gave no batch, or its batches cannot be counted.
    """
    device = machine.device()
    split = throughput.measure(loader, step, rounds=rounds, phase_s=phase_s, device=device)
    with throughput.batches_of(loader, device) as batches:
        kept = next(batches)  # worker processes start here, not under the recorder

        def run_step() -> None:
            with annotate("load"):
                batch = next(batches)
            step(batch)

        trace = traces.take(run_step, steps=steps)
    return Evidence(trace, split, work.count(lambda: step(kept)) if peaks else None, peaks, dtype)


def loading(run: Evidence) -> Finding | None:
    """The step waits for its batch. Reading waits for a disk or a network, preparing computes.

    The trace's ranges tell which of the two, if they name most of the loading; else the cores that it wants.
    """
    read_s, prepare_s, prepared = run.parts.read_s, run.parts.prepare_s, 1.0
    if read_s + prepare_s > run.wait_s / 2:
        name, prepared = READ if read_s >= prepare_s else PREPARE, prepare_s / (read_s + prepare_s)
        how = f"reading takes {duration(read_s)}, preparing {duration(prepare_s)}"
    elif run.split is None:
        name = LOADING
        how = "whether it reads or prepares cannot be told: name ranges read and augment, or give a split"
    else:
        name, does = (PREPARE, "computes") if run.split.io.cores >= FEW_CORES else (READ, "waits")
        how = f"loading alone wants {run.split.io.cores:.1f} cores: it {does}"
    why = f"the step waits {duration(run.wait_s)} of {duration(run.batch_s)} for its batch; {how}"
    saved_s = min(run.wait_s, run.batch_s - (run.parts.device_s or 0.0))
    if name == PREPARE:
        advice = "make the preparation leaner, or move it to the device (the gain if it cost nothing)"
        return _finding(name, run, saved_s, why, advice, prepared * run.wait_s)
    load_s = run.split.io.batch_s if run.split else run.wait_s
    workers = max(1, min(MOST_WORKERS, math.ceil(load_s / max(run.step_s, 1e-9))))
    advice = f"read ahead in {workers} {'worker' if workers == 1 else 'workers'} beside the step"
    return _finding(name, run, saved_s, why, advice, run.batch_s - max(run.step_s, load_s / workers))


def contention(run: Evidence) -> Finding | None:
    """Loader and step go on side by side and take something from each other: cores, memory, the interpreter's lock.

    What a batch takes beyond the slower of the two is lost to that; ``Evidence.lost_s`` says when it counts.
    """
    split = run.split
    if split is None or not run.lost_s:
        return None
    why = (
        f"the full run reaches {split.of_limit:.0%} of min(I/O, synthetic); beside the loader the step takes "
        f"{split.slowed:.1f} × as long; {split.io.cores:.1f} + {split.synthetic.cores:.1f} cores are wanted, "
        f"{split.cores} are there"
    )
    advice = "leave the loader cores of its own: fewer threads for the step, a leaner loader, or its work on the device"
    return _finding(CONTENTION, run, run.lost_s, why, advice)


def synchronisation(run: Evidence) -> Finding | None:
    """The host waits where it need not: in a call that waits for the device, or in the step with nothing to compute.

    With a device, such a wait costs only what the device then idles, since kernels must be launched anew. Without
    one, a long gap between operators counts, unless the thread computes in it: then it is Python, not a wait.
    """
    parts = run.parts
    gap_s = min(parts.gap_s, (1 - run.split.synthetic.thread) * run.step_s) if run.split else parts.gap_s
    if parts.device_s is None or gap_s > parts.synchronise_s:
        why = f"for {duration(gap_s)} of each step nothing computes, the longest time {parts.gap_where}"
        why += f"; item() is called {parts.n_synchronise:.3g} × a step" if parts.n_synchronise else ""
        advice = "take that wait out of the step: do it every hundredth step, or in another thread"
        return _finding(SYNCHRONISATION, run, _of_host(run, gap_s), why, advice)
    why = (
        f"the host waits for the device in {parts.n_synchronise:.0f} calls a step, {duration(parts.synchronise_s)} in "
        f"all, and {_idle(run)}"
    )
    advice = "keep values on the device: no item(), print or copy of them to the host in every step"
    return _finding(SYNCHRONISATION, run, _of_host(run, parts.synchronise_s), why, advice)


def launches(run: Evidence) -> Finding | None:
    """Calling the operators takes the time, not what they compute: each is too short to keep the device busy."""
    parts = run.parts
    if not parts.launch_s or not parts.n_calls:
        return None
    n, each = f"{parts.n_calls:,.0f}", duration(parts.launch_s / parts.n_calls)
    if parts.device_s is None:
        why = f"{n} operators a step, and {each} for each goes into calling it"
        advice = "fewer, larger operators: a larger batch, fused operators (torch.compile, a foreach optimizer)"
    else:
        why = f"{n} kernels a step, {each} of the host's time to launch each, and {_idle(run)}"
        advice = "launch less often: CUDA Graphs, torch.compile, a fused optimizer, a larger batch"
    return _finding(LAUNCHES, run, _of_host(run, parts.launch_s), why, advice)


def compute(run: Evidence) -> Finding | None:
    """Matrix products take the time, near the peak that their precision allows."""
    if not _works_as_it_can(run):
        return None
    product_s, _ = _by_limit(run)
    why = f"operators that arithmetic limits take {duration(product_s)} of {duration(run.batch_s)}{_roof_words(run)}"
    if run.roof_s is None or run.peaks is None:
        advice = "a lower precision, if this device has units for it; a number needs work and peaks"
        found = _finding(COMPUTE, run, _in_step(run, product_s), why, advice)
        return found and replace(found, gain=None)
    peaks, here = run.peaks, run.peaks.peak_flops_per_s(run.dtype)
    there = [name for name in ("tf32", "bf16", "fp16") if peaks.matmul.get(name)]
    times, name = max(((peaks.peak_flops_per_s(name) / here, name) for name in there), default=(1.0, ""))
    if times > FASTER:
        advice, after_s = f"compute in {name}: its peak here is {times:.1f} × as high", product_s / times
    else:
        advice = "less arithmetic (a smaller model, fewer tokens) or a faster device; tuning ends at the roofline"
        after_s = min(product_s, run.roof_s[0])
    return _finding(COMPUTE, run, _in_step(run, product_s), why, advice, _in_step(run, product_s - after_s))


def bandwidth(run: Evidence) -> Finding | None:
    """Operators that move much and compute little take the time; half the bytes take half of it."""
    if not _works_as_it_can(run):
        return None
    _, other_s = _by_limit(run)
    why = f"operators that memory limits take {duration(other_s)} of {duration(run.batch_s)}{_roof_words(run)}"
    advice = "move half the bytes: fuse neighbouring operators (torch.compile), or store in 16 bits"
    return _finding(BANDWIDTH, run, _in_step(run, other_s), why, advice, _in_step(run, other_s / 2))


def cannot_tell(run: Evidence, findings: list[Finding]) -> Finding:
    """Why not, and what evidence would help."""
    parts = run.parts
    if parts.gap_s > LEAST_SHARE * run.step_s and run.split and run.split.synthetic.thread > 0.7:
        why = f"for {duration(parts.gap_s)} of each step its thread computes outside torch, {parts.gap_where}"
        advice = "profile that Python code with cProfile or py-spy"
    elif not _near_the_roof(run):
        why = "the operators take more than four times what the roofline allows, and nothing here says why"
        advice = "look at single operators: shapes, data types, layouts, and other programs on the machine"
    elif findings:
        why = f"no single cause: the largest, {findings[0].name}, accounts for {findings[0].share:.0%} of the time"
        advice = "take a longer trace, or several of the causes below together"
    else:
        why, advice = "the trace names no cause", "take a longer trace, and give a throughput split"
    return Finding(UNKNOWN, 0.0, why, advice, None)


def _finding(
    name: str, run: Evidence, saved_s: float, why: str, advice: str, gained_s: float | None = None
) -> Finding | None:
    """A finding from the seconds that vanish with the cause, and those that the advice gains (default: the same)."""
    share = min(1.0, max(0.0, saved_s) / run.batch_s)
    if share < WORTH_A_WORD:
        return None
    gained = share if gained_s is None else min(share, max(0.0, gained_s) / run.batch_s)
    return Finding(name, share, why, advice, 1 / max(1e-3, 1 - gained))


def _idle(run: Evidence) -> str:
    return f"the device idles {max(0.0, 1 - (run.parts.device_s or 0.0) / run.batch_s):.0%} of the time"


def _in_step(run: Evidence, seconds: float) -> float:
    """What a batch gains if its step is shorter by ``seconds``: loading beside it, or the host, still takes time."""
    if run.parts.device_s is not None:
        return min(seconds, run.batch_s - run.wait_s - run.parts.launch_s)
    if run.split is not None and run.split.overlapped:
        return min(seconds, run.batch_s - run.lost_s - run.split.io.batch_s)
    return seconds


def _of_host(run: Evidence, seconds: float) -> float:
    """What a batch gains if its host works or waits less by ``seconds``: the device still takes its time."""
    device_s = run.parts.device_s
    return _in_step(run, seconds) if device_s is None else min(seconds, run.batch_s - device_s)


def _by_limit(run: Evidence) -> tuple[float, float]:
    """The working seconds that arithmetic, and that memory, limits: by the roofline, else by the operators' names."""
    if run.roof_s is None:
        return run.parts.product_s, run.parts.other_s
    scale = run.work_s / max(1e-12, sum(run.roof_s))
    return scale * run.roof_s[0], scale * run.roof_s[1]


def _near_the_roof(run: Evidence) -> bool:
    """Whether the operators are about as fast as the roofline allows; without one, nothing contradicts it."""
    return run.roof_s is None or sum(run.roof_s) >= AT_THE_ROOF * run.work_s


def _works_as_it_can(run: Evidence) -> bool:
    """Operators are near their roofline, and keep the device busy, if there is one."""
    device_s = run.parts.device_s
    return (device_s is None or device_s >= BUSY_DEVICE * run.batch_s) and _near_the_roof(run)


def _roof_words(run: Evidence) -> str:
    if run.roof_s is None:
        return ""
    part = min(1.0, sum(run.roof_s) / max(1e-12, run.work_s))
    return f"; the roofline says {duration(sum(run.roof_s))} for all operators, {part:.0%} of what they take"
