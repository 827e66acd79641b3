"""A chart as SVG inside the page: once for a wide page and once for a phone, light and dark.

In: a function that draws on axes. Out: a figure with its finding above, its source below, and words for who cannot
see it. Text stays text and colours become the page's own variables, so a chart takes part in the page's dark theme.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dltutorial.course.reporting import pick
from dltutorial.course.reporting.parts import Html, text
from dltutorial.record import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vPX*"
COLOURS = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.PURPLE, plots.SKY, plots.YELLOW)
INK = "#000001"  # matplotlib leaves out a fill of pure black
_VARIABLES = {
    **{colour.lower(): f"var(--c{n})" for n, colour in enumerate(COLOURS)},
    **{
        plots.GREY.lower(): "var(--soft)",
        "#dddddd": "var(--grid)",
        "#ffffff": "var(--card)",
        "#000000": "var(--ink)",
        INK: "var(--ink)",
    },
}
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_WASTE = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>|<style[^>]*>.*?</style>| xmlns(:\w+)?=\"[^\"]*\"", re.S)
_FAMILY = re.compile(r"font-family: [^;\"]*;?|(font: (?:\w+ )?[\d.]+px) [^;\"]*")
_SIZE = re.compile(r'(<svg) width="[^"]*" height="[^"]*"| width="[\d.]+pt" height="[\d.]+pt"')
_WIDE_IN, _NARROW_IN = 10.0, 4.4


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        title: the finding, a sentence.
        alt: what a reader who cannot see it should know.
        draw: draws it on axes; told whether the page is narrow.
        source: where published figures come from.
        height: in inches on a wide page.
        narrow: in inches on a phone.
    """

    title: str
    alt: str
    draw: "Callable[[Axes, bool], None]"
    source: str = ""
    height: float = 3.9
    narrow: float = 4.2

    def html(self) -> Html:
        """The figure, drawn for both widths."""
        pictures = "".join(
            f'<div class="{kind}">{self._svg(is_narrow)}</div>' for kind, is_narrow in (("wide", 0), ("narrow", 1))
        )
        below = f'<p class="source">{text(self.source)}</p>' if self.source else ""
        return Html(f"<figure><figcaption>{text(self.title)}</figcaption>{pictures}{below}</figure>")

    def _svg(self, narrow: bool) -> str:
        import matplotlib as mpl

        made: list[str] = []
        size = (_NARROW_IN, self.narrow) if narrow else (_WIDE_IN, self.height)
        # Ids differ from chart to chart by their salt.
        options = {"svg.fonttype": "none", "svg.hashsalt": f"{self.title} {narrow}"}
        with warnings.catch_warnings(), mpl.rc_context(options):
            warnings.simplefilter("ignore")  # a sign that the font lacks is drawn by the browser's
            with plots.figure("", self.alt, size=size, to=lambda fig, alt: made.append(_as_svg(fig))) as ax:
                self.draw(ax, narrow)
        return made[0].replace("<svg", f'<svg role="img" aria-label="{text(self.alt)}"', 1)


def legend(ax: "Axes", narrow: bool, columns: int = 1) -> None:
    """The legend beside the axes, or below them on a phone."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        where = "outside lower left" if narrow else "outside right upper"
        ax.figure.legend(handles, labels, loc=where, ncols=columns if narrow else 1, fontsize=9.5)


def label(words: object, most: int = 40) -> str:
    """Words of a record beside an axis: short, and as they are, for matplotlib would read dollars as mathematics."""
    return pick.short(words, most).replace("$", r"\$")


def plain(ax: "Axes", axis: str) -> None:
    """A logarithmic axis with whole numbers instead of powers of ten."""
    getattr(ax, f"set_{axis}scale")("log")
    getattr(ax, f"{axis}axis").set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    getattr(ax, f"{axis}axis").minorticks_off()


def times(ax: "Axes", axis: str, ticks: tuple[float, ...]) -> None:
    """A logarithmic axis in multiples, with ticks where they are wanted and nowhere else."""
    labels = [f"{tick:g} ×" if tick >= 1 else f"1/{1 / tick:g} ×" for tick in ticks]
    getattr(ax, f"set_{axis}scale")("log")
    getattr(ax, f"set_{axis}ticks")(ticks, labels)
    getattr(ax, f"{axis}axis").minorticks_off()


def ranks(ax: "Axes", numbers: list[int]) -> None:
    """A logarithmic axis of few whole numbers."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(numbers, [f"{n:,}" for n in numbers])
    ax.minorticks_off()


def _as_svg(fig: "Figure") -> str:
    import io

    import matplotlib.pyplot as plt

    buffer = io.StringIO()
    fig.patch.set_visible(False)
    for ax in fig.axes:
        ax.patch.set_visible(False)
    fig.savefig(buffer, format="svg")
    plt.close(fig)
    return _own(buffer.getvalue())


def _own(svg: str) -> str:
    """matplotlib's SVG as a part of the page: its size, font and colours are the page's."""
    svg = _WASTE.sub("", svg)
    svg = re.sub(r"<g id=\"[^\"]*\"", "<g", svg)  # nothing refers to these, and all charts have the same
    svg = _SIZE.sub(r"\1", svg, count=1)
    svg = _FAMILY.sub(lambda font: f"{font[1]} system-ui, sans-serif" if font[1] else "", svg)
    svg = _COLOUR.sub(lambda colour: _VARIABLES.get(colour[0], colour[0]), svg)
    return re.sub(r"\n\s*", "\n", svg)
