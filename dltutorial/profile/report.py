"""The report of the bottleneck finder: one finding per candidate cause, and the cause that is the bottleneck.

Input: the findings of the rules in ``bottlenecks``.
Output: text for a terminal, or a paragraph and a table for a notebook.
"""

import html
from dataclasses import dataclass

from dltutorial.record.table import Table

UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class Finding:
    """One candidate cause.

    Attributes:
        name: Name of the cause.
        share: Share of the time of a batch that would disappear if the cause cost nothing, from 0 to 1.
        why: The evidence, with numbers.
        advice: What to try next.
        gain: How many times as fast a batch should become by the advice. None means that no number is known.
    """

    name: str
    share: float
    why: str
    advice: str
    gain: float | None

    @property
    def gain_text(self) -> str:
        """The gain as text."""
        if self.gain is None:
            return "not known"
        return f"{self.gain:.2f} ×"


@dataclass(frozen=True)
class Report:
    """The bottleneck, and all candidate causes with the largest share first."""

    bottleneck: Finding
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        cause = self.bottleneck
        text = f"{cause.name}: {cause.why}\n  try next: {cause.advice}"
        if cause.name != UNKNOWN:
            text += f"\n  expected gain: {cause.gain_text}"
        return text

    def _repr_html_(self) -> str:
        header = ("cause", "share", "evidence", "try next", "expected gain")
        rows = [(cause.name, f"{cause.share:.0%}", cause.why, cause.advice, cause.gain_text) for cause in self.findings]
        text = html.escape(str(self)).replace("\n", "<br>")
        return f"<p>Bottleneck: {text}</p>{Table.of(header, rows)._repr_html_()}"
