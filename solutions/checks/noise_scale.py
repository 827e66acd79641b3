"""Checks of chapter 13's exercise: the noise scale without bias, from the gradients of ranks.

The answer gets the gradients of all ranks in some steps, and returns the unbiased |G|², tr(Σ) and their ratio, the
noise scale. The checks compare it with the solution of the two equations of chapter 13. The gradients are drawn here
with a known mean and variance, so that their averages over many steps have a true value.

Legend: S steps, R ranks, N weights.

Source: McCandlish et al. 2018, arXiv:1812.06162
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close

NAMES = ("squared", "trace", "scale")
_BIASED = "The averaged gradient still holds noise, so its |g|² is too large by tr(Σ)/B. Use both batch sizes."
_SMALL = "The |g|² of a rank contains the noise of a small batch. It is too large by tr(Σ)/batch_size."
_CLIPPED = "|G|² of a single step may be negative. If you replace it by zero, the mean is too large. Keep the sign."
_SWAPPED = "The batch sizes are swapped. The small batch has batch_size samples, the large batch has R times as many."
_SUM = "The gradient of the large batch is the mean over the ranks, not their sum, because each rank's loss is a mean."
_ONE_RANK = "Use the mean |g|² of all ranks for the small batch. One rank alone gives an estimate with more noise."
_PER_BATCH = "This is the variance of a rank's gradient, a mean over batch_size samples. tr(Σ) is that of one sample."
_OF_ALL = "This is the variance of the mean over all ranks' samples. tr(Σ) is that of one sample."
_POPULATION = "The variance of the ranks around their own mean is too small if you divide by R. Divide by R − 1."
_RATIOS = "That is the mean of the steps' ratios. Average |G|² and tr(Σ) first. Take the ratio last."
_UPSIDE_DOWN = "Upside down: the noise scale is tr(Σ) / |G|²."
_ROOT = "|G|² and tr(Σ) are squared values already, so take no root."
_NAN = "The mean of |G|² is negative, so these steps are not sufficient. Say so with NaN. Do not replace it by zero."


class _Estimates(NamedTuple):
    """The unbiased |G|² and tr(Σ) of each step, each (S,)."""

    squared_S: Tensor
    trace_S: Tensor

    def means(self) -> tuple[float, float]:
        """Return the means over the steps."""
        return float(self.squared_S.mean()), float(self.trace_S.mean())


def _draw(n_steps: int, n_ranks: int, batch_size: int, seed: int, length: float = 1.0) -> Tensor:
    """Return gradients of batches, (S, R, N). The exact gradient has this length, and each sample the deviation 3."""
    n_weights = 6
    generator = torch.Generator().manual_seed(seed)
    exact_N = torch.full((n_weights,), length / math.sqrt(n_weights), dtype=torch.float64)
    noise_SRN = torch.randn(n_steps, n_ranks, n_weights, generator=generator, dtype=torch.float64)
    return exact_N + 3 / math.sqrt(batch_size) * noise_SRN


def _estimate(small_S: Tensor, large_S: Tensor, small: int, large: int) -> _Estimates:
    """Solve the two equations, from |g|² of a small and of a large batch and the sizes of these batches."""
    squared_S = (large * large_S - small * small_S) / (large - small)
    trace_S = (small_S - large_S) / (1 / small - 1 / large)
    return _Estimates(squared_S, trace_S)


def _small_S(gradients_SRN: Tensor) -> Tensor:
    """Return the mean over the ranks of |g|²."""
    return gradients_SRN.square().sum(2).mean(1)


def _large_S(gradients_SRN: Tensor) -> Tensor:
    """Return |g|² of the mean gradient."""
    return gradients_SRN.mean(1).square().sum(1)


def _correct(gradients_SRN: Tensor, batch_size: int) -> _Estimates:
    n_samples = batch_size * gradients_SRN.shape[1]
    return _estimate(_small_S(gradients_SRN), _large_S(gradients_SRN), batch_size, n_samples)


def _mistakes(gradients_SRN: Tensor, batch_size: int) -> dict[str, list[tuple[float, str]]]:
    """Return for each of the three numbers the values of known mistakes."""
    n_ranks = gradients_SRN.shape[1]
    n_samples = batch_size * n_ranks
    small_S = _small_S(gradients_SRN)
    large_S = _large_S(gradients_SRN)
    sum_S = gradients_SRN.sum(1).square().sum(1)
    one_rank_S = gradients_SRN[:, 0].square().sum(1)
    correct = _correct(gradients_SRN, batch_size)
    squared, trace = correct.means()
    mistakes = {
        "squared": [
            (float(large_S.mean()), _BIASED),
            (float(small_S.mean()), _SMALL),
            (float(correct.squared_S.clamp(min=0).mean()), _CLIPPED),
        ],
        "trace": [
            (trace / batch_size, _PER_BATCH),
            (trace / n_samples, _OF_ALL),
            (trace * (n_ranks - 1) / n_ranks, _POPULATION),
        ],
        "scale": [
            (float((correct.trace_S / correct.squared_S).mean()), _RATIOS),
            (squared / trace, _UPSIDE_DOWN),
            (math.sqrt(abs(trace / squared)), _ROOT),
        ],
    }
    for estimates, hint in (
        (_estimate(large_S, small_S, batch_size, n_samples), _SWAPPED),
        (_estimate(small_S, sum_S, batch_size, n_samples), _SUM),
        (_estimate(one_rank_S, large_S, batch_size, n_samples), _ONE_RANK),
    ):
        wrong_squared, wrong_trace = estimates.means()
        mistakes["squared"].append((wrong_squared, hint))
        mistakes["trace"].append((wrong_trace, hint))
    return mistakes


def _call(fn: Callable, gradients_SRN: Tensor, batch_size: int) -> Sequence[Any]:
    """Return the answer's three numbers."""
    got = fn(gradients_SRN.clone(), batch_size)
    if isinstance(got, (tuple, list)) and len(got) == len(NAMES):
        return got
    raise Wrong("a tuple (squared, trace, scale)", got, "" if got is None else "Return all three.")


def _check(fn: Callable, gradients_SRN: Tensor, batch_size: int) -> None:
    """The answer must be the solution of the two equations."""
    squared, trace = _correct(gradients_SRN, batch_size).means()
    expected = (squared, trace, trace / squared)
    mistakes = _mistakes(gradients_SRN, batch_size)
    for name, got, value in zip(NAMES, _call(fn, gradients_SRN, batch_size), expected, strict=True):
        named = [(wrong, f"{name}: {hint}") for wrong, hint in mistakes[name]]
        expect_close(got, value, hint=f"{name} is wrong.", mistakes=named, rtol=1e-6)


def _check_truth(fn: Callable) -> None:
    """Twenty thousand steps come close to the true values: |G|² = 1, tr(Σ) = 54, noise scale 54"""
    got = _call(fn, _draw(20_000, 2, 4, seed=0), 4)
    for name, value, truth in zip(NAMES, got, (1.0, 54.0, 54.0), strict=True):
        expect_close(float(value), truth, hint=f"{name} does not come close to the truth, so it is biased.", rtol=0.25)


def _check_negative(fn: Callable) -> None:
    """If the mean of |G|² is not positive, the noise scale is NaN, and |G|² stays negative"""
    gradients_SRN = _draw(2, 2, 4, seed=9, length=0.0)
    gradients_SRN[:, 1] = -0.9 * gradients_SRN[:, 0]
    squared, trace = _correct(gradients_SRN, 4).means()
    got = _call(fn, gradients_SRN, 4)
    expect_close(got[0], squared, hint="squared is wrong.", mistakes=[(0.0, _CLIPPED)], rtol=1e-6)
    expect_close(got[1], trace, rtol=1e-6)
    expect_close(got[2], math.nan, hint=_NAN)


_HINTS = (
    "E|g|² = |G|² + tr(Σ)/B holds for B = batch_size and for B = R · batch_size. Solve these two equations.",
    "For each step, small is the mean over the ranks of |g|², and large is the |g|² of the mean gradient.",
    "trace = (small − large) / (1/b − 1/B) and squared = (B · large − b · small) / (B − b). Then average, then divide.",
)
EXERCISE = Exercise(
    name="noise_scale",
    chapter="13",
    cases=(
        case(
            "One step of two ranks with four samples each: solve two equations",
            _check,
            _draw(1, 2, 4, seed=3, length=4.0),
            4,
        ),
        case(
            "Forty steps: average |G|² and tr(Σ), and divide last",
            _check,
            _draw(40, 2, 4, seed=1),
            4,
        ),
        case("Four ranks, batches of 32", _check, _draw(10, 4, 32, seed=2), 32),
        _check_truth,
        _check_negative,
    ),
    hints=_HINTS,
)
