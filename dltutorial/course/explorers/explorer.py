"""Show a model in a picture that follows sliders, with words that say what the picture shows.

The input is sliders, and a function that draws for their values. The output is a picture with words above it, which
changes with every move of a slider. A page without a kernel shows the last picture and its words. The sliders are
those of ipywidgets (https://ipywidgets.readthedocs.io), which the Tab key reaches and the arrow keys move. A picture
takes about 50 ms, because it omits what is slow in matplotlib: minor ticks and an automatic layout.
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
# ipywidgets gives the handle of a slider no name. This script gives screen readers the label and the readout.
# It also keeps the arrow keys for the lists, because JupyterLab would use them to go to another cell.
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
    """A title, controls, and a picture that follows them. A cell that ends with an explorer shows it.

    Attributes:
        title: The subject, which is read before the words.
        draw: A function of matplotlib's axes and of the values of the controls, which are attributes with the names of
            the controls. It draws, and returns one or two sentences.
        controls: The ipywidgets by name.
    """

    def __init__(self, title: str, draw: Callable[[Any, Any], str], **controls: Any) -> None:
        self.title = title
        self.draw = draw
        self.controls = controls

    def picture(self, **changed: Any) -> show.Shown:
        """Return picture and words for the values of the controls. The words are also the picture's alt text.

        Args:
            **changed: Values that replace those of controls.
        """
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
        """Show the picture, and the controls if there is a kernel. IPython calls this method."""
        handle = show.display(self.picture(), display_id=True)
        if show.in_notebook():
            import ipywidgets

            for control in self.controls.values():
                control.observe(lambda _: handle.update(self.picture()), names="value")
            show.display(ipywidgets.VBox(list(self.controls.values()), layout={"max_width": "100%"}))


def slider(
    label: str,
    help: str,
    value: float,
    stops: Sequence[float],
    unit: str = "",
    text: Callable | None = None,
) -> Any:
    """Return a slider.

    Args:
        label: The name of the quantity.
        help: An explanation, which is shown when the pointer rests on the slider.
        value: Where the slider starts. A value outside of the stops is moved to the nearer end.
        stops: The values at which the slider can rest, in rising order. ``value`` is added to them.
        unit: The unit of the values.
        text: A function that returns a value as text. By default, whole numbers have all digits, others three.

    Raises:
        CourseError: ``value`` is negative or not finite.
    """
    import ipywidgets

    if not (math.isfinite(value) and value >= 0):
        raise CourseError(f"{label} is {value:g}; give a positive, finite number")
    value = min(max(value, stops[0]), stops[-1])
    if text is None:
        text = "{:,}".format if isinstance(stops[0], int) else three
    options = {text(stop): stop for stop in (*stops, value)}
    return ipywidgets.SelectionSlider(
        options=sorted(options.items(), key=lambda pair: pair[1]),
        value=value,
        tooltip=help,
        style=_LABEL,
        description=f"{label} [{unit}]" if unit else label,
        layout=_LAYOUT,
    )


def geometric(low: float, high: float) -> list[float]:
    """Return 61 stops with equal ratios.

    Raises:
        CourseError: One end is 0.
    """
    if 0 in (low, high):
        raise CourseError(f"from {low:g} to {high:g} there are no equal ratios; give positive, finite numbers")
    return np.geomspace(low, high, 61).tolist()


def around(value: float, factor: float) -> list[float]:
    """Return 61 stops with equal ratios, from ``value / factor`` to ``value * factor``."""
    return geometric(value / factor, value * factor)


def whole(low: int, high: int) -> list[int]:
    """Return all whole numbers from ``low`` to ``high``. If there are more than 61, their ratio is about √2."""
    if high - low < 61:
        return list(range(low, high + 1))
    powers = [round(2 ** (n / 2)) for n in range(70)]
    return [low, *(n for n in powers if low < n < high), high]


def choice(label: str, help: str, options: Iterable[Any], value: Any) -> Any:
    """Return a list to choose from.

    Args:
        label: The name of the quantity.
        help: An explanation, which is shown when the pointer rests on the list.
        options: Names, or pairs of a name and a value.
        value: The value at which the list starts.
    """
    import ipywidgets

    return ipywidgets.Dropdown(
        options=list(options),
        value=value,
        description=label,
        tooltip=help,
        style=_LABEL,
        layout=_LAYOUT,
    )


def size(n_bytes: float) -> str:
    """Return bytes with a unit, such as ``1.5 MiB`` or ``1,010 KiB``."""
    if n_bytes < 1023.5:
        return f"{n_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        n_bytes /= 1024
        if n_bytes < 1023.5:
            return f"{three(n_bytes)} {unit}"
    return f"{three(n_bytes / 1024)} PiB"


def count(n: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 rank`` or ``2 ranks``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
