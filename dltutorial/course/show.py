"""What a learner sees: small pieces of HTML, each with the same words as plain text for terminals.

In: strings and numbers. Out: a :class:`Shown`, which JupyterLab renders as HTML and a terminal prints as text.
Colours come from the Okabe-Ito palette, which colour-blind readers can tell apart (jfly.uni-koeln.de/color); every
coloured thing also carries a word or a sign. Text takes the colour of the page, light or dark.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SIGNS = {"shown": "✓", "failed": "✗", "otherwise": "≠", "not shown here": "–"}
_COLOURS = {"shown": GREEN, "failed": RED, "otherwise": BLUE, "not shown here": "#888888"}
_WORDS = {"otherwise": "otherwise on this machine"}
_BARS = {"guess": ORANGE, "model": BLUE, "measured": GREEN}
_FRAME = Markup(
    '<div class="{}" role="note" aria-label="{}" style="border-left:4px solid {};padding:.25em .8em;margin:.4em 0">'
    "{}</div>"
)


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
    sign, colour, words = SIGNS[status], _COLOURS[status], mark or _WORDS.get(status, status)
    details = tuple(detail for detail in details if detail)
    told = status != "shown" and mark is None
    first = Markup('<b style="color:{}" aria-hidden="true">{}</b> <b>{}</b>').format(colour, sign, title)
    lines = [first + Markup(" <i>({})</i>").format(words) if told else first]
    lines += [Markup('<span style="opacity:.85">{}</span>').format(detail) for detail in details]
    page = _FRAME.format("dlt-claim", words, colour, Markup("<br>").join(lines))
    return Shown(str(page), "\n    ".join([f"{sign} ({words}) {title}" if told else f"{sign} {title}", *details]))


def advice(text: str, title: str = "What to do") -> Shown:
    """A box with one sentence of advice."""
    inside = Markup("<b>{}</b><br>{}").format(title, text)
    return Shown(str(_FRAME.format("dlt-advice", title.lower(), BLUE, inside)), f"{title}: {text}")


def failed_check(
    title: str,
    passed: Sequence[str],
    failed: str,
    facts: Sequence[tuple[str, str]],
    trace: str,
    hints: Sequence[str],
) -> Shown:
    """The cases that passed, the one that did not, what was expected and got, and hints; the first is open."""
    rows = [Markup('<span style="color:{}">✓</span> {}').format(GREEN, name) for name in passed]
    rows.append(Markup('<span style="color:{}">✗</span> <b>{}</b>').format(RED, failed))
    rows += [Markup('<span style="opacity:.7">{}</span> {}').format(*fact) for fact in facts]
    page = Markup("<b>{}</b><div>{}</div>").format(title, Markup("<br>").join(rows))
    if trace:
        page += Markup('<pre style="margin:.3em 0">{}</pre>').format(trace)
    for n, hint in enumerate(hints, 1):
        unfold = Markup("<details{}><summary>hint {}</summary>{}</details>")
        page += unfold.format(Markup(" open") if n == 1 else "", n, hint)
    lines = [f"✗ {title}", *(f"✓ {name}" for name in passed), f"✗ {failed}"]
    lines += [f"{label} {value}" for label, value in facts] + trace.splitlines()
    lines += [f"hint {n}: {hint}" for n, hint in enumerate(hints, 1)]
    return Shown(str(_FRAME.format("dlt-check", "check failed", RED, page)), "\n    ".join(lines))


def line(*parts: tuple[str, str]) -> Shown:
    """One short line of ``(label, value)`` pairs; a label without a value is a sentence of its own."""
    pair = Markup('<span style="opacity:.7">{}</span> {}')
    pairs = Markup(" · ").join(pair.format(*part) if part[1] else part[0] for part in parts)
    page = Markup('<div class="dlt-line" style="margin:.3em 0">{}</div>').format(pairs)
    return Shown(str(page), " · ".join(f"{label} {value}".strip() for label, value in parts))


def number(value: float) -> str:
    """Three significant digits, without an exponent where it can be avoided: 0.0123, 45.6, 12,300."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if 1e-3 <= abs(value) < 1e7:
        rounded = float(f"{value:.3g}")
        return f"{rounded:,.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"
    return f"{value:.3g}"


def log_bars(title: str, bars: Sequence[tuple[str, float]], unit: str) -> Shown:
    """Horizontal bars over decades, the last one (the measurement) solid, those before it hollow.

    Args:
        title: what the picture says, in words; read aloud by screen readers.
        bars: ``(label, value)`` with every value positive and finite.
        unit: of all the values.
    """
    decades = [math.log10(value) for _, value in bars]
    low = math.floor(min(decades) - 0.3)  # room for the shortest bar to be seen
    high = max(low + 1, math.ceil(max(decades)))
    grid = f"background:repeating-linear-gradient(90deg,#8886 0 1px,#0000 1px {300 / (high - low):.2f}px)"
    rows = [
        Markup(
            '<tr><td style="text-align:right">{}</td><td style="padding:0;width:302px;{}"><div style="width:{:.0f}px;'
            'height:14px;border:2px solid {};background:{}"></div></td><td style="text-align:left">{} {}</td></tr>'
        ).format(
            *(label, grid, 300 * (decade - low) / (high - low), colour := _BARS.get(label, GREEN)),
            *(colour if label == bars[-1][0] else "none", number(value), unit),
        )
        for (label, value), decade in zip(bars, decades, strict=True)
    ]
    head = Markup(
        '<tr><td></td><td style="padding:0;text-align:left">{:g}<span style="float:right">{:g}</span></td></tr>'
    )
    table = Markup("<table>{}{}</table>").format(Markup().join(rows), head.format(10.0**low, 10.0**high))
    page = Markup('<div class="dlt-score"><div>{}</div><div role="img" aria-label="{}">{}</div></div>')
    text = ", ".join(f"{label} {number(value)} {unit}" for label, value in bars)
    return Shown(str(page.format(title, title, table)), f"{title}\n    {text}")
