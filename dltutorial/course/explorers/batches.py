"""Steps to a target against the batch size, with the two numbers of the curve to move: S_min and B_crit."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dltutorial.convergence import curves
from dltutorial.course.explorers.explorer import Explorer, geometric, slider, three
from dltutorial.errors import CourseError
from dltutorial.record.plots import BLUE, ORANGE

Points = Mapping[int, Sequence[float]]


def batches(points: Points, s_min: float, b_crit: float, best: tuple[float, float] | None = None) -> Explorer:
    """Measured points, a curve S_min (1 + B_crit / B) to move, and how far it is from them.

    Args:
        points: batch size → steps to the target, one number a seed; nan where it was never reached.
        s_min, b_crit: where the sliders start.
        best: S_min and B_crit of a fit, whose misfit is told for comparison.

    Raises:
        CourseError: fewer than two batch sizes reached the target with most seeds, or a number that is not positive.
    """
    if sum(math.isfinite(_middle(values)) for values in points.values()) < 2:
        raise CourseError("fewer than two batch sizes reached the target with most seeds; train for more steps")
    seen = np.array([(batch, steps) for batch, values in points.items() for steps in values], float)
    reached = seen[np.isfinite(seen[:, 1])]
    batch_N = np.geomspace(reached[:, 0].min() / 1.5, reached[:, 0].max() * 1.5, 61)

    def draw(ax: Any, v: Any) -> str:
        ax.plot(*reached.T, "o", mfc="none", color=BLUE, label="measured, one seed")
        ax.plot(batch_N, curves.steps(batch_N, v.s_min, v.b_crit), color=ORANGE, label="S_min (1 + B_crit / B)")
        ax.axhline(v.s_min, color=ORANGE, ls="--", lw=1.2)
        ax.axvline(v.b_crit, color=ORANGE, ls=":", lw=1.2)
        ax.set(xscale="log", yscale="log", xlabel="batch size, images (dotted: B_crit)", xlim=batch_N[[0, -1]])
        ax.set(ylabel="steps to the target (dashed: S_min)", ylim=(min(reached[:, 1]) / 3, max(reached[:, 1]) * 1.5))
        ax.legend()
        off = _off(points, v.s_min, v.b_crit) + (f" (the fit: {_off(points, *best)})" if best else "")
        missing = len(seen) - len(reached)
        untold = f". {missing} runs never reached the target and are not drawn" if missing else ""
        return f"S_min {v.s_min:,.0f} steps, B_crit {v.b_crit:,.0f} images: typically off by {off}{untold}."

    most_b, most_s = (10.0 ** math.ceil(math.log10(most)) for most in reached.max(0))
    return Explorer(
        "Steps to the target against the batch size",
        draw,
        s_min=slider("S_min", "Steps that no batch saves.", s_min, geometric(most_s / 1e4, most_s), "steps"),
        b_crit=slider("B_crit", "Needs twice S_min steps.", b_crit, geometric(most_b / 1e4, most_b), "images"),
    )


def misfit(points: Points, s_min: float, b_crit: float) -> float:
    """By what factor the curve is typically off: e to the root mean square of ln(measured / curve).

    As in ``curves.fit``: the median seed counts, one that never reached the target is later than all that did, and a
    batch size at which half of them or more never did is left out.
    """
    off = np.log([_middle(values) / float(curves.steps(batch, s_min, b_crit)) for batch, values in points.items()])
    return float(np.exp(np.sqrt(np.mean(np.square(off[np.isfinite(off)])))))


def _middle(values: Sequence[float]) -> float:
    """The median, by ratio; infinite where half of the seeds or more never reached the target."""
    return float(np.exp(np.median(np.log(np.nan_to_num(np.asarray(values, float), nan=np.inf)))))


def _off(points: Points, s_min: float, b_crit: float) -> str:
    off = misfit(points, s_min, b_crit)
    return f"a factor of {f'{off:.2f}' if off < 10 else three(off)}"
