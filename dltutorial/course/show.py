"""Make what a learner sees: short HTML, and the same words as plain text for terminals.

The input is strings and numbers. The output is a :class:`Shown`. JupyterLab shows its HTML, which the template
``show.html`` makes, and a terminal prints its text. The colours are those of Okabe and Ito, which colour-blind readers
can distinguish (https://jfly.uni-koeln.de/color). Everything with a colour also has a word or a sign. Text has the
colour of the page, light or dark.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from dltutorial.profile.timing import three

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
RED = "#D55E00"
GREY = "#888888"
SIGNS = {"shown": "✓", "not shown here": "–", "different here": "≠", "failed": "✗"}
_COLOURS = {"shown": GREEN, "failed": RED, "different here": BLUE, "not shown here": GREY, "advice": BLUE}
_LABEL_COLOURS = {"✓": GREEN, "✗": RED, "guess": ORANGE, "model": BLUE, "measured": GREEN}
_HTML = Path(__file__).with_suffix(".html")


@dataclass(frozen=True, repr=False)
class Shown:
    """One piece of output, as HTML and as plain text."""

    html: str
    text: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Give JupyterLab both forms. IPython calls this method."""
        return {"text/html": self.html, "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


def display(item: Any, **options: Any) -> Any:
    """Show ``item`` in the notebook, or print it in a terminal.

    Args:
        item: What is shown.
        **options: Those of IPython's ``display``.

    Returns:
        IPython's handle if the options ask for it, else None.
    """
    from IPython.display import display as ipython_display

    return ipython_display(item, **options)


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this code, so that widgets can be shown."""
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def box(
    status: str,
    title: str,
    lines: Sequence[tuple[str, str]] = (),
    *,
    kind: str = "claim",
    mark: str = "",
    trace: str = "",
    hints: Sequence[str] = (),
    code: Sequence[str] = (),
) -> Shown:
    """Return a box with a sign, a title, and lines below it. The first hint is unfolded.

    Args:
        status: A key of ``SIGNS``, or "advice", which has no sign.
        title: The first line.
        lines: Pairs of a label, which may be empty, and a text.
        kind: The kind of box for style sheets: claim, check or advice.
        mark: The name of the box for screen readers. Without it, the name is the status, which then also stands in the
            first line.
        trace: Lines of code.
        hints: Hints, which are folded except for the first one.
        code: Hints that are lines of a solution. They are folded, and left out of the plain text.
    """
    sign = SIGNS.get(status, "")
    status_in_title = "" if mark or status == "shown" else status
    html = template(_HTML).module.box(
        kind,
        mark or status,
        _COLOURS[status],
        sign,
        title,
        status_in_title,
        lines,
        _LABEL_COLOURS,
        trace,
        hints,
        code,
    )
    first_line = [sign, f"({status_in_title})" if status_in_title else "", title]
    text = [" ".join(word for word in first_line if word)]
    text += [f"{label} {content}".strip() for label, content in lines]
    text += trace.splitlines()
    text += [f"hint {number}: {hint}" for number, hint in enumerate(hints, 1)]
    return Shown(str(html), "\n    ".join(text))


def advice(text: str) -> Shown:
    """Return a box with advice."""
    html = box("advice", "What to do", [("", text)], kind="advice", mark="what to do").html
    return Shown(html, f"What to do: {text}")


def line(*parts: tuple[str, str]) -> Shown:
    """Return one line of pairs (label, value). A label with an empty value is a sentence of its own."""
    html = template(_HTML).module.line(parts)
    return Shown(str(html), " · ".join(f"{label} {value}".strip() for label, value in parts))


def log_bars(title: str, bars: Sequence[tuple[str, float]], unit: str) -> Shown:
    """Return horizontal bars over decades. The last bar (the measurement) is solid, and the others are hollow.

    Args:
        title: The message of the picture in words, which screen readers read.
        bars: Pairs of a label (guess, model, or what the result is) and a value, which is positive and finite.
        unit: The unit of all values.
    """
    decades = [math.log10(value) for _, value in bars]
    low = math.floor(min(decades) - 0.3)  # 0.3 decades make the shortest bar visible
    high = max(low + 1, math.ceil(max(decades)))
    rows = []
    for (label, value), decade in zip(bars, decades, strict=True):
        rows.append((label, three(value), decade, _LABEL_COLOURS.get(label, GREEN)))  # a result has any label
    html = template(_HTML).module.log_bars(title, rows, low, high, unit)
    values = ", ".join(f"{label} {three(value)} {unit}" for label, value in bars)
    return Shown(str(html), f"{title}\n    {values}")


@functools.cache
def template(file: Path) -> Any:
    """Return a template of jinja2, which escapes plain text (https://markupsafe.palletsprojects.com)."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(file.parent), autoescape=True)
    return environment.get_template(file.name)
