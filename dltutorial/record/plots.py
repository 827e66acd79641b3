"""Figures good enough for a talk: one style, and the pictures that more than one chapter draws.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; every series also has a label at its end or a
marker of its own. A title states the finding.
"""

import base64
import csv
import html
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, YELLOW, GREY = "#56B4E9", "#E69F00", "#6E6E6E"
STYLE: Any = {
    "figure.figsize": (8, 4.2), "figure.dpi": 110, "figure.constrained_layout.use": True, "font.size": 10.5,
    "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "axes.prop_cycle": f"cycler('color', {[c[1:] for c in (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, GREY)]})",
    "axes.formatter.min_exponent": 3,  # on a log axis 0.3, not 3 × 10⁻¹
    "grid.color": "#DDDDDD", "grid.linewidth": 0.7, "legend.frameon": False, "lines.linewidth": 2,
    "image.origin": "lower", "image.interpolation": "nearest",
}  # fmt: skip


@contextmanager
def figure(title: str, alt: str, n_rows: int = 1, n_cols: int = 1, size: tuple[float, float] | None = None) -> Iterator:
    """Draw inside ``with figure(title, alt) as ax:``; the figure is shown, with its alt text, when the block ends.

    Args:
        title: the finding, as a sentence.
        alt: what a reader who cannot see the figure should know.
        n_rows, n_cols: of axes; an array of them is yielded when there is more than one.
        size: width and height in inches.
    """
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    with mpl.rc_context(STYLE):
        fig, axes = plt.subplots(n_rows, n_cols, figsize=size)
        if n_rows * n_cols == 1:
            axes.set_title(title)
        else:
            fig.suptitle(title, x=0.01, ha="left", fontweight="bold")
        yield axes
        show(fig, alt)


def show(fig: "Figure", alt: str) -> None:
    """Display a figure as PNG with alt text, then close it. Outside a notebook nothing is displayed."""
    from IPython import get_ipython
    from IPython.display import HTML, display

    picture = HTML(image(fig, alt))
    if get_ipython() is not None:
        display(picture, metadata={"alt": alt})


def image(fig: "Figure", alt: str) -> str:
    """A figure as an HTML picture that needs no other file; the figure is closed."""
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    fig.savefig(buffer, format="png")
    plt.close(fig)
    source = f'src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}" alt="{html.escape(alt)}"'
    return f'<img class="dlt-figure" {source} style="max-width:100%;background:white">'


def roofline(
    ax: "Axes", bytes_per_s: float, flop_per_s: Mapping[str, float],
    points: Mapping[str, tuple[float, float, float]] | None = None,
) -> None:  # fmt: skip
    """Attainable speed against arithmetic intensity. Williams et al. 2009, doi:10.1145/1498765.1498785.

    Args:
        ax: gets logarithmic axes.
        bytes_per_s: the slope: memory bandwidth.
        flop_per_s: a ceiling for each dtype.
        points: name → (FLOP per byte, FLOP/s predicted, FLOP/s measured).
    """
    x = np.logspace(-2, 4, 200)
    for (name, peak), colour in zip(flop_per_s.items(), (BLUE, ORANGE, GREEN, PURPLE), strict=False):
        ax.plot(x, np.minimum(x * bytes_per_s, peak) / 1e9, color=colour)
        label: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "color": colour, "fontweight": "bold"}
        ax.annotate(f"{name} {peak / 1e9:,.0f} GFLOP/s", (x[-1], peak / 1e9), xytext=(0, 5), **label)
    for (name, (intensity, predicted, measured)), marker in zip((points or {}).items(), "osD^v", strict=False):
        ax.plot(intensity, predicted / 1e9, marker, mfc="white", mec="black", ms=9)
        ax.plot(intensity, measured / 1e9, marker, color="black", ms=9)
        ax.annotate(name, (intensity, measured / 1e9), xytext=(9, -12), textcoords="offset points")
    ax.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP per byte", ylabel="GFLOP/s")


def reference(name: str) -> list[dict[str, str]]:
    """The rows of a file of published figures in ``dltutorial/reference/``."""
    return list(csv.DictReader(line for line in _reference_lines(name) if not line.startswith("#")))


def reference_source(name: str) -> list[str]:
    """What such a file says about its figures, the source included: its comment lines."""
    return [line.lstrip("# ") for line in _reference_lines(name) if line.startswith("#")]


def _reference_lines(name: str) -> list[str]:
    return (Path(__file__).parents[1] / "reference" / f"{name}.csv").read_text(encoding="utf-8-sig").splitlines()
