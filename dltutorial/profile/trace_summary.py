"""What a trace says in numbers: time by range and operator, how idle the device was, how long steps waited for input.

In: a :class:`~dltutorial.profile.events.Trace`. Out: seconds and shares (0 to 1); None where the trace cannot tell.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from dltutorial.profile.events import Event, Trace, intervals, length, outermost, self_seconds, without
from dltutorial.profile.timing import duration
from dltutorial.profile.trace_breakdown import StepBreakdown
from dltutorial.record.table import Table

_OPERATORS = ("operator", "runtime", "kernel", "copy")
_LETTERS = 90


class Total(NamedTuple):
    """All events of one name and category together; ``seconds`` is inclusive for ranges, self time for operators."""

    name: str
    category: str
    calls: int
    seconds: float


class Overlap(NamedTuple):
    """How many collectives a trace holds, seconds in which one ran, and of those, in which something was computed."""

    n_messages: int
    communication_s: float
    hidden_s: float

    @property
    def hidden_share(self) -> float:
        """From 0, all of it waited for, to 1; 0 without communication."""
        return self.hidden_s / self.communication_s if self.communication_s else 0.0


def table(trace: Trace, top: int = 8) -> Table:
    """All the numbers: the shares, twice ``top`` ranges, and the ``top`` operators; a long name is cut."""
    step_s = statistics.median(step.duration_s for step in trace.steps) if trace.steps else None
    lines: list[tuple] = [
        ("steps", "", len(trace.steps), None if step_s is None else duration(step_s)),
        ("device idle", "share", "", _percent(device_idle_share(trace))),
        ("waiting for input", "share", "", _percent(input_wait_share(trace))),
    ]
    for total in (*range_times(trace)[: 2 * top], *operator_times(trace)[:top]):
        lines.append((short(total.name), total.category, total.calls, duration(total.seconds)))
    return Table.of(("what", "kind", "times", "time"), lines)


def short(name: str) -> str:
    """A name that fits a table: kernels made from templates have thousands of letters."""
    return name if len(name) <= _LETTERS else name[: _LETTERS - 1] + "…"


def range_times(trace: Trace) -> tuple[Total, ...]:
    """Inclusive time of every named range of the host; one inside another of its name counts once."""
    found = defaultdict(list)
    for event in trace.events:
        if event.category == "range":
            found[event.name].append(event)
    outer = {name: outermost(events) for name, events in found.items()}
    return _longest_first(
        Total(name, "range", len(events), sum(event.duration_s for event in events)) for name, events in outer.items()
    )


def operator_times(trace: Trace) -> tuple[Total, ...]:
    """Self time by name: at each moment of a row, time belongs to the operator that started last."""
    rows: dict[int, list[Event]] = defaultdict(list)
    for event in trace.events:
        if event.category in _OPERATORS:
            rows[event.row].append(event)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for events in rows.values():
        for event, self_s in zip(events, self_seconds(events), strict=True):
            found[event.name, event.category].append(self_s)
    return _longest_first(Total(*key, len(self_s), sum(self_s)) for key, self_s in found.items())


def device_idle_share(trace: Trace) -> float | None:
    """Of the time between the first step's start and the end of all work, when no device did anything.

    None ("not available") without steps or device events.
    """
    step = StepBreakdown.of(trace) if trace.steps else None
    return 1 - step.device_s / step.step_s if step and step.device_s is not None else None


def input_wait_share(trace: Trace) -> float | None:
    """Of the time of the steps, when the thread that steps waited for its batch; None where no range shows it.

    What another thread loads meanwhile is no wait.
    """
    step = StepBreakdown.of(trace) if trace.steps else None
    return step.wait_s / step.step_s if step and step.wait_s else None


def changes(before: Trace, after: Trace, names: tuple[str, str] = ("before", "after"), most: int = 10) -> Table:
    """Ranges and operators whose time changed most from one run to the other, per step where both have steps."""
    per_step = bool(before.steps and after.steps)
    old, new = (_seconds_by_name(trace, len(trace.steps) if per_step else 1) for trace in (before, after))
    found = [(*key, old.get(key, 0.0), new.get(key, 0.0)) for key in {**old, **new} if old.get(key) != new.get(key)]
    lines = []
    for name, category, before_s, after_s in sorted(found, key=lambda one: (-abs(one[3] - one[2]), one[0]))[:most]:
        ratio = "gone" if not after_s else f"{after_s / before_s:.2f} ×" if before_s else "new"
        lines.append((short(name), category, duration(before_s), duration(after_s), ratio))
    return Table.of(("what changed", "kind", *names, "ratio"), lines)


def overlap(trace: Trace) -> Overlap:
    """How much of one rank's communication runs while something is computed.

    Gloo's all-reduces appear as ranges on threads of their own, NCCL's as kernels on a stream of their own. Computing
    is what autograd does on the host, but for the nodes in which our hooks copy and send, or any other kernel on a GPU.
    """
    kernels = [event for event in trace.events if event.category == "kernel"]
    if kernels:
        computing = [event for event in kernels if not event.name.startswith("nccl")]
    else:
        nodes = (event for event in trace.events if event.name.startswith("autograd::engine::evaluate_function"))
        computing = [event for event in nodes if not event.name.endswith("AccumulateGrad")]
    nccl = [event for event in kernels if event.name.startswith("nccl")]
    sent = intervals([event for event in trace.events if event.name.startswith("gloo:")] + nccl)
    return Overlap(len(sent), length(sent), length(sent) - length(without(sent, intervals(computing))))


def _seconds_by_name(trace: Trace, parts: int) -> dict[tuple[str, str], float]:
    totals = (*range_times(trace), *operator_times(trace))
    return {(total.name, total.category): total.seconds / parts for total in totals}


def _longest_first(totals: Iterable[Total]) -> tuple[Total, ...]:
    return tuple(sorted(totals, key=lambda total: (-total.seconds, total.name)))


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.0f}%"
