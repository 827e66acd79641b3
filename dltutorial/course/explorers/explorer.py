"""An explorer: a picture of a model that follows sliders, and says in words what it shows.

In: sliders, and a function that draws for their values. Out: a picture that follows every move, with the words above
it; both stay, as they were last, in a page without a kernel. The sliders are ipywidgets': the Tab key reaches them, the
arrow keys move them. A picture takes about 50 ms, without what makes matplotlib slow: minor ticks, a layout of its own.
"""

import html
import math
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from dltutorial.course import show
from dltutorial.errors import CourseError
from dltutorial.profile.timing import three
from dltutorial.record import plots

_PLAIN = {"figure.constrained_layout.use": False, "figure.figsize": (6.4, 4.1), "lines.linewidth": 2.3}
_LABEL = {"description_width": "max(16em, min(100% - 4em, (40em - 100%) * 999))"}  # above the slider on a phone
_LAYOUT = {"width": "40em", "max_width": "100%", "height": "auto", "flex_flow": "row wrap"}
# ipywidgets gives a slider's handle no name. A screen reader is told what the others see: the label and the readout.
# And JupyterLab takes the arrow keys from a list to choose from, to go to another cell, unless the list forbids it.
_NAMES = """<script>(() => {
  const area = document.currentScript?.closest(".jp-OutputArea");
  if (!area || area.dltNames) return;
  area.dltNames = new MutationObserver(() => {
    for (const slider of area.querySelectorAll(".widget-slider")) {
      const handle = slider.querySelector("[role=slider]");
      for (const [name, part] of [["aria-label", ".widget-label"], ["aria-valuetext", ".widget-readout"]]) {
        handle?.setAttribute(name, slider.querySelector(part)?.textContent ?? "");
      }
    }
    for (const list of area.querySelectorAll("select")) list.dataset.lmSuppressShortcuts = "true";
  });
  area.dltNames.observe(area, {childList: true, subtree: true, characterData: true});
})();</script>"""


class Explorer:
    """A title, sliders, and a picture that follows them; shown when a cell ends with it.

    Attributes:
        title: what is explored, read before the words.
        draw: called with axes and the controls' values, by name, as attributes; returns a sentence or two.
        controls: name → ipywidget.
    """

    def __init__(self, title: str, draw: Callable[[Any, Any], str], **controls: Any) -> None:
        self.title, self.draw, self.controls = title, draw, controls

    def picture(self, **changed: Any) -> show.Shown:
        """Picture and words as the controls stand, some of them changed; the words also are the picture's alt text."""
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator

        values = {name: control.value for name, control in self.controls.items()} | changed
        settings: Any = plots.STYLE | _PLAIN
        with mpl.rc_context(settings):
            figure = Figure()
            axes = figure.add_subplot()
            figure.subplots_adjust(left=0.13, right=0.98, bottom=0.13, top=0.95)
            words = self.draw(axes, SimpleNamespace(**values))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_minor_locator(NullLocator())
            picture = plots.image(figure, f"{self.title}. {words}")
        page = f'<div class="dlt-explorer"><div>{html.escape(words)}</div>{picture}{_NAMES}</div>'
        return show.Shown(page, f"{self.title}. {words}")

    def _ipython_display_(self) -> None:
        handle = show.display(self.picture(), display_id=True)
        if show.in_notebook():
            import ipywidgets

            for control in self.controls.values():
                control.observe(lambda _: handle.update(self.picture()), names="value")
            show.display(ipywidgets.VBox(list(self.controls.values()), layout={"max_width": "100%"}))


def slider(
    label: str, help: str, value: float, stops: Sequence[float], unit: str = "", text: Callable | None = None
) -> Any:
    """A slider that rests at ``stops``, in rising order, and at ``value``, where it starts, or at the nearer end.

    ``help`` is shown when the pointer rests on it. ``text`` of a value: three digits, or all of a whole number.
    """
    import ipywidgets

    if not (math.isfinite(value) and value >= 0):
        raise CourseError(f"{label} is {value:g}; give a positive, finite number")
    value = min(max(value, stops[0]), stops[-1])
    text = text or ("{:,}".format if isinstance(stops[0], int) else three)
    options = {text(stop): stop for stop in (*stops, value)}
    return ipywidgets.SelectionSlider(
        options=sorted(options.items(), key=lambda pair: pair[1]), value=value, tooltip=help, style=_LABEL,
        description=f"{label} [{unit}]" if unit else label, layout=_LAYOUT,
    )  # fmt: skip


def geometric(low: float, high: float) -> list[float]:
    """Stops of which each is as many times the one before. CourseError: an end is 0."""
    if 0 in (low, high):
        raise CourseError(f"from {low:g} to {high:g} there are no equal ratios; give positive, finite numbers")
    return np.geomspace(low, high, 61).tolist()


def around(value: float, factor: float) -> list[float]:
    """The same, with a measured number in the middle, the ends so many times less and more."""
    return geometric(value / factor, value * factor)


def whole(low: int, high: int) -> list[int]:
    """All whole numbers, or, if there are more than 61, those in steps of the root of two."""
    stops = range(low, high + 1) if high - low < 61 else [round(2 ** (n / 2)) for n in range(70)]
    return [low, *(n for n in stops if low < n < high), high]


def choice(label: str, help: str, options: Iterable[Any], value: Any) -> Any:
    """A list to choose from: names, or pairs of name and value."""
    import ipywidgets

    shown = {"description": label, "tooltip": help, "style": _LABEL, "layout": _LAYOUT}
    return ipywidgets.Dropdown(options=list(options), value=value, **shown)


def size(n_bytes: float) -> str:
    """Bytes as words have them: ``1.5 MiB``, ``1,010 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if n_bytes < 1023.5:
            return f"{n_bytes:.0f} B" if unit == "B" else f"{three(n_bytes)} {unit}"
        n_bytes /= 1024
    return f"{three(n_bytes)} PiB"
