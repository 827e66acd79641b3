"""Steps to a target against the batch size, with the two numbers of the curve to move: S_min and B_crit.

In: measured points, and where the sliders start. Out: points and curve, with the misfit in words. The curve is
S_min (1 + B_crit / B): McCandlish et al. 2018 (arXiv:1812.06162).
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median

from dltutorial.convergence import curves
from dltutorial.course.explorers import svg
from dltutorial.course.explorers.parts import Drawing, Explorer, Slider
from dltutorial.course.explorers.words import three
from dltutorial.course.guess import positive
from dltutorial.errors import CourseError

Points = Mapping[int, Sequence[float]]


def batches(points: Points, s_min: float, b_crit: float, best: tuple[float, float] | None = None) -> None:
    """Show measured points and a curve to move through them; arguments as of :func:`make`."""
    make(points, s_min, b_crit, best).explore()


def make(points: Points, s_min: float, b_crit: float, best: tuple[float, float] | None = None) -> Explorer:
    """Measured points, a curve to move, and how far it is from them.

    Args:
        points: batch size → steps to the target, one number a seed; nan where it was never reached.
        s_min, b_crit: where the sliders start.
        best: S_min and B_crit of a fit, whose misfit is told for comparison.

    Raises:
        CourseError: fewer than two batch sizes reached the target with most seeds, or a number that is not positive.
    """
    reached = {int(batch): _reached(values) for batch, values in sorted(points.items())}
    missing = sum(len(values) for values in points.values()) - sum(map(len, reached.values()))
    if sum(math.isfinite(_middle(values)) for values in points.values()) < 2:
        raise CourseError(
            "fewer than two batch sizes reached the target with most seeds: there is no curve; train for more steps"
        )
    best = None if best is None else (positive(best[0], "best S_min"), positive(best[1], "best B_crit"))
    axes = _axes(reached)

    def draw(s_min: float, b_crit: float) -> Drawing:
        return Drawing(_words(points, s_min, b_crit, best, missing), _picture(axes, reached, s_min, b_crit))

    controls = [
        _slider("s_min", "S_min", s_min, max(map(max, filter(None, reached.values()))), "steps",
                "Steps that no batch, however large, can save."),
        _slider("b_crit", "B_crit", b_crit, max(reached), "images", "The batch size that needs twice S_min steps."),
    ]  # fmt: skip
    return Explorer("Steps to the target against the batch size", controls, draw)


def example() -> Explorer:
    """Points that lie on a curve with S_min = 60 and B_crit = 280, and another curve to start with."""
    points = {batch: [curves.steps(batch, 60, 280)] for batch in (16, 64, 256, 1024)}
    return make(points, 200, 100, best=(60, 280))


def misfit(points: Points, s_min: float, b_crit: float) -> float:
    """By what factor the curve is typically off: e to the root mean square of ln(measured / curve).

    As in ``curves.fit``: the median seed counts, one that never reached the target is later than all that did, and a
    batch size at which half of them or more never did is left out.
    """
    middles = {batch: _middle(values) for batch, values in points.items()}
    logs = [
        math.log(middle / curves.steps(batch, s_min, b_crit))
        for batch, middle in middles.items()
        if math.isfinite(middle)
    ]
    return math.exp(math.sqrt(sum(log * log for log in logs) / len(logs)))


def _middle(values: Sequence[float]) -> float:
    """The median, by ratio; infinite where half of the seeds or more never reached the target."""
    return math.exp(median(math.log(value) if math.isfinite(value) else math.inf for value in values))


def _slider(name: str, label: str, value: float, most: float, unit: str, meaning: str) -> Slider:
    """From a thousandth of the power of ten below ``most`` to the one above; a start beyond that begins at an end."""
    low, high = 10.0 ** math.floor(math.log10(most) - 3), 10.0 ** math.ceil(math.log10(most))
    value = min(max(positive(value, label), low), high)
    return Slider(name, label, value=value, low=low, high=high, log=True, unit=unit, help=meaning)


def _words(points: Points, s_min: float, b_crit: float, best: tuple[float, float] | None, missing: int) -> str:
    words = f"S_min {s_min:,.0f} steps, B_crit {b_crit:,.0f} images: typically off by {_off(points, s_min, b_crit)}"
    if best is not None:
        words += f" (the fit: {_off(points, *best)})"
    if missing:
        words += f". {missing} runs never reached the target and are not drawn"
    return f"{words}."


def _axes(points: Points) -> svg.Axes:
    found = [steps for values in points.values() for steps in values]
    batches = (min(points) / 1.5, max(points) * 1.5)
    ticks = {float(4**n): f"{4**n:,}" for n in range(20) if batches[0] <= 4**n <= batches[1]}
    return svg.Axes(
        batches, (min(found) / 3, max(found) * 1.5), log_x=True, log_y=True, ticks_x=ticks,
        labels=("batch size, images", "steps to the target"),
    )  # fmt: skip


def _picture(axes: svg.Axes, points: Points, s_min: float, b_crit: float) -> list[str]:
    """A ring for every seed, the curve, and dashed lines at its two numbers, each with its name."""
    rings = [svg.ring(axes.x(batch), axes.y(steps), svg.BLUE) for batch, values in points.items() for steps in values]
    low, high = axes.limits_x
    batches = [low * (high / low) ** (n / 60) for n in range(61)]
    right = axes.x(b_crit) > (axes.left + axes.right) / 2
    key = [
        (svg.ring(0, 0, svg.BLUE), "measured, one seed"),
        (svg.line([(-12, 0), (12, 0)], svg.RED), "S_min (1 + B_crit / B)"),
    ]
    return [
        *axes.frame(),
        *rings,
        axes.curve([(batch, curves.steps(batch, s_min, b_crit)) for batch in batches], svg.RED),
        axes.level(s_min, svg.RED),
        axes.upright(b_crit, svg.RED),
        svg.text(axes.left + 6, axes.y(s_min) + (16 if axes.y(s_min) < axes.top + 16 else -6), f"S_min {s_min:,.0f}"),
        svg.text(axes.x(b_crit) + (-5 if right else 5), axes.bottom - 8, f"B_crit {b_crit:,.0f}",
                 anchor="end" if right else "start"),
        *svg.legend(key, axes.right - 170, axes.top + 12),
    ]  # fmt: skip


def _reached(values: Sequence[float]) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]


def _off(points: Points, s_min: float, b_crit: float) -> str:
    off = misfit(points, s_min, b_crit)
    return f"a factor of {f'{off:.2f}' if off < 10 else three(off)}"
