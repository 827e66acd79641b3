"""The detective's rules: one small function for each bottleneck, with its reason.

In: :class:`~dltutorial.profile.evidence.Evidence`. Out: a :class:`Finding`, or None where it does not speak.

Each rule asks one question: *how long would a batch take if this cost nothing?* The rule whose answer is the shortest
time names the bottleneck. That is why a loader that hides behind the step is not blamed, however slow it is, and why
a synchronising call after which nothing is left to wait for is not, however long it lasts.

Two models give the answers. On a machine with a device, host and device work side by side, and a batch takes as long
as the busier of the two. Without one, all of it happens one after the other, unless workers load beside the step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dltutorial.profile.evidence import Evidence
from dltutorial.profile.timing import duration

READ, PREPARE, LOADING = "slow read", "slow augmentation", "slow loading"
CONTENTION, SYNCHRONISATION, LAUNCHES = "contention", "hidden synchronisation", "launch-bound"
BANDWIDTH, COMPUTE, UNKNOWN = "bandwidth-bound", "compute-bound", "cannot tell"
VERDICTS = (READ, PREPARE, LOADING, CONTENTION, SYNCHRONISATION, LAUNCHES, BANDWIDTH, COMPUTE, UNKNOWN)

LEAST_SHARE = 0.2  # of the time must vanish with a cause, or it is not the bottleneck
BUSY_DEVICE = 0.75  # a device that idles more than the rest of this is not limited by what it computes
FEW_CORES = 0.5  # a loader that wants less than half a core waits for its data
AT_THE_ROOF = 0.25  # operators slower than four times their roofline are limited by something that it does not know
MOST_WORKERS = 16
WORTH_A_WORD = 0.01  # of the time; less is not reported


@dataclass(frozen=True)
class Finding:
    """One possible cause.

    Attributes:
        name: one of ``VERDICTS``.
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


def loading(run: Evidence) -> Finding | None:
    """The step waits for its batch. Reading waits for a disk or a network, preparing computes: the cores tell."""
    name, how, prepared = _kind_of_loading(run)
    why = f"the step waits {duration(run.wait_s)} of {duration(run.batch_s)} for its batch; {how}"
    saved_s = min(run.wait_s, run.batch_s - (run.device_s or 0.0))
    if name == PREPARE:
        advice = "make the preparation leaner, or move it to the device (the gain if it cost nothing)"
        gained_s = prepared * run.wait_s
    else:
        load_s = run.split.io.batch_s if run.split else run.wait_s
        workers = max(1, min(MOST_WORKERS, math.ceil(load_s / max(run.step_s, 1e-9))))
        advice = f"read ahead in {workers} {'worker' if workers == 1 else 'workers'} beside the step"
        gained_s = run.batch_s - max(run.step_s, load_s / workers)
    return _finding(name, run, saved_s, why, advice, min(saved_s, gained_s))


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
    if parts is None:
        return None
    gap_s = parts.gap_s
    if run.split is not None:
        gap_s = min(gap_s, (1 - run.split.synthetic.thread) * run.step_s)
    if parts.device_s is None or gap_s > parts.synchronise_s:
        why = f"for {duration(gap_s)} of each step nothing computes, the longest time {parts.gap_where}"
        why += f"; item() is called {parts.n_synchronise:.3g} × a step" if parts.n_synchronise else ""
        advice = "take that wait out of the step: do it every hundredth step, or in another thread"
        return _finding(SYNCHRONISATION, run, _of_host(run, gap_s), why, advice)
    why = (
        f"the host waits for the device in {parts.n_synchronise:.0f} calls a step, {duration(parts.synchronise_s)} in "
        f"all, and the device idles {_idle(run):.0%} of the time"
    )
    advice = "keep values on the device: no item(), print or copy of them to the host in every step"
    return _finding(SYNCHRONISATION, run, _of_host(run, parts.synchronise_s), why, advice)


def launches(run: Evidence) -> Finding | None:
    """Calling the operators takes the time, not what they compute: each is too short to keep the device busy."""
    parts = run.parts
    if parts is None or not parts.launch_s or not parts.n_calls:
        return None
    each = duration(parts.launch_s / parts.n_calls)
    if parts.device_s is None:
        why = f"{parts.n_calls:,.0f} operators a step, and {each} for each goes into calling it"
        advice = "fewer, larger operators: a larger batch, fused operators (torch.compile, a foreach optimizer)"
        return _finding(LAUNCHES, run, _in_step(run, parts.launch_s), why, advice)
    why = (
        f"{parts.n_calls:,.0f} kernels a step, {each} of the host's time to launch each, and the device idles "
        f"{_idle(run):.0%} of the time"
    )
    advice = "launch less often: CUDA Graphs, torch.compile, a fused optimizer, a larger batch"
    return _finding(LAUNCHES, run, _of_host(run, parts.launch_s), why, advice)


def compute(run: Evidence) -> Finding | None:
    """Matrix products take the time, near the peak that their precision allows."""
    if not _works_as_it_can(run):
        return None
    product_s, _ = _by_limit(run)
    name, times = run.faster_dtype
    why = f"operators that arithmetic limits take {duration(product_s)} of {duration(run.batch_s)}"
    if times > 1:
        advice, after_s = f"compute in {name}: its peak here is {times:.1f} × as high", product_s / times
    elif run.roof_s is None:
        advice, after_s = "a lower precision, if this device has units for it; a number needs work and peaks", product_s
    else:
        advice = "less arithmetic (a smaller model, fewer tokens) or a faster device; tuning ends at the roofline"
        after_s = min(product_s, run.roof_s[0])
    saved_s, gained_s = _in_step(run, product_s), _in_step(run, product_s - after_s)
    found = _finding(COMPUTE, run, saved_s, why + _roof_words(run), advice, gained_s)
    return replace(found, gain=None) if found and run.roof_s is None else found


def bandwidth(run: Evidence) -> Finding | None:
    """Operators that move much and compute little take the time; half the bytes take half of it."""
    if not _works_as_it_can(run):
        return None
    _, other_s = _by_limit(run)
    why = f"operators that memory limits take {duration(other_s)} of {duration(run.batch_s)}{_roof_words(run)}"
    advice = "move half the bytes: fuse neighbouring operators (torch.compile), or store in 16 bits"
    return _finding(BANDWIDTH, run, _in_step(run, other_s), why, advice, _in_step(run, other_s / 2))


RULES: tuple[Callable[[Evidence], Finding | None], ...]
RULES = (loading, contention, synchronisation, launches, compute, bandwidth)


def cannot_tell(run: Evidence, findings: list[Finding]) -> Finding:
    """Why not, and what evidence would help."""
    parts = run.parts
    if parts and parts.gap_s > LEAST_SHARE * run.step_s and run.split and run.split.synthetic.thread > 0.7:
        why = f"for {duration(parts.gap_s)} of each step its thread computes outside torch, {parts.gap_where}"
        advice = "profile that Python code with cProfile or py-spy"
    elif not _near_the_roof(run):
        why = "the operators take more than four times what the roofline allows, and nothing here says why"
        advice = "look at single operators: shapes, data types, layouts, and other programs on the machine"
    elif findings:
        why = f"no single cause: the largest, {findings[0].name}, accounts for {findings[0].share:.0%} of the time"
        advice = "take a longer trace, or several of the causes below together"
    else:
        missing = "a trace" if parts is None else "a throughput split"
        why, advice = f"the evidence names no cause; {missing} is missing", f"give {missing}"
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


def _idle(run: Evidence) -> float:
    return max(0.0, 1 - (run.device_s or 0.0) / run.batch_s)


def _in_step(run: Evidence, seconds: float) -> float:
    """What a batch gains if its step is shorter by ``seconds``: loading beside it, or the host, still takes time."""
    if run.parts and run.parts.device_s is not None:
        return min(seconds, run.batch_s - run.wait_s - run.parts.launch_s)
    if run.overlapped and run.split is not None:
        return min(seconds, run.batch_s - run.lost_s - run.split.io.batch_s)
    return seconds


def _of_host(run: Evidence, seconds: float) -> float:
    """What a batch gains if its host works or waits less by ``seconds``: the device still takes its time."""
    return min(seconds, run.batch_s - run.device_s) if run.device_s else _in_step(run, seconds)


def _kind_of_loading(run: Evidence) -> tuple[str, str, float]:
    """Reading or preparing, how one can tell, and the share of preparing.

    The trace's ranges say it, if they name most of the loading; else the cores that it wants.
    """
    read_s, prepare_s = (run.parts.read_s, run.parts.prepare_s) if run.parts else (0.0, 0.0)
    if read_s + prepare_s > run.wait_s / 2:
        how = f"reading takes {duration(read_s)}, preparing {duration(prepare_s)}"
        return READ if read_s >= prepare_s else PREPARE, how, prepare_s / (read_s + prepare_s)
    if run.split is None:
        how = "whether it reads or prepares cannot be told: name ranges read and augment, or give a split"
        return LOADING, how, 1.0
    wants = f"loading alone wants {run.split.io.cores:.1f} cores"
    computes = run.split.io.cores >= FEW_CORES
    return (PREPARE, f"{wants}: it computes", 1.0) if computes else (READ, f"{wants}: it waits", 0.0)


def _by_limit(run: Evidence) -> tuple[float, float]:
    """The working seconds that arithmetic, and that memory, limits: by the roofline, else by the operators' names."""
    if run.roof_s is None:
        return (run.parts.product_s, run.parts.other_s) if run.parts else (0.0, 0.0)
    scale = (run.work_s or 0.0) / max(1e-12, sum(run.roof_s))
    return scale * run.roof_s[0], scale * run.roof_s[1]


def _near_the_roof(run: Evidence) -> bool:
    """Whether the operators are about as fast as the roofline allows; without one, nothing contradicts it."""
    return run.roof_s is None or sum(run.roof_s) >= AT_THE_ROOF * (run.work_s or 0.0)


def _works_as_it_can(run: Evidence) -> bool:
    """Operators are known, near their roofline, and keep the device busy, if there is one."""
    busy = run.device_s is None or run.device_s >= BUSY_DEVICE * run.batch_s
    return run.work_s is not None and busy and _near_the_roof(run)


def _roof_words(run: Evidence) -> str:
    if run.roof_s is None:
        return ""
    part = min(1.0, sum(run.roof_s) / max(1e-12, run.work_s or 0.0))
    return f"; the roofline says {duration(sum(run.roof_s))} for all operators, {part:.0%} of what they take"
