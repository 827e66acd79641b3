"""What a learner sees: small pieces of HTML, each with the same words as plain text for terminals.

In: strings and numbers. Out: a :class:`Shown`, which JupyterLab renders as HTML and a terminal prints as text.
Colours come from the Okabe-Ito palette, which colour-blind readers can tell apart (jfly.uni-koeln.de/color); every
coloured thing also carries a word or a sign. Text takes the colour of the page, light or dark.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SIGNS = MappingProxyType({"shown": "✓", "failed": "✗", "otherwise": "≠", "not shown here": "–"})
_BARS = MappingProxyType({"guess": ORANGE, "model": BLUE, "measured": GREEN})
_COLOURS = MappingProxyType({"shown": GREEN, "failed": RED, "otherwise": BLUE, "not shown here": "#888888"})
_WORDS = MappingProxyType({"failed": "failed", "otherwise": "otherwise on this machine"})


@dataclass(frozen=True, repr=False)
class Shown:
    """One piece of output, as HTML and as plain text."""

    html: str
    text: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


def display(item: Any, **options: Any) -> Any:
    """Show ``item`` in the notebook, or print it where there is none; returns IPython's handle if asked."""
    from IPython.display import display as ipython_display

    return ipython_display(item, **options)


def in_notebook() -> bool:
    """Whether a Jupyter kernel is running this code, so that widgets have somewhere to appear."""
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def box(status: str, title: str, *details: str, mark: str | None = None) -> Shown:
    """A line with a sign, and details under it; ``status`` is a key of ``SIGNS``, ``mark`` replaces its words."""
    details = tuple(detail for detail in details if detail)
    words = mark or _WORDS.get(status, status)
    sign = f'<b style="color:{_COLOURS[status]}" aria-hidden="true">{SIGNS[status]}</b>'
    lines = [f"{sign} <b>{html.escape(title)}</b>"]
    if status != "shown" and mark is None:
        lines[0] += f" <i>({words})</i>"
    lines += [f'<span style="opacity:.85">{html.escape(detail)}</span>' for detail in details]
    page = (
        f'<div class="dlt-claim" role="note" aria-label="{words}" style="border-left:4px solid '
        f'{_COLOURS[status]};padding:.25em .8em;margin:.4em 0">{"<br>".join(lines)}</div>'
    )
    sign = SIGNS[status] if status == "shown" or mark else f"{SIGNS[status]} ({words})"
    return Shown(page, "\n    ".join([f"{sign} {title}", *details]))


def failed_check(
    title: str,
    passed: Sequence[str],
    failed: str,
    facts: Sequence[tuple[str, str]],
    trace: str,
    hints: Sequence[str],
) -> Shown:
    """The cases that passed, the one that did not, what was expected and got, and hints; the first is open."""
    rows = [f'<span style="color:{GREEN}">✓</span> {html.escape(name)}' for name in passed]
    rows.append(f'<span style="color:{RED}">✗</span> <b>{html.escape(failed)}</b>')
    rows += [f'<span style="opacity:.7">{label}</span> {html.escape(value)}' for label, value in facts]
    page = f"<div>{'<br>'.join(rows)}</div>"
    if trace:
        page += f'<pre style="margin:.3em 0">{html.escape(trace)}</pre>'
    for number, hint in enumerate(hints, 1):
        opened = " open" if number == 1 else ""
        page += f"<details{opened}><summary>hint {number}</summary>{html.escape(hint)}</details>"
    lines = [f"✗ {title}", *(f"✓ {name}" for name in passed), f"✗ {failed}"]
    lines += [f"{label} {value}" for label, value in facts] + trace.splitlines()
    lines += [f"hint {number}: {hint}" for number, hint in enumerate(hints, 1)]
    return Shown(
        f'<div class="dlt-check" role="note" aria-label="check failed" style="border-left:4px solid {RED};'
        f'padding:.25em .8em;margin:.4em 0"><b>{html.escape(title)}</b>{page}</div>',
        "\n    ".join(lines),
    )


def line(*parts: tuple[str, str]) -> Shown:
    """One short line of ``(label, value)`` pairs; a label without a value is a sentence of its own."""
    pairs = " · ".join(
        f'<span style="opacity:.7">{html.escape(label)}</span> {html.escape(value)}' if value else html.escape(label)
        for label, value in parts
    )
    return Shown(
        f'<div class="dlt-line" style="margin:.3em 0">{pairs}</div>',
        " · ".join(f"{label} {value}".strip() for label, value in parts),
    )


def number(value: float) -> str:
    """Three significant digits, without an exponent where it can be avoided: 0.0123, 45.6, 12,300."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if 1e-3 <= abs(value) < 1e7:
        rounded = float(f"{value:.3g}")
        return f"{rounded:,.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"
    return f"{value:.3g}"


def log_bars(title: str, bars: Sequence[tuple[str, float]], unit: str) -> Shown:
    """Horizontal bars on a logarithmic axis, the last one (the measurement) solid, those before it hollow.

    Args:
        title: what the picture says, in words; read aloud by screen readers.
        bars: ``(label, value)`` with every value positive and finite.
        unit: of all the values.
    """
    low, high = _decades([value for _, value in bars])
    left, width, row = 90, 300, 24
    height = row * len(bars) + 22

    def x(value: float) -> float:
        return left + width * (math.log10(value) - low) / (high - low)

    axis_y = row * len(bars) + 4
    parts = [f'<path d="M{left} {axis_y}H{left + width}" stroke="currentColor" stroke-width="1"/>']
    for decade in range(low, high + 1, max(1, math.ceil((high - low) / 6))):
        at = x(10.0**decade)
        parts.append(f'<path d="M{at:.1f} {axis_y}v4M{at:.1f} 2V{axis_y}" stroke="currentColor" opacity=".3"/>')
        parts.append(f'<text x="{at:.1f}" y="{axis_y + 15}" text-anchor="middle">{10.0**decade:g}</text>')
    for index, (label, value) in enumerate(bars):
        y, end = row * index + 4, x(value)
        colour = _BARS.get(label, GREEN)
        fill = colour if index == len(bars) - 1 else "none"
        parts.append(f'<text x="{left - 6}" y="{y + 13}" text-anchor="end">{html.escape(label)}</text>')
        parts.append(
            f'<rect x="{left}" y="{y}" width="{end - left:.1f}" height="16" fill="{fill}" stroke="{colour}" '
            'stroke-width="2"/>'
        )
        parts.append(f'<text x="{end + 6:.1f}" y="{y + 13}">{number(value)} {html.escape(unit)}</text>')
    svg = (
        f'<svg role="img" aria-label="{html.escape(title)}" viewBox="0 0 {left + width + 130} {height}" '
        f'width="{left + width + 130}" height="{height}" style="max-width:100%;font-size:12px" '
        f'fill="currentColor"><title>{html.escape(title)}</title>{"".join(parts)}</svg>'
    )
    text = ", ".join(f"{label} {number(value)} {unit}" for label, value in bars)
    return Shown(f'<div class="dlt-score"><div>{html.escape(title)}</div>{svg}</div>', f"{title}\n    {text}")


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Exponents of the powers of ten that hold all the values, with room for the shortest bar to be seen."""
    low = math.floor(math.log10(min(values)) - 0.3)
    return low, max(low + 1, math.ceil(math.log10(max(values))))
