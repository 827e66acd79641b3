"""Small pictures of how numbers spread: bars up for guesses, bars down for what was measured, on one axis.

In: finite numbers. Out: one SVG as text, with the same words for a screen reader; no script, no text from outside that
is not escaped. Guesses are hollow, measurements solid, so that the picture does not rest on colour.
"""

import html
import math
import statistics
from collections.abc import Mapping, Sequence

from dltutorial.course import show

_WIDTH, _SIDE, _BAR_H, _BINS = 400, 10, 34, 42
_TOP = _BAR_H + 16


def spread(label: str, measured: Sequence[float], unit: str) -> str:
    """How one measurement spreads over the room: solid bars, upwards."""
    axis = _Axis(measured)
    bars = _bars([value for value in measured if axis.takes(value)], axis, _TOP, "measured", up=True)
    return _svg(label, axis, _TOP, 0, bars, {"measured": measured}, unit)


def guesses(label: str, guessed: Sequence[float], measured: Sequence[float], unit: str) -> str:
    """Guesses above the axis, hollow; measurements below it, solid."""
    axis = _Axis([*guessed, *measured])
    top = _TOP if guessed else 6
    bars = _bars([value for value in guessed if axis.takes(value)], axis, top, "guesses", up=True)
    bars += _bars([value for value in measured if axis.takes(value)], axis, top, "measured", up=False)
    return _svg(label, axis, top, _BAR_H + 16, bars, {"guesses": guessed, "measured": measured}, unit)


def middle(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def _svg(
    label: str, axis: "_Axis", y: int, below: int, bars: list[str], series: Mapping[str, Sequence[float]], unit: str
) -> str:
    height = y + below + 20
    ticks = [f'<path d="M{_SIDE} {y}H{_WIDTH - _SIDE}" stroke="#5b6773"/>']
    for value in axis.ticks():
        x = axis.x(value)
        ticks.append(f'<path d="M{x:.0f} {y - 3}v6" stroke="#5b6773"/>')
        ticks.append(f'<text x="{x:.0f}" y="{height - 4}" text-anchor="middle" class="tick">{_round(value)}</text>')
    told = [
        f"{name}: median {_short(middle(values))} {unit}, from {_short(min(values))} to {_short(max(values))}"
        for name, values in series.items()
        if values
    ]
    words = html.escape(f"{label}; {'; '.join(told)}")
    return (
        f'<svg role="img" aria-label="{words}" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
        f"<title>{words}</title>{''.join(ticks + bars)}</svg>"
    )


def _bars(values: Sequence[float], axis: "_Axis", y: int, name: str, up: bool) -> list[str]:
    """One bar for each part of the axis in which there is somebody, and a mark at the median."""
    if not values:
        return []
    counts = [0] * _BINS
    for value in values:
        counts[min(_BINS - 1, int(axis.part(value) * _BINS))] += 1
    step, unit_h = (_WIDTH - 2 * _SIDE) / _BINS, _BAR_H / max(counts)
    style = f'fill="{show.GREEN}"' if name == "measured" else f'fill="none" stroke="{show.ORANGE}" stroke-width="1.5"'
    parts = []
    for number, count in enumerate(counts):
        if count:
            h, x = max(3.0, count * unit_h), _SIDE + number * step + 1
            at_y = y - h - 1 if up else y + 1
            parts.append(f'<rect x="{x:.1f}" y="{at_y:.1f}" width="{step - 2:.1f}" height="{h:.1f}" {style}/>')
    x = axis.x(middle(values))
    at_y, text_y = (y - _BAR_H - 3, y - _BAR_H - 5) if up else (y, y + _BAR_H + 13)
    anchor = "start" if x < _WIDTH * 0.2 else "end" if x > _WIDTH * 0.8 else "middle"
    parts.append(f'<path d="M{x:.1f} {at_y}v{_BAR_H + 3}" stroke="currentColor" stroke-dasharray="3 2"/>')
    parts.append(f'<text x="{x:.1f}" y="{text_y}" text-anchor="{anchor}">{name}: {_short(middle(values))}</text>')
    return parts


class _Axis:
    """Logarithmic if all is positive; else linear. Holds all the values with some room at both ends."""

    def __init__(self, values: Sequence[float]) -> None:
        positive = [value for value in values if value > 0]
        self.is_log = bool(positive) and len(positive) * 2 > len(values)  # a few impossible ones are left out
        kept = [math.log10(value) for value in positive] if self.is_log else list(values) or [0.0]
        low, high = min(kept), max(kept)
        least = 0.3 if self.is_log else max(abs(high), abs(low), 1.0) * 0.1
        room = max(0.05 * (high - low), (least - (high - low)) / 2)
        self.low, self.high = low - room, high + room

    def takes(self, value: float) -> bool:
        """Whether the value has a place here."""
        return value > 0 or not self.is_log

    def part(self, value: float) -> float:
        """Where from 0 to 1."""
        return ((math.log10(value) if self.is_log else value) - self.low) / (self.high - self.low)

    def x(self, value: float) -> float:
        """In the picture's units."""
        return _SIDE + self.part(value) * (_WIDTH - 2 * _SIDE)

    def ticks(self) -> list[float]:
        """Round numbers inside, six at most."""
        if self.is_log:
            for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
                decades = range(math.floor(self.low), math.ceil(self.high) + 1)
                found = [
                    s * 10.0**d for d in decades for s in steps if self.low <= math.log10(s * 10.0**d) <= self.high
                ]
                if len(found) <= 6:
                    return found
            return found[:: math.ceil(len(found) / 6)]
        size = 10.0 ** math.floor(math.log10((self.high - self.low) / 2))
        while (self.high - self.low) / size > 6:
            size *= 2
        return [size * n for n in range(math.ceil(self.low / size), math.floor(self.high / size) + 1)]


def _round(value: float) -> str:
    """A round number as short as it can be: 2, 0.5, 20 G."""
    short = _short(value)
    number, _, sign = short.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number and 'e' not in number else number} {sign}".rstrip()


def _short(value: float) -> str:
    """Three digits, with the prefixes that measurements have: 103 G, 8,190, 0.57."""
    for size, sign in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g} {sign}"
    return show.number(value) if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"
