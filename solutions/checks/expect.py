"""Comparing a learner's answer with the right one, so that any answer at all gives a clear word.

In: what was got, what was expected, and the values that well-known mistakes give. Out: nothing, or :class:`Wrong`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dltutorial.course.checks import Wrong

_SHOWN = 6  # numbers of an array that are put into words


def expect(got: Any, expected: Any, hint: str = "", mistakes: Sequence[tuple[Any, str]] = ()) -> None:
    """``got`` must be of the type and value of ``expected``: for strings, bools, counts, lists of them.

    Args:
        got: the learner's answer.
        expected: the right one.
        hint: for any wrong answer.
        mistakes: ``(value, hint)``: an answer equal to ``value`` gets that hint instead.

    Raises:
        Wrong: it is not.
    """
    if not _same(got, expected):
        raise Wrong(expected, got, next((advice for value, advice in mistakes if _same(got, value)), hint))


def expect_close(
    got: Any,
    expected: Any,
    hint: str = "",
    mistakes: Sequence[tuple[Any, str]] = (),
    rtol: float = 1e-4,
    atol: float = 0.0,
) -> None:
    """``got`` must be numerically ``expected``: a number, a NumPy array or a torch tensor of the same shape.

    Args:
        got: the learner's answer. Python, NumPy and torch numbers are all welcome.
        expected: the right one.
        hint: for any wrong answer.
        mistakes: ``(value, hint)``: an answer close to ``value`` gets that hint instead.
        rtol: relative tolerance.
        atol: absolute tolerance, in the unit of the answer.

    Raises:
        Wrong: another type or shape, NaN, or too far off.
    """

    def close(value: np.ndarray | None) -> bool:
        if numbers is None or value is None or numbers.shape != value.shape:
            return False
        return bool(np.isclose(numbers, value, rtol=rtol, atol=atol, equal_nan=True).all())

    numbers, wanted = as_numbers(got), as_numbers(expected)
    assert wanted is not None, "the expected answer holds no numbers"
    if numbers is None:
        raise Wrong(expected, got, "" if got is None else f"Return a number or an array, not {type(got).__name__}.")
    if close(wanted):
        return
    if numbers.shape == wanted.shape:
        right = np.isclose(numbers, wanted, rtol=rtol, atol=atol, equal_nan=True)
        if right.ravel()[:_SHOWN].all():
            expected, got = (_from(int(right.argmin()), value) for value in (wanted, numbers))
    for value, advice in mistakes:
        if close(as_numbers(value)):
            raise Wrong(expected, got, advice)
    if numbers.shape != wanted.shape:
        raise Wrong(expected, got, hint or f"The shape is {numbers.shape}, it should be {wanted.shape}.")
    raise Wrong(expected, got, hint or ("There is NaN in the answer." if np.isnan(numbers).any() else ""))


def _from(first: int, numbers: np.ndarray) -> str:
    """The numbers from that one on, and where it stands: those before it are right, and say nothing."""
    place = ", ".join(str(n) for n in np.unravel_index(first, numbers.shape))
    return f"shape {numbers.shape}, from [{place}] on: {numbers.ravel()[first : first + _SHOWN // 2].tolist()}"


def as_numbers(value: Any) -> np.ndarray | None:
    """Return a float64 array of the same shape, or None for a value that does not consist of real numbers."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu().double().numpy()
        if isinstance(value, bool) or not (isinstance(value, (int, float)) or hasattr(value, "reshape")):
            return None
        return np.asarray(value).astype(np.float64, casting="safe" if np.iscomplexobj(value) else "unsafe")
    except Exception:
        return None


def _same(got: Any, expected: Any) -> bool:
    try:
        if getattr(got, "shape", None) == ():
            got = got.item()
        return type(got) is type(expected) and bool(got == expected)
    except Exception:
        return False
