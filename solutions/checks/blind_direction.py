"""Checks of chapter 23's exercise, second part: which change of the constants changes no residual.

The answer gets the slopes c_x and the curvatures c_xx of a profile at some points. The residual a c_x - b c_xx then
changes by c_x da - c_xx db. The answer returns the direction (da, db) of length 1 that changes no residual, or None if
there is none. The checks compare it with directions that are known for the profiles below.

Legend: N points.

Source: https://en.wikipedia.org/wiki/Singular_value_decomposition
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close
from dltutorial.course.checks.rank_harness import Mistakes

_RTOL = 1e-3
_ATOL = 1e-8
X = torch.linspace(0, 1, 41, dtype=torch.float64)

_BOTH = "The two columns are not parallel. No change of b cancels a change of a, so the answer is None."
_UNITS = (
    "In millimetres c_xx is a million times smaller, but the data contain the same information. "
    "First scale both columns to length 1."
)
_SIGN = "The first number that is not zero must be positive."
_MINUS = "The residual changes by c_x da - c_xx db, with a minus sign. Use the vector of the smallest singular value."
_ORDER = "Return first a, then b. If you scaled the columns, divide the direction by the same lengths."
_LARGEST = "This is the direction that the data detect best. Use the vector of the smallest singular value."
_SCALED = "You scaled the columns. Divide the direction by the same lengths to return to a and b."
_LENGTH_1 = "The direction must have length 1."
_NOT_NONE = "In this direction c_x da - c_xx db is 0 everywhere, so the answer is not None."
_HINTS_FOR_ZERO_COLUMN = {
    (0.0, 1.0): "c_xx is 0, so b can have any value: (0, 1). Do not subtract a mean from the columns.",
    (1.0, 0.0): "c_x is 0, so a can have any value: (1, 0). Do not subtract a mean from the columns.",
}
_ZERO = "A column of zeros contains nothing about its constant. Avoid the division by 0."
_NOISE = (
    "Noise makes the columns not exactly parallel. "
    "A singular value of at most a thousandth of the largest one counts as 0."
)
_WEAK = "The singular value is more than a thousandth of the largest one, so the data detect this direction."
_GIVEN = "A singular value counts as 0 if it is at most the given tolerance times the largest one."
_SCALE = "Scale the columns to length 1. Compare with tolerance times the *largest* value, without sum or square."


class Profile(NamedTuple):
    """The slopes and the curvatures of a profile, each (N,)."""

    c_x_N: Tensor
    c_xx_N: Tensor

    def direction(self) -> tuple[float, float]:
        """Return the direction of the smallest singular value, for slopes and curvatures of one sign."""
        return self.c_xx_N.norm().item(), self.c_x_N.norm().item()


def _stationary(ratio: float, length_unit: float = 1.0, noise: float = 0.0) -> Profile:
    """Return a stationary profile of a / b = ratio, in another unit of length, with some noise in its curvatures."""
    slope_N = torch.exp(ratio * (X - 1))
    return Profile(slope_N, length_unit * ratio * slope_N + noise * torch.sin(9 * X))


def _with_wave(share: float = 1.0, length_unit: float = 1.0) -> Profile:
    """Return a stationary profile plus a wave of this amplitude, in another unit of length."""
    c_x_N, c_xx_N = _stationary(5.0)
    return Profile(
        c_x_N + share * torch.cos(6 * X),
        length_unit * (c_xx_N - 6 * share * torch.sin(6 * X)),
    )


def _as_tensor(got: Any) -> Any:
    """Return a tuple, a list or a tensor of floats as float64, and anything else as it is."""
    if isinstance(got, (tuple, list)):
        with contextlib.suppress(Exception):  # a learner's list may hold anything
            return torch.tensor([float(number) for number in got], dtype=torch.float64)
    if torch.is_tensor(got) and got.is_floating_point():
        return got.double()
    return got


def _mistakes(profile: Profile, expected_2: Tensor) -> Mistakes:
    """Return the directions of known mistakes. If both columns have the same length, some of them are equal."""
    da, db = expected_2.tolist()
    order = _HINTS_FOR_ZERO_COLUMN.get((da, db), _ORDER)
    scaled_2 = expected_2 * torch.stack([profile.c_x_N.norm(), profile.c_xx_N.norm()])
    return [
        (-expected_2, _SIGN),
        (torch.zeros(2), f"{_LENGTH_1} The sign of 0 is 0, so do not multiply by it."),
        (torch.tensor([da, -db]), _MINUS),
        (torch.tensor([-da, db]), _MINUS),
        (torch.tensor([db, da]), order),
        (torch.ones(2), order),
        (torch.tensor([db, -da]), _LARGEST),
        (torch.tensor([-db, da]), _LARGEST),
        (scaled_2 / scaled_2.norm().clamp(min=1e-300), _SCALED),
    ]


def _has_other_length(got: Any, expected_2: Tensor) -> bool:
    """Return whether an answer is the direction, but with another length than 1."""
    if not torch.is_tensor(got) or got.shape != (2,) or torch.isclose(got.norm(), expected_2.norm(), rtol=1e-4):
        return False
    return torch.allclose(got / got.norm(), expected_2, rtol=1e-4, atol=_ATOL)


def _check_direction(
    fn: Callable, profile: Profile, direction: tuple[float, float], hint: str = "", **options: float
) -> None:
    """The answer must be this direction, with length 1."""
    try:
        got = _as_tensor(fn(*profile, **options))
    except (RuntimeError, ValueError) as error:  # also errors of linear algebra
        if hint and not isinstance(error, NotImplementedError):
            error.add_note(hint)
        raise
    expected_2 = torch.tensor(direction, dtype=torch.float64)
    expected_2 = expected_2 / expected_2.norm()
    if got is None:
        raise Wrong(expected_2, None, hint or _NOT_NONE)
    if _has_other_length(got, expected_2):
        raise Wrong(expected_2, got, _LENGTH_1)
    expect_close(got, expected_2, hint, _mistakes(profile, expected_2), rtol=_RTOL, atol=_ATOL)


def _check_none(fn: Callable, profile: Profile, hint: str, **options: float) -> None:
    """The answer must be None, because every change of the constants changes some residuals."""
    got = fn(*profile, **options)
    if got is not None:
        raise Wrong(None, got, hint)


_LINE = Profile(torch.ones_like(X), torch.zeros_like(X))
_NO_SLOPE = Profile(torch.zeros_like(X), torch.ones_like(X))
_MILLIMETRES = _stationary(5.0, length_unit=1e-6)
_NOISY = _stationary(5.0, noise=1e-5)
_SMALL = _with_wave(share=5e-3)  # its smaller singular value is 0.0081 times the largest
_TINY = _with_wave(share=5e-4)  # 0.00082 times the largest
_WAVE = _with_wave()
EXERCISE = Exercise(
    name="blind_direction",
    chapter="23",
    cases=(
        case("A steady profile, a/b = 5", _check_direction, _stationary(5.0), (5.0, 1.0)),
        case("A steady profile, a/b = 0.5", _check_direction, _stationary(0.5), (0.5, 1.0)),
        case("A flow to the left, a/b = -5", _check_direction, _stationary(-5.0), (5.0, -1.0), _SIGN),
        case("A steady profile and a wave: both are found", _check_none, _WAVE, _BOTH),
        case("The same wave in other units: both are found", _check_none, _with_wave(length_unit=1e-6), _UNITS),
        case("A steady profile in other units", _check_direction, _MILLIMETRES, (5e-6, 1.0), _UNITS),
        case("A straight line: nothing about b", _check_direction, _LINE, (0.0, 1.0), _ZERO),
        case("c_x is 0: nothing about a", _check_direction, _NO_SLOPE, (1.0, 0.0), _ZERO),
        case("A steady profile with noise", _check_direction, _NOISY, (5.0, 1.0), _NOISE),
        case("A weak wave: both are found", _check_none, _with_wave(share=0.02), _WEAK),
        case("A weaker wave, 0.008 of the largest: both are found", _check_none, _SMALL, _WEAK),
        case("The same with tolerance 0.05", _check_direction, _SMALL, _SMALL.direction(), _GIVEN, tolerance=0.05),
        case("A wave of 0.0008 of the largest", _check_direction, _TINY, _TINY.direction(), _NOISE),
        case("The same with tolerance 0.0001: both are found", _check_none, _TINY, _GIVEN, tolerance=1e-4),
        case(
            "A strong wave, 0.7 of the largest, with tolerance 0.6: both are found",
            _check_none,
            _WAVE,
            _SCALE,
            tolerance=0.6,
        ),
    ),
    hints=(
        "How does the residual of a point change if a changes by da and b by db? When does no residual change?",
        "Build a matrix with the columns c_x and -c_xx. Which singular vector makes its product nearly 0?",
        "If you scale the columns, what does this change in the singular vector?",
    ),
    code=("_, sizes, directions = torch.linalg.svd(columns_N2 / lengths_2, full_matrices=False)",),
)
