"""The number of updates to a target, as a function of the batch size: S = S_min (1 + B_crit / B).

In: batch sizes, and the updates that several seeds needed at each. Out: a ``Fit`` with its uncertainty. Small batches
follow S ∝ 1/B, so twice the batch size needs half the updates. Above B_crit a larger batch size saves little, and no
batch size needs fewer updates than S_min. The number of images is E = S B, and its minimum is E_min = S_min B_crit. The
two costs are related by (S / S_min - 1) (E / E_min - 1) = 1.

Source: McCandlish et al. 2018 (arXiv:1812.06162), equation 2.11. The measured curves of Shallue et al. 2018
(arXiv:1811.03600) have this shape.

Legend: P batch sizes, S seeds, K resampled fits, G grid points of B_crit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dltutorial.errors import RecipeError

_GRID_POINTS = 2000
_RESAMPLED_FITS = 500


@dataclass(frozen=True)
class Fit:
    """The curve through measured points.

    Attributes:
        s_min: updates that every batch size needs.
        b_crit: the critical batch size, which needs twice as many.
        b_crit_K: the same for resampled seeds, which are drawn with replacement at each batch size. Their spread is the
            uncertainty.
    """

    s_min: float
    b_crit: float
    b_crit_K: np.ndarray

    def steps(self, batch_size: float | np.ndarray) -> float | np.ndarray:
        """S, the updates at a batch size."""
        return steps(batch_size, self.s_min, self.b_crit)

    @property
    def b_crit_range(self) -> tuple[float, float]:
        """The interval that holds B_crit of 90% of the resampled fits."""
        low, high = np.quantile(self.b_crit_K, (0.05, 0.95))
        return float(low), float(high)


def steps(batch_size: float | np.ndarray, s_min: float, b_crit: float) -> float | np.ndarray:
    """S = S_min (1 + B_crit / B)."""
    return s_min * (1 + b_crit / batch_size)


def fit(batch_sizes: Sequence[int], steps_PS: np.ndarray) -> Fit:
    """Fit the curve to the median seed of each batch size, by least squares of ln S with equal weights.

    A seed that did not reach the target counts as later than all seeds that did. It is not dropped. A batch size is
    left out of the fit if half of its seeds or more did not reach the target.

    Args:
        batch_sizes: P of them.
        steps_PS: updates until each seed reached the target, (P, S); nan if it did not.

    Raises:
        RecipeError: Most seeds reached the target at fewer than three batch sizes; or B_crit is far outside of the
            batch sizes.
    """
    measured_PS = np.asarray(steps_PS, np.float64)
    logs_PS = np.log(measured_PS)
    logs_PS[np.isnan(logs_PS)] = np.inf
    reached_P = np.isfinite(np.median(logs_PS, 1))
    logs_PS = logs_PS[reached_P]
    sizes_P = np.asarray(batch_sizes, np.float64)[reached_P]
    if len(sizes_P) < 3:
        raise RecipeError(
            f"{len(sizes_P)} of {len(reached_P)} batch sizes reached the target with most seeds, a curve needs 3; "
            "lower the target, or train for longer"
        )
    smallest = sizes_P.min()
    largest = sizes_P.max()
    grid_G = np.geomspace(smallest / 100, largest * 100, _GRID_POINTS)
    median_1P = np.median(logs_PS, 1)[None]
    (s_min,), (b_crit,) = _least_squares(sizes_P, median_1P, grid_G)
    if b_crit >= largest * 4:
        raise RecipeError(f"the knee is above all sizes, {smallest:g} to {largest:g}; take larger ones")
    if b_crit <= smallest / 4:
        raise RecipeError(f"the knee is below all sizes, {smallest:g} to {largest:g}; take smaller ones")
    rng = np.random.default_rng(0)
    drawn_KPS = rng.integers(logs_PS.shape[1], size=(_RESAMPLED_FITS, *logs_PS.shape))
    resampled_KPS = np.take_along_axis(logs_PS[None], drawn_KPS, axis=2)
    median_KP = np.median(resampled_KPS, 2)
    median_KP = median_KP[np.isfinite(median_KP).all(1)]
    _, b_crit_K = _least_squares(sizes_P, median_KP, grid_G)
    return Fit(float(s_min), float(b_crit), b_crit_K)


def _least_squares(sizes_P: np.ndarray, logs_KP: np.ndarray, grid_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit K curves of ln S.

    For a given B_crit, the best ln S_min is a mean. Therefore only B_crit is searched, on a grid.

    Returns:
        S_min (K,) and B_crit (K,).
    """
    rest_KGP = logs_KP[:, None] - np.log1p(grid_G[:, None] / sizes_P)
    error_KG = rest_KGP.var(2)
    b_crit_K = grid_G[error_KG.argmin(1)]
    rest_KP = logs_KP - np.log1p(b_crit_K[:, None] / sizes_P)
    return np.exp(rest_KP.mean(1)), b_crit_K
