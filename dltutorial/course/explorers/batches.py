"""The explorer of chapter 12: measured steps to a target, and a curve S_min (1 + B_crit / B) to move.

The input is the steps that runs needed at several batch sizes. The output is an explorer with two logarithmic axes: the
batch size in images, and the steps. The curve is that of ``convergence.curves``.
Source: McCandlish et al. 2018, arXiv:1812.06162.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dltutorial.convergence import curves
from dltutorial.course.explorers.explorer import Explorer, log_slider
from dltutorial.record.plots import BLUE, ORANGE

Points = Mapping[int, Sequence[float]]


def misfit(points: Points, s_min: float, b_crit: float) -> float:
    """Return the factor by which the curve is typically wrong: e to the root mean square of ln(measured / curve).

    As in ``curves.fit``, the median over seeds counts. A run that never reached the target counts as later than all
    that did. A batch size is left out if half of its runs or more never reached the target.
    """
    batch_sizes = np.array(list(points))
    log_steps = np.array([np.median(np.log(np.nan_to_num(steps, nan=np.inf))) for steps in points.values()])
    logs = log_steps - np.log(curves.steps(batch_sizes, s_min, b_crit))
    return float(np.exp(np.sqrt(np.mean(logs[np.isfinite(logs)] ** 2))))


def batches(points: Points, s_min: float, b_crit: float, best: tuple[float, float]) -> Explorer:
    """Return an explorer of the two parameters of the curve.

    Args:
        points: The steps to the target for each batch size, one number per seed, or nan if a run never reached it.
        s_min: The steps S_min at which the slider starts.
        b_crit: The batch size B_crit at which the slider starts.
        best: S_min and B_crit of a fit, whose misfit is shown for comparison.
    """
    batch_sizes = np.geomspace(min(points) / 1.5, max(points) * 1.5, 61)
    finite = [steps for row in points.values() for steps in row if np.isfinite(steps)]

    def draw(ax: Any, s_min: float, b_crit: float) -> str:
        for batch, steps in points.items():
            ax.plot([batch] * len(steps), steps, "o", mfc="none", color=BLUE)
        ax.loglog(batch_sizes, curves.steps(batch_sizes, s_min, b_crit), color=ORANGE)
        ax.axhline(s_min, color=ORANGE, ls="--", lw=1.2)
        ax.axvline(b_crit, color=ORANGE, ls=":", lw=1.2)
        ax.set(xlabel="batch size, images (dotted: B_crit)", ylabel="steps to the target (dashed: S_min)")
        ax.set(xlim=batch_sizes[[0, -1]], ylim=(min(finite) / 3, max(finite) * 1.5))
        return (
            f"S_min {s_min:,.0f} steps, B_crit {b_crit:,.0f} images: typically wrong by a factor of "
            f"{misfit(points, s_min, b_crit):,.2f} (the fit: a factor of {misfit(points, *best):,.2f})."
        )

    return Explorer(
        draw,
        s_min=log_slider("S_min [steps]", s_min, max(finite) / 1e4, max(finite)),
        b_crit=log_slider("B_crit [images]", b_crit, max(points) / 1e4, max(points)),
    )
