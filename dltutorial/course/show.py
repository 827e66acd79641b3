"""What a learner sees: small pieces of HTML, each with the same words as plain text for terminals.

In: strings and numbers. Out: a :class:`Shown`, which JupyterLab renders as HTML (``show.html``) and a terminal prints
as text. Colours come from the Okabe-Ito palette, which colour-blind readers can tell apart (jfly.uni-koeln.de/color);
every coloured thing also carries a word or a sign. Text takes the colour of the page, light or dark.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from dltutorial.profile.timing import three

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SIGNS = {"shown": "✓", "not shown here": "–", "otherwise": "≠", "failed": "✗"}
_COLOURS = {"shown": GREEN, "failed": RED, "otherwise": BLUE, "not shown here": "#888888", "advice": BLUE}
_HTML = Path(__file__).with_suffix(".html")
_OF_LABEL = {"✓": GREEN, "✗": RED, "guess": ORANGE, "model": BLUE, "measured": GREEN}


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


def box(
    status: str, title: str, lines: Sequence[tuple[str, str]] = (), *, kind: str = "claim", mark: str = "",
    trace: str = "", hints: Sequence[str] = (), code: Sequence[str] = (), folded: bool = False,
) -> Shown:  # fmt: skip
    """A title with its sign, and under it what shows it; the first hint is open.

    Args:
        status: a key of ``SIGNS``, or "advice", which has no sign.
        title: the first line.
        lines: ``(label, text)``; the label may be empty.
        kind: of the box, for style sheets: claim, check, advice.
        mark: what a screen reader says of the box; empty: the status, which then stands in the first line, too.
        trace: lines of code.
        hints: folded, but for the first.
        code: hints that are lines of a solution: folded, and left out where nothing unfolds.
        folded: below the first line, all unfolds at a click.
    """
    sign, told = SIGNS.get(status, ""), "otherwise on this machine" if status == "otherwise" else status
    words = "" if mark or status == "shown" else told
    page = template(_HTML).module.box(
        kind, mark or told, _COLOURS[status], sign, title, words, lines, _OF_LABEL, trace, hints, code, folded
    )
    first = " ".join(part for part in (sign, words and f"({words})", title) if part)
    below = [f"{label} {text}".strip() for label, text in lines] + trace.splitlines()
    below += [f"hint {n}: {hint}" for n, hint in enumerate(hints, 1)]
    return Shown(str(page), "\n    ".join([first, *below]))


def advice(text: str, title: str = "What to do") -> Shown:
    """A box with one sentence of advice."""
    page = box("advice", title, [("", text)], kind="advice", mark=title.lower()).html
    return Shown(page, f"{title}: {text}")


def line(*parts: tuple[str, str]) -> Shown:
    """One short line of ``(label, value)`` pairs; a label without a value is a sentence of its own."""
    text = " · ".join(f"{label} {value}".strip() for label, value in parts)
    return Shown(str(template(_HTML).module.line(parts)), text)


def log_bars(title: str, bars: Sequence[tuple[str, float]], unit: str) -> Shown:
    """Horizontal bars over decades, the last one (the measurement) solid, those before it hollow.

    Args:
        title: what the picture says, in words; read aloud by screen readers.
        bars: ``(label, value)``: guess, model, measured; every value positive and finite.
        unit: of all the values.
    """
    rows = [(label, three(value), math.log10(value), _OF_LABEL[label]) for label, value in bars]
    decades = [decade for *_, decade, _ in rows]
    low = math.floor(min(decades) - 0.3)  # room for the shortest bar to be seen
    page = template(_HTML).module.log_bars(title, rows, low, max(low + 1, math.ceil(max(decades))), unit)
    return Shown(str(page), f"{title}\n    " + ", ".join(f"{label} {value} {unit}" for label, value, *_ in rows))


@functools.cache
def template(file: Path) -> Any:
    """A template of jinja2's; it escapes whatever comes in as plain text (markupsafe)."""
    return jinja2.Environment(loader=jinja2.FileSystemLoader(file.parent), autoescape=True).get_template(file.name)
