"""Checks of chapter 23's exercise, second part: which change of the constants no residual sees."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close

_BOTH = "The two columns differ in shape: no change of a is undone by one of b, so None."
_UNITS = "Lengths in millimetres make c_xx a million times smaller, and tell as much: give both columns length 1 first."
_SIGN = "Its first number that is not zero is positive."
_MINUS = "The residual changes by c_x da - c_xx db: mind the minus. And take the smallest singular value's vector."
_ORDER = "a first, then b; and lengths that you divided by divide the direction again."
_STILL = {
    (0.0, 1.0): "c_xx is 0: b may be anything, so the direction is (0, 1). No mean is taken off the columns.",
    (1.0, 0.0): "c_x is 0: a may be anything, so the direction is (1, 0). No mean is taken off the columns.",
}
_BACK = "You scaled the columns: the direction is one of a and b again after dividing by the same lengths."
X = torch.linspace(0, 1, 41, dtype=torch.float64)


def _settled(ratio: float) -> tuple[torch.Tensor, torch.Tensor]:
    slope = torch.exp(ratio * (X - 1))
    return slope, ratio * slope


def _numbers(got: Any) -> Any:
    """A tuple, a list or a tensor of floats as float64; anything else as it is."""
    if isinstance(got, (tuple, list)):
        with contextlib.suppress(Exception):
            return torch.tensor([float(part) for part in got], dtype=torch.float64)
    return got.double() if torch.is_tensor(got) and got.is_floating_point() else got


def _one(fn: Callable, c_x: torch.Tensor, c_xx: torch.Tensor, right: tuple, hint: str = "", **given: float) -> None:
    try:
        got = _numbers(fn(c_x, c_xx, **given))
    except (RuntimeError, ValueError) as error:  # of linear algebra, too
        if hint and not isinstance(error, NotImplementedError):
            error.add_note(hint)
        raise
    wanted = torch.tensor(right, dtype=torch.float64)
    wanted = wanted / wanted.norm()
    if got is None:
        raise Wrong(wanted, None, hint or "c_x da - c_xx db is 0 everywhere in this direction: it is not None.")
    c, s = wanted.tolist()
    scaled = wanted * torch.stack([c_x.norm(), c_xx.norm()])
    mistakes = [
        (-wanted, _SIGN),
        ([0.0, 0.0], "A direction has length 1. The sign of 0 is 0."),
        ([c, -s], _MINUS),  # of two columns of one length both mistakes give the same numbers
        ([-c, s], _MINUS),
        ([s, c], _STILL.get((c, s), _ORDER)),
        ([1.0, 1.0], _STILL.get((c, s), _ORDER)),
        ([s, -c], "That is the direction which is told best: take the smallest singular value's."),
        ([-s, c], "That is the direction which is told best: take the smallest singular value's."),
        (scaled / scaled.norm().clamp(min=1e-300), _BACK),
    ]
    if torch.is_tensor(got) and got.shape == (2,) and not torch.isclose(got.norm(), wanted.norm(), rtol=1e-4):
        along = got / got.norm()
        if torch.allclose(along, wanted, rtol=1e-4, atol=1e-8):
            raise Wrong(wanted, got, "A direction has length 1.")
    mistakes = [(torch.tensor(value) if isinstance(value, list) else value, advice) for value, advice in mistakes]
    expect_close(got, wanted, hint, mistakes, rtol=1e-3, atol=1e-8)


def _none(fn: Callable, c_x: torch.Tensor, c_xx: torch.Tensor, hint: str, **given: float) -> None:
    if (got := fn(c_x, c_xx, **given)) is not None:
        raise Wrong(None, got, hint)


def _wave(scale: float = 1.0, share: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """c_x of a settled profile and of a wave beside it, of which share says how large it is."""
    c_x, c_xx = _settled(5.0)
    return c_x + share * torch.cos(6 * X), scale * (c_xx - 6 * share * torch.sin(6 * X))


def _least(c_x: torch.Tensor, c_xx: torch.Tensor) -> tuple[float, float]:
    """The direction of the smallest singular value, for columns c_x and c_xx of one sign."""
    return c_xx.norm().item(), c_x.norm().item()


_ZERO = "A column of zeros tells nothing of its constant: that constant alone may move. Mind the division by 0."
_NOISE = "Noise makes no two columns exactly alike: blind below a thousandth of the largest singular value."
_WEAK = "Small, but more than a thousandth of the largest singular value: it can be told."
_GIVEN = "What counts as 0 is at most tolerance, as it was given, times the largest singular value."
_LENGTH = "Columns of one length, and tolerance times the *largest* singular value: no sum, no square, no other scale."
_SMALL, _TINY = _wave(share=5e-3), _wave(share=5e-4)  # singular values of 0.0081 and 0.00082 times the largest
EXERCISE = Exercise(
    name="blind_direction",
    chapter="23",
    cases=(
        case("A settled profile, a/b = 5", _one, *_settled(5.0), (5.0, 1.0)),
        case("A settled profile, a/b = 0.5", _one, *_settled(0.5), (0.5, 1.0)),
        case("A flow to the left, a/b = -5", _one, *_settled(-5.0), (5.0, -1.0), _SIGN),
        case("A wave beside it: both are told", _none, *_wave(), _BOTH),
        case("The same wave in other units: both are told", _none, *_wave(1e-6), _UNITS),
        case("A settled profile in other units", _one, _settled(5.0)[0], 1e-6 * _settled(5.0)[1], (5e-6, 1.0), _UNITS),
        case("A straight line: nothing of b", _one, torch.ones_like(X), torch.zeros_like(X), (0.0, 1.0), _ZERO),
        case("Where c_x is 0: nothing of a", _one, torch.zeros_like(X), torch.ones_like(X), (1.0, 0.0), _ZERO),
        case("A settled profile, nearly", _one, _settled(5.0)[0], _settled(5.0)[1] + 1e-5 * torch.sin(9 * X),
             (5.0, 1.0), _NOISE),
        case("A weak wave: both are told", _none, *_wave(share=0.02), _WEAK),
        case("A weaker wave, 0.008 of the largest: both are told", _none, *_SMALL, _WEAK),
        case("The same with tolerance 0.05", _one, *_SMALL, _least(*_SMALL), _GIVEN, tolerance=0.05),
        case("A wave of 0.0008 of the largest", _one, *_TINY, _least(*_TINY), _NOISE),
        case("The same with tolerance 0.0001: both are told", _none, *_TINY, _GIVEN, tolerance=1e-4),
        case("A strong wave, 0.7 of the largest, with tolerance 0.6: both are told", _none, *_wave(), _LENGTH,
             tolerance=0.6),
    ),
    hints=(
        "By how much does the residual of each point change, if a grows by da and b by db? When by nothing at all?",
        "Put c_x and -c_xx side by side: two columns. Which singular vector makes them nearly 0?",
        "What may scales of the columns change in your answer, and what not?",
    ),
    code=("_, sizes, directions = torch.linalg.svd(columns_N2 / lengths_2, full_matrices=False)",),
)  # fmt: skip
