"""Steps to a target against the batch size, with the two numbers of the curve to drag: S_min and B_crit.

In: measured points, and where the sliders start. Out: a picture that follows two sliders, with the misfit in words.
The picture is an SVG written here, so a move takes a millisecond or so; it stays, as it was last, in a page without a
kernel. The curve is S_min (1 + B_crit / B): McCandlish et al. 2018 (arXiv:1812.06162).
"""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dltutorial.convergence import curves
from dltutorial.errors import CourseError
from dltutorial.teach import show
from dltutorial.teach.guess import positive

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 620, 330, 62, 46, 14, 96
_MEASURED, _CURVE = show.BLUE, show.RED


def misfit(points: Mapping[int, Sequence[float]], s_min: float, b_crit: float) -> float:
    """By what factor the curve is typically off: e to the root mean square of ln(measured / curve).

    Every batch size counts alike, by the geometric mean of its seeds; seeds that never reached the target are left out.
    """
    logs = [
        math.log(_middle(values) / curves.steps(batch, s_min, b_crit)) for batch, values in points.items() if values
    ]
    return math.exp(math.sqrt(sum(log * log for log in logs) / len(logs)))


def _middle(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


class Explorer:
    """Measured points, a curve to move, and how far it is from them."""

    def __init__(
        self,
        points: Mapping[int, Sequence[float]],
        s_min: float,
        b_crit: float,
        best: tuple[float, float] | None = None,
    ) -> None:
        """Make the sliders; :meth:`explore` shows them.

        Args:
            points: batch size → steps to the target, one number a seed; nan where it was never reached.
            s_min, b_crit: where the sliders start.
            best: S_min and B_crit of a fit, whose misfit is told for comparison.

        Raises:
            CourseError: fewer than two batch sizes reached the target, or a number that is not positive.
        """
        import ipywidgets

        self.points = {int(batch): _reached(values) for batch, values in sorted(points.items())}
        self.missing = sum(len(values) for values in points.values()) - sum(map(len, self.points.values()))
        if sum(bool(values) for values in self.points.values()) < 2:
            raise CourseError("fewer than two batch sizes reached the target: there is no curve; train for more steps")
        self.best = None if best is None else (positive(best[0], "best S_min"), positive(best[1], "best B_crit"))
        self.axes = _Axes.of(self.points)

        def slider(name: str, value: float, most: float, tooltip: str) -> "ipywidgets.FloatLogSlider":
            low, high = math.floor(math.log10(most) - 3), math.ceil(math.log10(most))
            value = min(max(positive(value, name), 10.0**low), 10.0**high)
            return ipywidgets.FloatLogSlider(
                value=value, base=10, min=low, max=high, step=0.02, description=name, tooltip=tooltip,
                readout_format=".0f", continuous_update=True, style={"description_width": "5em"},
                layout={"width": "34em"},
            )  # fmt: skip

        most = max(max(values) for values in self.points.values() if values)
        self.s_min = slider("S_min", s_min, most, "steps that no batch, however large, can save")
        self.b_crit = slider("B_crit", b_crit, max(self.points), "batch that needs twice S_min steps")

    def explore(self) -> None:
        """Show the picture, and the sliders under it, which the arrow keys move too."""
        handle = show.display(self.picture(), display_id=True)
        if show.in_notebook():
            import ipywidgets

            for slider in (self.s_min, self.b_crit):
                slider.observe(lambda _: handle.update(self.picture()), names="value")
            show.display(ipywidgets.VBox([self.s_min, self.b_crit]))

    def picture(self) -> show.Shown:
        """Points and curve as the sliders stand, and the misfit in words."""
        s_min, b_crit = self.s_min.value, self.b_crit.value
        words = f"S_min {s_min:,.0f} steps, B_crit {b_crit:,.0f}: typically off by {_off(self.points, s_min, b_crit)}"
        if self.best is not None:
            words += f" (the fit: {_off(self.points, *self.best)})"
        if self.missing:
            words += f". {self.missing} runs never reached the target and are not drawn"
        title = f"Steps to the target against the batch size. {words}."
        parts = [*self.axes.frame(), *self._points(), *self._curve(s_min, b_crit), *_legend()]
        svg = (
            f'<svg role="img" aria-label="{html.escape(title)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
            f'height="{_HEIGHT}" style="max-width:100%;font-size:12px" fill="currentColor">'
            f"<title>{html.escape(title)}</title>{''.join(parts)}</svg>"
        )
        return show.Shown(f'<div class="dlt-explorer"><div>{html.escape(words)}.</div>{svg}</div>', title)

    def _points(self) -> list[str]:
        """A ring for every seed."""
        x, y = self.axes.x, self.axes.y
        return [
            f'<circle cx="{x(batch):.1f}" cy="{y(steps):.1f}" r="4" fill="none" stroke="{_MEASURED}" stroke-width="2"/>'
            for batch, values in self.points.items()
            for steps in values
        ]

    def _curve(self, s_min: float, b_crit: float) -> list[str]:
        """The curve, and dashed lines at the two numbers, each with its name."""
        x, y, (low, high) = self.axes.x, self.axes.y, self.axes.batches
        batches = [low * (high / low) ** (n / 60) for n in range(61)]
        path = " ".join(f"{x(batch):.1f},{y(curves.steps(batch, s_min, b_crit)):.1f}" for batch in batches)
        dashed = f'stroke="{_CURVE}" stroke-width="1.5" stroke-dasharray="5 4"'
        at_x, at_y = x(b_crit), y(s_min)
        return [
            f'<polyline points="{path}" fill="none" stroke="{_CURVE}" stroke-width="2.5"/>',
            f'<path d="M{_LEFT} {at_y:.1f}H{_WIDTH - _RIGHT}" {dashed}/>',
            f'<path d="M{at_x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" {dashed}/>',
            f'<text x="{_WIDTH - _RIGHT + 5}" y="{at_y + 4:.1f}">S_min {s_min:,.0f}</text>',
            f'<text x="{at_x + 5:.1f}" y="{_TOP + 11}">B_crit {b_crit:,.0f}</text>',
        ]


@dataclass(frozen=True)
class _Axes:
    """Where a batch size and a number of steps lie; both axes are logarithmic."""

    batches: tuple[float, float]
    steps: tuple[float, float]

    @classmethod
    def of(cls, points: Mapping[int, Sequence[float]]) -> "_Axes":
        found = [steps for values in points.values() for steps in values]
        return cls((min(points) / 1.5, max(points) * 1.5), (min(found) / 3, max(found) * 1.5))

    def x(self, batch: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * _place(batch, self.batches)

    def y(self, steps: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * _place(steps, self.steps)

    def frame(self) -> list[str]:
        """Lines, ticks at powers (of 4 for batches, of 10 for steps), labels."""
        base, right, grid = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, 'stroke="currentColor" opacity=".2"'
        parts = [f'<path d="M{_LEFT} {_TOP}V{base}H{right}" fill="none" stroke="currentColor"/>']
        for batch in _powers(4, self.batches):
            parts.append(f'<path d="M{self.x(batch):.1f} {_TOP}V{base + 4}" {grid}/>')
            parts.append(f'<text x="{self.x(batch):.1f}" y="{base + 17}" text-anchor="middle">{batch:,}</text>')
        for steps in _powers(10, self.steps):
            parts.append(f'<path d="M{_LEFT - 4} {self.y(steps):.1f}H{right}" {grid}/>')
            parts.append(f'<text x="{_LEFT - 7}" y="{self.y(steps) + 4:.1f}" text-anchor="end">{steps:,}</text>')
        middle = (_TOP + base) / 2
        parts.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">batch size</text>')
        turned = f'text-anchor="middle" transform="rotate(-90 14 {middle})"'
        parts.append(f'<text x="14" y="{middle}" {turned}>steps to the target</text>')
        return parts


def _legend() -> list[str]:
    x, y = _WIDTH - _RIGHT - 150, _TOP + 12
    return [
        f'<circle cx="{x}" cy="{y - 4}" r="4" fill="none" stroke="{_MEASURED}" stroke-width="2"/>',
        f'<text x="{x + 22}" y="{y}">measured, one seed</text>',
        f'<path d="M{x - 10} {y + 14}h20" stroke="{_CURVE}" stroke-width="2.5"/>',
        f'<text x="{x + 22}" y="{y + 18}">S_min (1 + B_crit / B)</text>',
    ]


def _place(value: float, limits: tuple[float, float]) -> float:
    """0 at the lower limit, 1 at the upper; beyond them it stays at the edge."""
    low, high = map(math.log, limits)
    return min(1.0, max(0.0, (math.log(value) - low) / (high - low)))


def _powers(base: int, limits: tuple[float, float]) -> list[int]:
    return [base**n for n in range(20) if limits[0] <= base**n <= limits[1]]


def _reached(values: Sequence[float]) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]


def _off(points: Mapping[int, Sequence[float]], s_min: float, b_crit: float) -> str:
    return f"a factor of {misfit(points, s_min, b_crit):.2f}"
