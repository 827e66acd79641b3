"""What a trace says in numbers: time by range and by operator, idle time of the GPU, time that steps wait for input.

Input: a :class:`~dltutorial.profile.events.Trace`.
Output: seconds, and shares from 0 to 1. A share is None if the trace does not contain it.

Source: docs.pytorch.org, torch.profiler, for the names of events and for the meaning of self time.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from dltutorial.profile.events import Event, Trace, intervals, length, outermost, self_seconds, without
from dltutorial.profile.timing import duration
from dltutorial.profile.trace_breakdown import StepBreakdown
from dltutorial.record.table import Table

_MAX_NAME_LENGTH = 90
_MAX_CHANGES = 10
_MAX_RANGES, _MAX_OPERATORS = 30, 15  # in the table


class Total(NamedTuple):
    """All events of one name and category. ``seconds`` is inclusive for ranges, and self time for operators."""

    name: str
    category: str
    calls: int
    seconds: float


class Overlap(NamedTuple):
    """The seconds in which any collective ran, and how many of these computation hides."""

    communication_s: float
    hidden_s: float

    @property
    def hidden_share(self) -> float:
        """Share of the communication that is hidden behind computation, from 0 to 1. It is 0 without communication."""
        if self.communication_s == 0:
            return 0.0
        return self.hidden_s / self.communication_s


def table(trace: Trace) -> Table:
    """Make a table of all numbers: the shares, then ranges, then operators. Long names are cut."""
    step_text = None
    if trace.steps:
        step_text = duration(statistics.median(step.duration_s for step in trace.steps))
    rows: list[tuple] = [
        ("steps", "", len(trace.steps), step_text),
        ("device idle", "share", "", _percent(device_idle_share(trace))),
        ("waiting for input", "share", "", _percent(input_wait_share(trace))),
    ]
    ranges = range_times(trace)[:_MAX_RANGES]
    operators = operator_times(trace)[:_MAX_OPERATORS]
    for total in (*ranges, *operators):
        rows.append((short(total.name), total.category, total.calls, duration(total.seconds)))
    return Table.of(("what", "kind", "times", "time"), rows)


def short(name: str) -> str:
    """Cut a name so that it fits a table, because names of kernels from templates have thousands of letters."""
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    return name[: _MAX_NAME_LENGTH - 1] + "…"


def range_times(trace: Trace) -> tuple[Total, ...]:
    """Inclusive time of every range of the host. A range inside another range of the same name does not count."""
    ranges = defaultdict(list)
    for event in trace.of_category("range"):
        ranges[event.name].append(event)
    lengths_s = {(name, "range"): [event.duration_s for event in outermost(events)] for name, events in ranges.items()}
    return _totals(lengths_s)


def operator_times(trace: Trace) -> tuple[Total, ...]:
    """Self time by name. At each moment, the time of a row belongs to the running operator that started last."""
    rows: dict[int, list[Event]] = defaultdict(list)
    for event in trace.of_category("operator", "runtime", "kernel", "copy"):
        rows[event.row].append(event)
    self_times_s: dict[tuple[str, str], list[float]] = defaultdict(list)
    for events in rows.values():
        for event, self_s in zip(events, self_seconds(events), strict=True):
            self_times_s[event.name, event.category].append(self_s)
    return _totals(self_times_s)


def _totals(times_s: Mapping[tuple[str, str], list[float]]) -> tuple[Total, ...]:
    """Add up the times of each name and category. The longest total comes first."""
    totals = [Total(name, category, len(times), sum(times)) for (name, category), times in times_s.items()]
    return tuple(sorted(totals, key=lambda total: (-total.seconds, total.name)))


def device_idle_share(trace: Trace) -> float | None:
    """Share of the time in which no GPU did anything, between the start of the first step and the end of all work.

    Returns:
        The share. It is None without steps or without events of a GPU.
    """
    if not trace.steps:
        return None
    step = StepBreakdown.of(trace)
    if step.device_s is None:
        return None
    return 1 - step.device_s / step.step_s


def input_wait_share(trace: Trace) -> float | None:
    """Share of the time in which the stepping thread waited for its batch. Loading in other threads does not count.

    Returns:
        The share. It is None without steps, or if no range shows the wait.
    """
    if not trace.steps:
        return None
    step = StepBreakdown.of(trace)
    if step.wait_s == 0:
        return None
    return step.wait_s / step.step_s


def changes(before: Trace, after: Trace, names: tuple[str, str]) -> Table:
    """List the ten ranges and operators whose time per step changed most from one run to the other.

    Args:
        before: The first run.
        after: The second run.
        names: The names of the runs in the header.

    Returns:
        The table.
    """
    before_s = _seconds_per_step(before)
    after_s = _seconds_per_step(after)
    changed = []
    for name, category in {**before_s, **after_s}:
        old_s = before_s.get((name, category), 0.0)
        new_s = after_s.get((name, category), 0.0)
        changed.append((name, category, old_s, new_s))
    changed.sort(key=lambda row: (-abs(row[3] - row[2]), row[0]))
    rows = []
    for name, category, old_s, new_s in changed[:_MAX_CHANGES]:
        rows.append((short(name), category, duration(old_s), duration(new_s), _ratio_text(old_s, new_s)))
    return Table.of(("what changed", "kind", *names, "ratio"), rows)


def _seconds_per_step(trace: Trace) -> dict[tuple[str, str], float]:
    """Seconds of each name and category, per step."""
    n_steps = max(1, len(trace.steps))
    totals = (*range_times(trace), *operator_times(trace))
    return {(total.name, total.category): total.seconds / n_steps for total in totals}


def _ratio_text(before_s: float, after_s: float) -> str:
    """The ratio of two times as text."""
    if after_s == 0:
        return "gone"
    if before_s == 0:
        return "new"
    return f"{after_s / before_s:.2f} ×"


def overlap(trace: Trace) -> Overlap:
    """Measure how much of the communication of one rank is hidden behind computation.

    Gloo's all-reduces appear as ranges on their own threads, and those of NCCL as kernels on their own stream.
    Computation on a GPU is any other kernel. On a CPU it is the work of autograd, without the nodes in which hooks copy
    and send gradients.
    """
    kernels = trace.of_category("kernel")
    nccl = [kernel for kernel in kernels if kernel.name.startswith("nccl")]
    gloo = [event for event in trace.events if event.name.startswith("gloo:")]
    if kernels:
        computing = [kernel for kernel in kernels if not kernel.name.startswith("nccl")]
    else:
        nodes = [event for event in trace.events if event.name.startswith("autograd::engine::evaluate_function")]
        computing = [node for node in nodes if not node.name.endswith("AccumulateGrad")]
    communication = intervals(gloo + nccl)
    communication_s = length(communication)
    visible_s = length(without(communication, intervals(computing)))
    return Overlap(communication_s, communication_s - visible_s)


def _percent(share: float | None) -> str | None:
    """A share as a percentage."""
    if share is None:
        return None
    return f"{100 * share:.0f}%"
