"""The bottleneck detective: what limits a run, how one can tell, what to try next, and what that should gain.

In: a loader and a step, or :class:`~dltutorial.profile.evidence.Evidence` about them, as much of it as there is. Out: a
:class:`Report`. The rules are in ``rules``. If no single cause accounts for much of the time, the detective cannot
tell, and says why.
"""

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dltutorial import machine
from dltutorial.profile import throughput, work
from dltutorial.profile import trace as traces
from dltutorial.profile.evidence import Evidence
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.ranges import annotate
from dltutorial.profile.rules import LEAST_SHARE, RULES, UNKNOWN, Finding, cannot_tell
from dltutorial.profile.throughput import batches_of
from dltutorial.record.table import Table


@dataclass(frozen=True)
class Report:
    """The verdict, and every cause that was looked at, the largest first."""

    verdict: Finding
    findings: tuple[Finding, ...]

    def table(self) -> Table:
        """One line for each cause."""
        lines = [
            (finding.name, f"{finding.share:.0%}", finding.why, finding.advice, _times(finding.gain))
            for finding in self.findings
        ]
        return Table.of(("cause", "share", "evidence", "try next", "expected gain"), lines)

    def __str__(self) -> str:
        found = self.verdict
        gain = "" if found.name == UNKNOWN else f"\n  expected gain: {_times(found.gain)}"
        return f"{found.name}: {found.why}\n  try next: {found.advice}{gain}"

    def _repr_html_(self) -> str:
        return f"<p>Verdict: {html.escape(str(self)).replace(chr(10), '<br>')}</p>{self.table()._repr_html_()}"


def investigate(evidence: Evidence) -> Report:
    """Ask every rule, and name the cause without which a batch would be quickest.

    Raises:
        CourseError: there is neither a split nor a trace with steps.
    """
    findings = sorted(filter(None, (rule(evidence) for rule in RULES)), key=lambda finding: -finding.share)
    if findings and findings[0].share >= LEAST_SHARE:
        return Report(findings[0], tuple(findings))
    return Report(cannot_tell(evidence, findings), tuple(findings))


def gather(
    loader: Iterable | Callable[[], Iterable],
    step: Callable[[Any], object],
    *,
    peaks: Peaks | None = None,
    dtype: str = "fp32",
    rounds: int = 5,
    phase_s: float = 0.3,
    steps: int = 5,
) -> Evidence:
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
    with batches_of(loader, device) as batches:
        kept = next(batches)  # worker processes start here, not under the recorder

        def run_step() -> None:
            with annotate("load"):
                batch = next(batches)
            step(batch)

        trace = traces.take(run_step, steps=steps)
    return Evidence(split, trace, work.count(lambda: step(kept)) if peaks else None, peaks, dtype)


def _times(gain: float | None) -> str:
    return "not known" if gain is None else f"{gain:.2f} ×"
