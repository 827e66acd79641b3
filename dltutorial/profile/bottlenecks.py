"""Find the bottleneck of a training run: what limits it, how one sees that, what to try, and what that should gain.

Input: a loader and a step, or :class:`~dltutorial.profile.evidence.Evidence` that was measured before.
Output: a :class:`~dltutorial.profile.report.Report`, which names the bottleneck and lists all candidate causes. Times
are in seconds per batch.

There is one rule per candidate cause. Each rule answers the same question: *how long would a batch take if this cause
cost nothing?* The cause with the shortest answer is the bottleneck. Therefore a slow loader that works beside a slower
step is not the bottleneck. If no cause accounts for a large share of the time, the report says "cannot tell", and why.

Two models give the answers. On a machine with a GPU, host and GPU work side by side, so a batch takes as long as the
slower of the two. Without a GPU everything happens one after the other, unless worker processes load beside the step.

Source: Williams, Waterman, Patterson 2009, doi:10.1145/1498765.1498785, for the limits by arithmetic and by memory.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch.profiler import record_function

from dltutorial import machine
from dltutorial.profile import throughput, work
from dltutorial.profile import trace as traces
from dltutorial.profile.evidence import Evidence
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.report import UNKNOWN, Finding, Report
from dltutorial.profile.timing import duration

READ = "slow read"
PREPARE = "slow augmentation"
LOADING = "slow loading"
CONTENTION = "contention"
SYNCHRONISATION = "hidden synchronisation"
LAUNCHES = "launch-bound"
BANDWIDTH = "bandwidth-bound"
COMPUTE = "compute-bound"

MIN_SHARE = 0.2  # a cause that takes a smaller share of the time is not called the bottleneck
MIN_REPORTED_SHARE = 0.01  # a cause that takes a smaller share of the time is not reported
WAITING_LOADER_CORES = 0.5  # a loader that uses fewer cores waits for its data
COMPUTING_THREAD_SHARE = 0.7  # a thread that computes for a larger share of a step runs Python in its gaps
MIN_PRECISION_SPEEDUP = 1.2  # a precision is recommended if its peak is at least so many times as high
MAX_WORKERS = 16


def investigate(evidence: Evidence) -> Report:
    """Apply all rules, and name the cause without which a batch would take the shortest time.

    Args:
        evidence: What was measured.

    Returns:
        The report.

    Raises:
        CourseError: The trace has no step.
    """
    rules = (loading, contention, synchronisation, launches, compute, bandwidth)
    candidates = [rule(evidence) for rule in rules]
    findings = [finding for finding in candidates if finding is not None]
    findings.sort(key=lambda finding: finding.share, reverse=True)
    if findings and findings[0].share >= MIN_SHARE:
        return Report(findings[0], tuple(findings))
    return Report(cannot_tell(evidence, findings), tuple(findings))


def gather(
    loader: Iterable,
    step: Callable[[Any], object],
    *,
    peaks: Peaks | None = None,
    rounds: int = 5,
    phase_s: float = 0.3,
) -> Evidence:
    """Measure a loader and a step: the throughput split, a trace and, if ``peaks`` is given, the work of a step.

    Args:
        loader: The batches, as for ``throughput.measure``. Name its parts with ``record_function("read")`` and
            ``record_function("augment")`` if you can.
        step: Trains on one batch that is on the device. If ``peaks`` is given, the step must not be compiled, because
            the work of compiled operators cannot be counted.
        peaks: The peaks of this machine.
        rounds: The number of rounds of the split.
        phase_s: The seconds of each phase of the split.

    Returns:
        The evidence for :func:`investigate`.

    Raises:
        CourseError: The loader gave no batch.
    """
    device = machine.device()
    split = throughput.measure(loader, step, rounds=rounds, phase_s=phase_s)
    with throughput.batches_of(loader, device) as batches:
        first_batch = next(batches)  # worker processes start here, before the profiler records

        def run_step() -> None:
            with record_function("load"):
                batch = next(batches)
            step(batch)

        trace = traces.take(run_step)
    counted = None
    if peaks is not None:
        counted = work.count(lambda: step(first_batch))
    return Evidence(trace, split, counted, peaks)


def loading(run: Evidence) -> Finding | None:
    """The step waits for its batch. Reading waits for a disk or a network, and preparing computes."""
    name, prepare_share, details = _slow_part_of_loading(run)
    why = f"the step waits {duration(run.wait_s)} of {duration(run.batch_s)} for its batch; {details}"
    busy_device_s = run.parts.device_s or 0.0
    saved_s = min(run.wait_s, run.batch_s - busy_device_s)
    if name == PREPARE:
        advice = "make the preparation cheaper, or move it to the device (the gain if it cost nothing)"
        return _finding(name, run, saved_s, prepare_share * run.wait_s, why, advice)
    n_workers = math.ceil(run.load_s / max(run.step_s, 1e-9))
    n_workers = max(1, min(MAX_WORKERS, n_workers))
    workers = "1 worker" if n_workers == 1 else f"{n_workers} workers"
    gained_s = run.batch_s - max(run.step_s, run.load_s / n_workers)
    return _finding(name, run, saved_s, gained_s, why, f"read ahead in {workers} beside the step")


def _slow_part_of_loading(run: Evidence) -> tuple[str, float, str]:
    """Which part of the loading is slow, which share of the loading is preparation, and how one knows.

    The ranges of the trace decide if they cover most of the wait. Otherwise the number of cores that the loader uses
    decides.
    """
    read_s = run.parts.read_s
    prepare_s = run.parts.prepare_s
    if read_s + prepare_s > run.wait_s / 2:
        name = READ if read_s >= prepare_s else PREPARE
        details = f"reading takes {duration(read_s)}, preparing {duration(prepare_s)}"
        return name, prepare_s / (read_s + prepare_s), details
    if run.split is None:
        return LOADING, 1.0, "to separate reading from preparing, name ranges read and augment, or give a split"
    cores = run.split.io.cores
    if cores >= WAITING_LOADER_CORES:
        return PREPARE, 1.0, f"loading alone uses {cores:.1f} cores: it computes"
    return READ, 1.0, f"loading alone uses {cores:.1f} cores: it waits"


def contention(run: Evidence) -> Finding | None:
    """Loader and step run side by side and compete for cores, memory or the GIL.

    A batch then takes longer than the slower of the two alone. ``Evidence.contention_s`` says when this counts.
    """
    split = run.split
    if split is None or run.contention_s == 0:
        return None
    why = (
        f"the full run reaches {split.share_of_limit:.0%} of min(I/O, synthetic); beside the loader the step takes "
        f"{split.slowdown:.1f} × as long; both need {split.io.cores:.1f} + {split.synthetic.cores:.1f} cores, "
        f"and there are {split.cores}"
    )
    advice = "leave cores for the loader: fewer threads for the step, a cheaper loader, or its work on the device"
    return _finding(CONTENTION, run, run.contention_s, run.contention_s, why, advice)


def synchronisation(run: Evidence) -> Finding | None:
    """The host waits without need: in a call that waits for the GPU, or in a gap in which nothing computes.

    With a GPU, such a wait costs only the time in which the GPU is idle because no kernel is launched. Without a GPU, a
    long gap between operators counts, unless the thread computes during the gap. In that case Python is the cause.
    """
    parts = run.parts
    gap_s = parts.gap_s
    if run.split is not None:
        idle_share = 1 - run.split.synthetic.thread_share
        gap_s = min(gap_s, idle_share * run.step_s)
    if parts.device_s is None or gap_s > parts.synchronise_s:
        saved_s = run.saved_on_host_s(gap_s)
        why = f"for {duration(gap_s)} of each step nothing computes, the longest time {parts.gap_where}"
        advice = "take that wait out of the step: do it every hundredth step, or in another thread"
    else:
        saved_s = run.saved_on_host_s(parts.synchronise_s)
        why = (
            f"the host waits for the device in {parts.n_synchronise:.0f} calls a step, "
            f"{duration(parts.synchronise_s)} in all, and {_idle_device_text(run)}"
        )
        advice = "keep values on the device: no item(), print or copy of them to the host in every step"
    return _finding(SYNCHRONISATION, run, saved_s, saved_s, why, advice)


def launches(run: Evidence) -> Finding | None:
    """The operators compute so little that most of the time is spent on calling them."""
    parts = run.parts
    if not parts.launch_s or not parts.n_calls:
        return None
    per_call = duration(parts.launch_s / parts.n_calls)
    if parts.device_s is None:
        why = f"{parts.n_calls:,.0f} operators a step, and calling each of them takes {per_call}"
        advice = "fewer, larger operators: a larger batch, fused operators (torch.compile, a foreach optimizer)"
    else:
        why = (
            f"{parts.n_calls:,.0f} kernels a step, {per_call} of the host's time to launch each, "
            f"and {_idle_device_text(run)}"
        )
        advice = "launch fewer kernels: CUDA Graphs, torch.compile, a fused optimizer, a larger batch"
    saved_s = run.saved_on_host_s(parts.launch_s)
    return _finding(LAUNCHES, run, saved_s, saved_s, why, advice)


def compute(run: Evidence) -> Finding | None:
    """Matrix products take most of the time, and they run near the peak of their precision."""
    if not run.is_limited_by_operators:
        return None
    product_s, _ = run.seconds_by_limit
    why = f"operators that arithmetic limits take {duration(product_s)} of {duration(run.batch_s)}{_roofline_text(run)}"
    gained_s = None
    if run.roof_s is None or run.peaks is None:
        advice = "a lower precision, if this device has units for it; a number needs work and peaks"
    else:
        dtype, speedup = _fastest_precision(run.peaks)
        if speedup > MIN_PRECISION_SPEEDUP:
            advice = f"compute in {dtype}: its peak here is {speedup:.1f} × as high"
            after_s = product_s / speedup
        else:
            advice = "less arithmetic (a smaller model, fewer tokens) or a faster device; tuning ends at the roofline"
            after_s = min(product_s, run.roof_s[0])
        gained_s = run.saved_in_step_s(product_s - after_s)
    return _finding(COMPUTE, run, run.saved_in_step_s(product_s), gained_s, why, advice)


def _fastest_precision(peaks: Peaks) -> tuple[str, float]:
    """The low precision with the highest peak, and how many times as high as that of fp32 it is."""
    speedups = [
        (peaks.peak_flops_per_s(name) / peaks.peak_flops_per_s("fp32"), name)
        for name in ("tf32", "bf16", "fp16")
        if peaks.matmul.get(name)
    ]
    speedup, name = max(speedups, default=(1.0, ""))
    return name, speedup


def bandwidth(run: Evidence) -> Finding | None:
    """Operators that move much data and compute little take most of the time. Half the bytes take half the time."""
    if not run.is_limited_by_operators:
        return None
    _, other_s = run.seconds_by_limit
    why = f"operators that memory limits take {duration(other_s)} of {duration(run.batch_s)}{_roofline_text(run)}"
    advice = "move half the bytes: fuse neighbouring operators (torch.compile), or store in 16 bits"
    return _finding(BANDWIDTH, run, run.saved_in_step_s(other_s), run.saved_in_step_s(other_s / 2), why, advice)


def cannot_tell(run: Evidence, findings: list[Finding]) -> Finding:
    """Say why no cause is the bottleneck, and which evidence would help."""
    parts = run.parts
    computes = run.split is not None and run.split.synthetic.thread_share > COMPUTING_THREAD_SHARE
    if computes and parts.gap_s > MIN_SHARE * run.step_s:
        why = f"for {duration(parts.gap_s)} of each step its thread computes outside torch, {parts.gap_where}"
        advice = "profile that Python code with cProfile or py-spy"
    elif not run.is_near_roofline:
        why = "the operators take more than four times what the roofline allows, and the evidence does not say why"
        advice = "look at single operators: shapes, data types, layouts, and other programs on the machine"
    elif findings:
        why = f"no single cause: the largest, {findings[0].name}, accounts for {findings[0].share:.0%} of the time"
        advice = "take a longer trace, or several of the causes below together"
    else:
        why = "the trace names no cause"
        advice = "take a longer trace, and give a throughput split"
    return Finding(UNKNOWN, 0.0, why, advice, gain=None)


def _finding(name: str, run: Evidence, saved_s: float, gained_s: float | None, why: str, advice: str) -> Finding | None:
    """Make a finding, or None if its share is too small to report.

    Args:
        name: Name of the cause.
        run: The evidence.
        saved_s: Seconds of a batch that disappear if the cause costs nothing.
        gained_s: Seconds of a batch that the advice saves, which never count more than ``saved_s``. None means that
            the number is not known.
        why: The evidence in words.
        advice: What to try next.

    Returns:
        The finding.
    """
    share = min(1.0, max(0.0, saved_s) / run.batch_s)
    if share < MIN_REPORTED_SHARE:
        return None
    gain = None
    if gained_s is not None:
        gained_share = min(share, max(0.0, gained_s) / run.batch_s)
        gain = 1 / max(1e-3, 1 - gained_share)
    return Finding(name, share, why, advice, gain)


def _idle_device_text(run: Evidence) -> str:
    """How much the GPU is idle, in words."""
    busy_share = (run.parts.device_s or 0.0) / run.batch_s
    return f"the device idles {max(0.0, 1 - busy_share):.0%} of the time"


def _roofline_text(run: Evidence) -> str:
    """What the roofline says about all operators, in words."""
    if run.roof_s is None:
        return ""
    roof_s = sum(run.roof_s)
    share = min(1.0, roof_s / max(1e-12, run.work_s))
    return f"; the roofline says {duration(roof_s)} for all operators, {share:.0%} of what they take"
