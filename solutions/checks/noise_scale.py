"""Checks of chapter 13's exercise: the noise scale without bias, from the gradients of ranks.

The answer is compared with the two equations of chapter 13, solved, on gradients that are drawn here: their mean and
variance are known, so that the averages over many steps have a true value too.

Legend: S steps, R ranks, N weights.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close

NAMES = ("squared", "trace", "scale")
_BIASED = "The averaged gradient still holds noise: its |g|² is too large by tr(Σ)/B. Both batch sizes are needed."
_CLIPPED = "A step's estimate of |G|² may be negative. Clipping it at zero makes the mean too large: keep the sign."


def _drawn(steps: int, ranks: int, batch_size: int, seed: int, n: int = 6, length: float = 1.0) -> torch.Tensor:
    """Gradients (S, R, N) of batches: exact gradient of this length, each sample's of standard deviation 3 in each."""
    generator = torch.Generator().manual_seed(seed)
    exact_N = torch.full((n,), length / math.sqrt(n), dtype=torch.float64)
    noise_SRN = torch.randn(steps, ranks, n, generator=generator, dtype=torch.float64)
    return exact_N + 3 / math.sqrt(batch_size) * noise_SRN


def _lengths(gradients_SRN: torch.Tensor, large_is_sum: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each step: the mean |g|² of the ranks, and |g|² of their mean (or sum)."""
    large_SN = gradients_SRN.sum(1) if large_is_sum else gradients_SRN.mean(1)
    return gradients_SRN.square().sum(2).mean(1), large_SN.square().sum(1)


def _two_batches(
    small_S: torch.Tensor, large_S: torch.Tensor, small: int, large: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Unbiased |G|² and tr(Σ) of each step, from |g|² of a small and a large batch."""
    return (large * large_S - small * small_S) / (large - small), (small_S - large_S) / (1 / small - 1 / large)


def _steps(gradients_SRN: torch.Tensor, batch_size: int, **options: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return _two_batches(*_lengths(gradients_SRN, **options), batch_size, batch_size * gradients_SRN.shape[1])


def _right(gradients_SRN: torch.Tensor, batch_size: int) -> tuple[float, float, float]:
    squared, trace = (float(part_S.mean()) for part_S in _steps(gradients_SRN, batch_size))
    return squared, trace, trace / squared if squared > 0 and trace > 0 else math.nan


def _mistakes(gradients_SRN: torch.Tensor, batch_size: int) -> dict[str, list[tuple[float, str]]]:
    """For each of the three numbers, what well-known mistakes give."""
    ranks, small_S, large_S = gradients_SRN.shape[1], *_lengths(gradients_SRN)
    swapped = [float(part_S.mean()) for part_S in _two_batches(large_S, small_S, batch_size, batch_size * ranks)]
    summed = [float(part_S.mean()) for part_S in _steps(gradients_SRN, batch_size, large_is_sum=True)]
    first_S = gradients_SRN[:, 0].square().sum(1)
    alone = [float(part_S.mean()) for part_S in _two_batches(first_S, large_S, batch_size, batch_size * ranks)]
    squared_S, trace_S = _steps(gradients_SRN, batch_size)
    squared, trace = float(squared_S.mean()), float(trace_S.mean())
    swap = "The batch sizes are swapped: a rank's gradient is of batch_size samples, the mean of all of R times that."
    total = "The large batch's gradient is the mean over the ranks, not their sum: each rank's is itself a mean."
    lonely = "Use the mean |g|² of all ranks for the small batch: one rank's alone is a noisier estimate."
    per_batch = "That is the variance of a rank's gradient, a mean of batch_size samples. tr(Σ) is that of one sample."
    of_all = "That is the variance of the mean over all ranks' samples. tr(Σ) is that of one sample."
    population = "Divided by R, the ranks' variance about their own mean is too small; divide by R − 1."
    ratios = "That is the mean of the steps' ratios. Average |G|² and tr(Σ) by themselves; take the ratio last."
    return {
        "squared": [
            (float(large_S.mean()), _BIASED),
            (float(small_S.mean()), "A rank's |g|² holds the noise of its small batch: too large by tr(Σ)/batch_size."),
            (float(squared_S.clamp(min=0).mean()), _CLIPPED),
            *zip((swapped[0], summed[0], alone[0]), (swap, total, lonely), strict=True),
        ],
        "trace": [
            (trace / batch_size, per_batch),
            (trace / batch_size / ranks, of_all),
            (trace * (ranks - 1) / ranks, population),
            *zip((swapped[1], summed[1], alone[1]), (swap, total, lonely), strict=True),
        ],
        "scale": [
            (float((trace_S / squared_S).mean()), ratios),
            (squared / trace if trace else math.nan, "Upside down: B_simple = tr(Σ) / |G|²."),
            (math.sqrt(abs(trace / squared)), "|G|² is squared already, and so is tr(Σ): no root."),
        ],
    }


def _compare(fn: Callable, gradients_SRN: torch.Tensor, batch_size: int) -> None:
    expected, mistakes = _right(gradients_SRN, batch_size), _mistakes(gradients_SRN, batch_size)
    for name, value, wanted in zip(NAMES, _answer(fn, gradients_SRN, batch_size), expected, strict=True):
        told = [(wrong, f"{name}: {hint}") for wrong, hint in mistakes[name]]
        expect_close(value, wanted, hint=f"{name} is wrong.", mistakes=told, rtol=1e-6)


def _answer(fn: Callable, gradients_SRN: torch.Tensor, batch_size: int) -> Sequence[Any]:
    got = fn(gradients_SRN.clone(), batch_size)
    if not isinstance(got, (tuple, list)) or len(got) != len(NAMES):
        raise Wrong("a tuple (squared, trace, scale)", got, "" if got is None else "Return all three.")
    return got


def _known_answer(fn: Callable) -> None:
    """Twenty thousand steps come near the truth: |G|² = 1, tr(Σ) = 54, 54 samples"""
    squared, trace, scale = (float(value) for value in _answer(fn, _drawn(20_000, 2, 4, seed=0), 4))
    for name, value, truth in zip(NAMES, (squared, trace, scale), (1.0, 54.0, 54.0), strict=True):
        expect_close(value, truth, hint=f"{name} does not come near the truth: it is biased.", rtol=0.25)


def _cannot_be_told(fn: Callable) -> None:
    """Where the mean of |G|² is not positive, the scale is NaN, and |G|² stays what it is"""
    gradients_SRN = _drawn(2, 2, 4, seed=9, length=0.0)
    gradients_SRN[:, 1] = -0.9 * gradients_SRN[:, 0]
    squared, trace, _ = _right(gradients_SRN, 4)
    got = _answer(fn, gradients_SRN, 4)
    expect_close(got[0], squared, hint="squared is wrong.", mistakes=[(0.0, _CLIPPED)], rtol=1e-6)
    expect_close(got[1], trace, rtol=1e-6)
    hint = "These steps cannot tell the noise scale: |G|² came out negative. Say so with NaN; do not clip it to zero."
    expect_close(got[2], math.nan, hint=hint)


_HINTS = (
    "E|g|² = |G|² + tr(Σ)/B holds for B = batch_size and for B = R · batch_size. Solve for the two unknowns.",
    "Per step: small is the ranks' mean of |g|², large is |g|² of the ranks' mean gradient.",
    "trace = (small − large) / (1/b − 1/B); squared = (B · large − b · small) / (B − b); then means; then the ratio.",
)
EXERCISE = Exercise(
    name="noise_scale",
    chapter="13",
    cases=(
        case(
            "One step of two ranks, four samples each: two equations, solved",
            _compare,
            _drawn(1, 2, 4, seed=3, length=4.0),
            4,
        ),
        case(
            "Forty steps: |G|² and tr(Σ) are averaged by themselves, the ratio comes last",
            _compare,
            _drawn(40, 2, 4, seed=1),
            4,
        ),
        case("Four ranks, batches of 32", _compare, _drawn(10, 4, 32, seed=2), 32),
        _known_answer,
        _cannot_be_told,
    ),
    hints=_HINTS,
)
