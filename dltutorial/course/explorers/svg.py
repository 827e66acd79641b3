"""Axes and marks of a small SVG picture, as strings: what the explorers draw with.

In: limits in the picture's own units, and where things lie. Out: SVG elements, every text in them escaped. Lines and
letters take the colour of the page, light or dark; a colour always comes with a dash, a marker or a label of its own.
The measures are made for a phone: at 350 pixels' width the letters are still 10 pixels high.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence

from dltutorial.course import show
from dltutorial.errors import CourseError

BLUE, RED, GREEN, GREY = show.BLUE, show.RED, show.GREEN, "#808080"  # each 3 : 1 or more against white and black
DASHED, DOTTED, SOLID = "7 4", "2 4", ""
WIDTH, HEIGHT, FONT = 480, 310, 14
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_FAR = 3.0  # a point beyond the axes is drawn at most so many axis lengths away: coordinates stay small numbers
Point = tuple[float, float]


class Axes:
    """Where values lie in a picture; both axes linear or logarithmic.

    Attributes:
        left, right, top, bottom: edges of the plot, in pixels of the picture.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        log_x: bool = False,
        log_y: bool = False,
        labels: tuple[str, str] = ("", ""),
        size: tuple[int, int] = (WIDTH, HEIGHT),
        margins: tuple[int, int, int, int] = (64, 16, 14, 48),
        ticks_x: Mapping[float, str] | None = None,
        ticks_y: Mapping[float, str] | None = None,
    ) -> None:
        """Axes in a picture of ``size``.

        Args:
            x, y: limits.
            log_x, log_y: whether the axis is logarithmic; its limits are positive then.
            labels: of both axes, with units.
            size: width and height of the picture.
            margins: left, right, top, bottom; what is free for ticks and labels.
            ticks_x, ticks_y: value → text; default: round numbers, or powers of ten.

        Raises:
            CourseError: limits that no axis can have.
        """
        for name, (low, high), log in (("x", x, log_x), ("y", y, log_y)):
            if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not log)):
                raise CourseError(f"the {name} axis cannot go from {low:g} to {high:g}; give finite limits in order")
        self.limits_x, self.limits_y, self.log_x, self.log_y, self.labels, self.size = x, y, log_x, log_y, labels, size
        self.left, self.right = margins[0], size[0] - margins[1]
        self.top, self.bottom = margins[2], size[1] - margins[3]
        self._ticks = (
            _ticks(x, log_x) if ticks_x is None else ticks_x,
            _ticks(y, log_y) if ticks_y is None else ticks_y,
        )

    def x(self, value: float) -> float:
        """Pixels from the left; beyond the limits it stays at the edge."""
        return min(self.right, max(self.left, self._x(value)))

    def y(self, value: float) -> float:
        """Pixels from the top; beyond the limits it stays at the edge."""
        return min(self.bottom, max(self.top, self._y(value)))

    def holds(self, x: float, y: float) -> bool:
        """Whether a point lies within the limits."""
        return all(low <= value <= high for value, (low, high) in ((x, self.limits_x), (y, self.limits_y)))

    def _x(self, value: float) -> float:
        return self.left + (self.right - self.left) * _place(value, self.limits_x, self.log_x)

    def _y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * _place(value, self.limits_y, self.log_y)

    def frame(self) -> list[str]:
        """Both axes with ticks, a faint grid, and labels."""
        grid, (ticks_x, ticks_y) = 'stroke="currentColor" opacity=".18"', self._ticks
        parts = [f'<path d="M{self.left} {self.top}V{self.bottom}H{self.right}" fill="none" stroke="currentColor"/>']
        for value, words in ticks_x.items():
            at = self.x(value)
            parts.append(f'<path d="M{at:.1f} {self.top}V{self.bottom + 4}" {grid}/>')
            at = min(at, self.size[0] - 0.3 * FONT * len(words))  # a long one at the right end stays in the picture
            parts.append(text(at, self.bottom + 18, words, anchor="middle"))
        for value, words in ticks_y.items():
            at = self.y(value)
            parts.append(f'<path d="M{self.left - 4} {at:.1f}H{self.right}" {grid}/>')
            parts.append(text(self.left - 7, at + 5, words, anchor="end"))
        parts.append(text((self.left + self.right) / 2, self.size[1] - 8, self.labels[0], anchor="middle"))
        parts.append(text(14, (self.top + self.bottom) / 2, self.labels[1], anchor="middle", turned=True))
        return parts

    def curve(self, points: Iterable[Point], colour: str, dash: str = SOLID, width: float = 2.5) -> str:
        """A line through points in the axes' units; what leaves the axes is cut off."""
        return self.cut(line([(self._x(x), self._y(y)) for x, y in points], colour, dash, width))

    def level(self, y: float, colour: str, dash: str = DASHED) -> str:
        """A horizontal line at ``y``."""
        return line([(self.left, self.y(y)), (self.right, self.y(y))], colour, dash, 1.5)

    def upright(self, x: float, colour: str, dash: str = DASHED) -> str:
        """A vertical line at ``x``."""
        return line([(self.x(x), self.top), (self.x(x), self.bottom)], colour, dash, 1.5)

    def cut(self, *parts: str) -> str:
        """Elements of which only what lies within the axes is seen."""
        box = f"{self.left} {self.top} {self.right - self.left} {self.bottom - self.top}"
        place = '<svg x="{}" y="{}" width="{}" height="{}"'.format(*box.split())
        return f'{place} viewBox="{box}">{"".join(parts)}</svg>'


def line(points: Iterable[Point], colour: str, dash: str = SOLID, width: float = 2.5) -> str:
    """A line through points in pixels."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def ring(x: float, y: float, colour: str, radius: float = 4.5, filled: bool = False) -> str:
    """A circle at a place in pixels: measured, as a rule."""
    fill = colour if filled else "none"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" stroke="{colour}" stroke-width="2"/>'


def diamond(x: float, y: float, colour: str, radius: float = 7, filled: bool = True) -> str:
    """A square on its tip at a place in pixels: what moves, as a rule."""
    path = f"M{x:.1f} {y - radius:.1f}l{radius} {radius}l{-radius} {radius}l{-radius} {-radius}z"
    return f'<path d="{path}" fill="{colour if filled else "none"}" stroke="{colour}" stroke-width="2"/>'


def bar(x: float, y: float, width: float, height: float, colour: str, fill: str = "solid") -> str:
    """A rectangle in pixels; ``fill`` is solid, striped or none."""
    width, height = max(0.0, width), max(0.0, height)
    solid = colour if fill == "solid" else "none"
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    parts = f'<rect {place} fill="{solid}" stroke="{colour}" stroke-width="1.5"/>'
    if fill != "striped" or width < 1 or height < 1:
        return parts
    gap = max(7.0, (width + height) / 60)  # a wide bar has no more than 60 stripes
    starts = (n * gap for n in range(1, int((width + height) / gap) + 1))
    stripes = "".join(f"M{x + at:.1f} {y:.1f}l{-height:.1f} {height:.1f}" for at in starts)
    box = f"{x:.1f} {y:.1f} {width:.1f} {height:.1f}"
    return f'{parts}<svg {place} viewBox="{box}"><path d="{stripes}" stroke="{colour}" stroke-width="1.5"/></svg>'


def text(
    x: float, y: float, words: str, anchor: str = "start", bold: bool = False, turned: bool = False, size: int = FONT
) -> str:
    """Words at a place in pixels, in the page's colour; ``turned`` reads upwards."""
    style = (' font-weight="bold"' if bold else "") + (f' font-size="{size}"' if size != FONT else "")
    if turned:
        style += f' transform="rotate(-90 {x:.1f} {y:.1f})"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{html.escape(words)}</text>'


def legend(entries: Sequence[tuple[str, str]], x: float, y: float) -> list[str]:
    """One line of picture and words below the other, from a place in pixels.

    Args:
        entries: (element, words); the element is drawn around (0, 0), within 12 pixels to both sides.
        x, y: of the first element.
    """
    parts = []
    for number, (element, words) in enumerate(entries):
        at = y + 19 * number
        parts.append(f'<g transform="translate({x:.1f} {at:.1f})">{element}</g>')
        parts.append(text(x + 18, at + 5, words))
    return parts


def tick_text(value: float) -> str:
    """A number as an axis has it: 0.05, 1,000, 10⁴."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:,.6g}"
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    power = "10" + str(exponent).translate(_SUPERSCRIPTS)
    factor = value / 10.0**exponent
    return power if abs(factor - 1) < 1e-6 else f"{factor:.3g}·{power}"


def _place(value: float, limits: tuple[float, float], log: bool) -> float:
    """0 at the lower limit, 1 at the upper, and not too far beyond either."""
    low, high = limits
    if log:
        if value <= 0:
            return -_FAR
        low, high, value = math.log(low), math.log(high), math.log(value)
    return min(1 + _FAR, max(-_FAR, (value - low) / (high - low)))


def _ticks(limits: tuple[float, float], log: bool, most: int = 6) -> dict[float, str]:
    """Round numbers within the limits: powers of ten, or steps of 1, 2 or 5 times one."""
    low, high = limits
    if log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        stride = max(1, math.ceil((last - first + 1) / most))
        values = [10.0**n for n in range(first, last + 1, stride)]
        if len(values) < 2:
            values = [m * 10.0**n for n in range(first - 1, last + 1) for m in (1, 2, 5)]
        return {value: tick_text(value) for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)}
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(m * power for m in (1, 2, 5, 10, 20) if (high - low) / (m * power) <= most)
    values = [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return {value: tick_text(round(value, 12)) for value in values}
