"""An explorer is a figure of a model that follows sliders.

The input is a function that draws, and the widgets that give its arguments. The output is the figure with a text above
it, and the widgets below it. Each move of a widget draws the figure again, in a fraction of a second. A page without
kernel, such as the book, shows the last figure and its text.
Source: the documentation of ipywidgets, https://ipywidgets.readthedocs.io.
"""

import html
from collections.abc import Callable, Iterable
from typing import Any

import ipywidgets
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from dltutorial.course import show
from dltutorial.record import plots

_LOOK: Any = {"style": {"description_width": "13em"}, "layout": {"width": "36em", "max_width": "100%"}}


class Explorer:
    """A figure and its widgets. A cell that ends with an explorer shows it.

    Attributes:
        draw: A function of matplotlib's axes and of the values of the widgets by name. It draws, and returns a text.
        widgets: The ipywidgets by name.
    """

    def __init__(self, draw: Callable[..., str], **widgets: Any) -> None:
        self.draw = draw
        self.widgets = widgets

    def picture(self) -> show.Shown:
        """Return the figure and its text. The text is also the alt text of the figure."""
        values = {name: widget.value for name, widget in self.widgets.items()}
        with mpl.rc_context(plots.STYLE):
            figure = Figure(figsize=(6.4, 4))
            axes = figure.add_subplot()
            text = self.draw(axes, **values)
            axes.minorticks_off()  # on logarithmic axes they take most of the time
            image = plots.image(figure, text)
        return show.Shown(f'<div class="dlt-explorer"><p>{html.escape(text)}</p>{image}</div>', text)

    def _ipython_display_(self) -> None:
        """Show the figure, and the widgets if there is a kernel. IPython calls this method."""
        shown = show.display(self.picture(), display_id=True)
        if show.in_notebook():
            for widget in self.widgets.values():
                widget.observe(lambda _: shown.update(self.picture()), names="value")
            show.display(ipywidgets.VBox(list(self.widgets.values())))


def log_slider(label: str, value: float, low: float, high: float) -> Any:
    """Return a slider from ``low`` to ``high`` with equal ratios. A ``value`` outside moves to the nearer end."""
    least, most = np.log10([low, high])
    return ipywidgets.FloatLogSlider(
        value=value, min=least, max=most, step=0.05, description=label, readout_format=".3g", **_LOOK
    )


def power_slider(label: str, value: int, low: int, high: int) -> Any:
    """Return a slider over the powers of two from ``low`` to ``high``, with ``value`` among them."""
    powers = {2**n for n in range(high.bit_length())}
    options = sorted(n for n in powers | {low, high, value} if low <= n <= high)
    return ipywidgets.SelectionSlider(options=options, value=value, description=label, **_LOOK)


def int_slider(label: str, value: int, low: int, high: int) -> Any:
    """Return a slider over all whole numbers from ``low`` to ``high``."""
    return ipywidgets.IntSlider(value=value, min=low, max=high, description=label, **_LOOK)


def choice(label: str, options: Iterable[Any], value: Any) -> Any:
    """Return a list of names, or of pairs of a name and a value, to choose from."""
    return ipywidgets.Dropdown(options=list(options), value=value, description=label, **_LOOK)


def size(n_bytes: float) -> str:
    """Return bytes with a unit, such as ``1.5 MiB``."""
    unit = "B"
    for larger_unit in ("KiB", "MiB", "GiB", "TiB"):
        if n_bytes < 1023.5:
            break
        n_bytes /= 1024
        unit = larger_unit
    return f"{n_bytes:,.4g} {unit}"
