"""Steps to a target against batch size: the curve S = S_min (1 + B_crit / B), and what it says of cost.

In: batch sizes and the updates that several seeds needed. Out: a ``Fit`` with its uncertainty. Small batches follow
S ∝ 1/B (twice the batch, half the updates); from B_crit on a larger batch buys little, and S_min is never passed.
With E = S B images the two costs are bound together: (S / S_min - 1) (E / E_min - 1) = 1, E_min = S_min B_crit.
McCandlish et al. 2018 (arXiv:1812.06162), equation 2.11; the measured curves of Shallue et al. 2018
(arXiv:1811.03600) look like it.

Legend: P batch sizes, S seeds, K resampled fits, G trial values of B_crit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dltutorial.errors import RecipeError

_TRIALS = 600


@dataclass(frozen=True)
class Fit:
    """The curve through measured points.

    Attributes:
        s_min: updates that no batch size can do without.
        b_crit: the batch size that needs twice as many.
        s_min_K, b_crit_K: the same, with the seeds of each batch size drawn again with replacement: their spread is
            the uncertainty.
        spread: root mean square of ln(measured / fitted) over the points.
    """

    s_min: float
    b_crit: float
    s_min_K: np.ndarray
    b_crit_K: np.ndarray
    spread: float

    def steps(self, batch_size: float | np.ndarray) -> float | np.ndarray:
        """S: updates at a batch size."""
        return steps(batch_size, self.s_min, self.b_crit)

    @property
    def e_min(self) -> float:
        """Images that no batch size can do without."""
        return self.s_min * self.b_crit

    @property
    def b_crit_range(self) -> tuple[float, float]:
        """Where 9 of 10 resampled fits have it."""
        low, high = np.quantile(self.b_crit_K, (0.05, 0.95))
        return float(low), float(high)


def steps(batch_size: float | np.ndarray, s_min: float, b_crit: float) -> float | np.ndarray:
    """S = S_min (1 + B_crit / B)."""
    return s_min * (1 + b_crit / batch_size)


def fit(batch_sizes: Sequence[int], steps_PS: np.ndarray, resampled: int = 500, seed: int = 0) -> Fit:
    """The curve nearest to the median seeds: least squares of ln S, every batch size having the same weight.

    A seed that never reached the target counts as later than all that did; it is not dropped. Batch sizes at which
    half of the seeds or more never did are not in the fit.

    Args:
        batch_sizes: P of them.
        steps_PS: (P, S) updates until each seed reached the target; nan where it did not.
        resampled, seed: K, and where it begins.

    Raises:
        RecipeError: fewer than three batch sizes at which most seeds reached the target, or no knee among them.
    """
    logs_PS = np.log(np.nan_to_num(np.asarray(steps_PS, np.float64), nan=np.inf, posinf=np.inf))
    whole = np.isfinite(np.median(logs_PS, 1))
    sizes_P, logs_PS = np.asarray(batch_sizes, dtype=np.float64)[whole], logs_PS[whole]
    if len(sizes_P) < 3:
        told = f"{len(sizes_P)} of {len(whole)} batch sizes reached the target with most seeds, a curve needs 3"
        raise RecipeError(f"{told}; lower the target, or train for longer")
    trials_G = np.geomspace(sizes_P.min() / 100, sizes_P.max() * 100, _TRIALS)
    s_min, b_crit, spread = (value[0] for value in _least_squares(sizes_P, np.median(logs_PS, 1)[None], trials_G))
    if not sizes_P.min() / 4 < b_crit < sizes_P.max() * 4:
        place, other = ("above", "larger") if b_crit > sizes_P.max() else ("below", "smaller")
        raise RecipeError(f"the knee is {place} all sizes, {sizes_P.min():g} to {sizes_P.max():g}; take {other} ones")
    drawn_KPS = np.random.default_rng(seed).integers(logs_PS.shape[1], size=(resampled, *logs_PS.shape))
    again_KP = np.median(np.take_along_axis(logs_PS[None], drawn_KPS, axis=2), 2)
    s_min_K, b_crit_K, _ = _least_squares(sizes_P, again_KP[np.isfinite(again_KP).all(1)], trials_G)
    return Fit(float(s_min), float(b_crit), s_min_K, b_crit_K, float(spread))


def _least_squares(sizes_P: np.ndarray, logs_KP: np.ndarray, trials_G: np.ndarray) -> tuple[np.ndarray, ...]:
    """S_min, B_crit and spread (K,) of K curves: for any B_crit the best S_min is a mean, so B_crit is tried out."""
    rest_KGP = logs_KP[:, None] - np.log1p(trials_G[:, None] / sizes_P)
    error_KG = ((rest_KGP - rest_KGP.mean(2)[..., None]) ** 2).mean(2)
    inner_K = error_KG.argmin(1).clip(1, len(trials_G) - 2)
    every = np.arange(len(logs_KP))
    low, mid, high = (error_KG[every, inner_K + step] for step in (-1, 0, 1))  # a parabola through three trials
    bend = low - 2 * mid + high
    shift_K = np.where(bend > 0, 0.5 * (low - high) / np.where(bend > 0, bend, 1), 0.0).clip(-1, 1)
    ratio = np.log(trials_G[1] / trials_G[0])
    b_crit_K = trials_G[inner_K] * np.exp(ratio * shift_K)
    rest_KP = logs_KP - np.log1p(b_crit_K[:, None] / sizes_P)
    return np.exp(rest_KP.mean(1)), b_crit_K, rest_KP.std(1)
