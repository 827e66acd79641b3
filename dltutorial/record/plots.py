"""Figures in one style, and the drawings that more than one chapter uses.

Input: what is drawn, a title that states the result, and a text that says it without the figure.
Output: a picture in the notebook, with this text as its alt text. The tables of published figures are read here, too.

The colours can be distinguished by colour-blind readers. Each series also has a label or its own marker.
Source of the colours: Okabe and Ito 2008, jfly.uni-koeln.de/color.
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
_CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, GREY)
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.formatter.min_exponent": 3,  # a log axis shows 0.3 instead of 3 × 10⁻¹
    "axes.grid": True,
    "axes.prop_cycle": f"cycler('color', {[colour.removeprefix('#') for colour in _CYCLE]})",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
    "figure.figsize": (8, 4.2),
    "font.size": 10.5,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.7,
    "image.interpolation": "nearest",
    "image.origin": "lower",
    "legend.frameon": False,
    "lines.linewidth": 2,
}


@contextmanager
def figure(title: str, alt: str, n_rows: int = 1, n_cols: int = 1, size: tuple[float, float] | None = None) -> Iterator:
    """Draw inside ``with figure(title, alt) as ax:``. The figure is shown when the block ends.

    Args:
        title: The result, as a sentence.
        alt: What a reader who cannot see the figure should know.
        n_rows: The number of rows of axes.
        n_cols: The number of columns of axes.
        size: Width and height in inches.

    Yields:
        The axes, or an array of them if there are several.
    """
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from IPython.display import HTML, display

    with mpl.rc_context(STYLE):
        fig, axes = plt.subplots(n_rows, n_cols, figsize=size)
        if n_rows * n_cols == 1:
            axes.set_title(title)
        else:
            fig.suptitle(title, x=0.01, ha="left", fontweight="bold")
        yield axes
        display(HTML(image(fig, alt)), metadata={"alt": alt})


def image(fig: "Figure", alt: str) -> str:
    """Convert a figure to an HTML picture that needs no other file, and close the figure."""
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    fig.savefig(buffer, format="png")
    plt.close(fig)
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<img class="dlt-figure" src="data:image/png;base64,{data}" alt="{html.escape(alt)}" '
        'style="max-width:100%;background:white">'
    )


def roofline(
    ax: "Axes",
    bytes_per_s: float,
    flop_per_s: Mapping[str, float],
    points: Mapping[str, tuple[float, float, float]] | None = None,
) -> None:
    """Draw the attainable speed against the arithmetic intensity. Williams et al. 2009, doi:10.1145/1498765.1498785.

    Args:
        ax: The axes, which become logarithmic.
        bytes_per_s: The memory bandwidth, which is the slope.
        flop_per_s: The peak of each dtype, which is a ceiling.
        points: For each name: FLOP per byte, predicted FLOP/s and measured FLOP/s.
    """
    intensity = np.logspace(-2, 4, 200)
    for (dtype, peak), colour in zip(flop_per_s.items(), (BLUE, ORANGE, GREEN, PURPLE), strict=False):
        ax.plot(intensity, np.minimum(intensity * bytes_per_s, peak) / 1e9, color=colour)
        ax.annotate(
            f"{dtype} {peak / 1e9:,.0f} GFLOP/s",
            (intensity[-1], peak / 1e9),
            xytext=(0, 5),
            textcoords="offset points",
            ha="right",
            color=colour,
            fontweight="bold",
        )
    for (name, point), marker in zip((points or {}).items(), "osD^v", strict=False):
        flop_per_byte, predicted, measured = point
        ax.plot(flop_per_byte, predicted / 1e9, marker, mfc="white", mec="black", ms=9)
        ax.plot(flop_per_byte, measured / 1e9, marker, color="black", ms=9)
        ax.annotate(name, (flop_per_byte, measured / 1e9), xytext=(9, -12), textcoords="offset points")
    ax.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP per byte", ylabel="GFLOP/s")


def reference(name: str) -> list[dict[str, str]]:
    """Read the rows of a file of published figures.

    Args:
        name: The name of a file in ``dltutorial/reference/``, without its ending.
    """
    rows = [line for line in _reference_lines(name) if not line.startswith("#")]
    return list(csv.DictReader(rows))


def reference_source(name: str) -> list[str]:
    """Read the comments of a file of published figures, which name its source."""
    return [line.lstrip("# ") for line in _reference_lines(name) if line.startswith("#")]


def _reference_lines(name: str) -> list[str]:
    """The lines of a file of published figures."""
    file = Path(__file__).parents[1] / "reference" / f"{name}.csv"
    return file.read_text(encoding="utf-8-sig").splitlines()
