"""The explorer of chapter 12: measured steps to a target, and a curve S_min (1 + B_crit / B) to move.

The input is the steps that runs needed at several batch sizes. The output is an explorer with two logarithmic axes: the
batch size in images, and the steps. The curve is that of ``convergence.curves``.
Source: McCandlish et al. 2018, arXiv:1812.06162.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dltutorial.convergence import curves
from dltutorial.course.explorers.explorer import Explorer, geometric, slider
from dltutorial.errors import CourseError
from dltutorial.record.plots import BLUE, ORANGE

Points = Mapping[int, Sequence[float]]


def batches(points: Points, s_min: float, b_crit: float, best: tuple[float, float]) -> Explorer:
    """Return an explorer of the two parameters of the curve.

    Args:
        points: The steps to the target for each batch size, one number per seed, or nan if a run never reached it.
        s_min: The steps S_min at which the slider starts.
        b_crit: The batch size B_crit at which the slider starts.
        best: S_min and B_crit of a fit, whose misfit is shown for comparison.

    Raises:
        CourseError: Fewer than two batch sizes reached the target with most seeds, or a number is not positive.
    """
    if sum(math.isfinite(_median(steps)) for steps in points.values()) < 2:
        raise CourseError("fewer than two batch sizes reached the target with most seeds; train for more steps")
    pairs = [(batch, n_steps) for batch, steps in points.items() for n_steps in steps]
    reached = np.array([pair for pair in pairs if math.isfinite(pair[1])], dtype=float)
    batch_sizes = np.array(geometric(reached[:, 0].min() / 1.5, reached[:, 0].max() * 1.5))
    n_missing = len(pairs) - len(reached)
    missing = f". {n_missing} runs never reached the target and are not drawn" if n_missing else ""

    def draw(ax: Any, values: Any) -> str:
        ax.plot(*reached.T, "o", mfc="none", color=BLUE, label="measured, one seed")
        steps = curves.steps(batch_sizes, values.s_min, values.b_crit)
        ax.plot(batch_sizes, steps, color=ORANGE, label="S_min (1 + B_crit / B)")
        ax.axhline(values.s_min, color=ORANGE, ls="--", lw=1.2)
        ax.axvline(values.b_crit, color=ORANGE, ls=":", lw=1.2)
        ax.set(xscale="log", xlabel="batch size, images (dotted: B_crit)", xlim=batch_sizes[[0, -1]])
        ax.set(yscale="log", ylabel="steps to the target (dashed: S_min)")
        ax.set(ylim=(reached[:, 1].min() / 3, reached[:, 1].max() * 1.5))
        ax.legend()
        return (
            f"S_min {values.s_min:,.0f} steps, B_crit {values.b_crit:,.0f} images: typically off by a factor of "
            f"{misfit(points, values.s_min, values.b_crit):,.2f} (the fit: a factor of "
            f"{misfit(points, *best):,.2f}){missing}."
        )

    most_images, most_steps = (10.0 ** math.ceil(math.log10(most)) for most in reached.max(0))
    return Explorer(
        "Steps to the target against the batch size",
        draw,
        s_min=slider("S_min", "Steps that no batch saves.", s_min, geometric(most_steps / 1e4, most_steps), "steps"),
        b_crit=slider(
            "B_crit", "Needs twice S_min steps.", b_crit, geometric(most_images / 1e4, most_images), "images"
        ),
    )


def misfit(points: Points, s_min: float, b_crit: float) -> float:
    """Return the factor by which the curve is typically wrong: e to the root mean square of ln(measured / curve).

    As in ``curves.fit``, the median over seeds counts. A run that never reached the target counts as later than all
    that did. A batch size is left out if half of its runs or more never reached the target.
    """
    logs = []
    for batch, steps in points.items():
        measured = _median(steps)
        if math.isfinite(measured):
            logs.append(math.log(measured / float(curves.steps(batch, s_min, b_crit))))
    return float(np.exp(np.sqrt(np.mean(np.square(logs)))))


def _median(steps: Sequence[float]) -> float:
    """Return the geometric median. It is infinite if half of the runs or more never reached the target."""
    reached = np.nan_to_num(np.asarray(steps, float), nan=np.inf, posinf=np.inf)
    return float(np.exp(np.median(np.log(reached))))
