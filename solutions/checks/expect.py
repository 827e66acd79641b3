"""Compare a learner's answer with the correct one, so that any value at all gives a clear message.

The input is the answer, the correct value, and the values of known mistakes with a hint for each. The output is nothing
if the answer is correct, and otherwise a ``Wrong`` with the hint of the mistake that gives exactly this answer.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dltutorial.course.checks import Wrong

_SHOWN = 6  # numbers of an array that a message shows


def expect(got: Any, expected: Any, hint: str = "", mistakes: Sequence[tuple[Any, str]] = ()) -> None:
    """Require the type and the value of the correct answer. It is a string, a bool, a count, or a list of these.

    Args:
        got: The learner's answer.
        expected: The correct answer.
        hint: The hint for any wrong answer.
        mistakes: Pairs of the answer that a known mistake gives and the hint for it.

    Raises:
        Wrong: The answer has another type or value.
    """
    if _is_same(got, expected):
        return
    for value, hint_for_value in mistakes:
        if _is_same(got, value):
            raise Wrong(expected, got, hint_for_value)
    raise Wrong(expected, got, hint)


def expect_close(
    got: Any,
    expected: Any,
    hint: str = "",
    mistakes: Sequence[tuple[Any, str]] = (),
    rtol: float = 1e-4,
    atol: float = 0.0,
) -> None:
    """Require the numbers of the correct answer: a number, a NumPy array or a torch tensor of the same shape.

    Args:
        got: The learner's answer. It may be a Python, NumPy or torch number.
        expected: The correct answer.
        hint: The hint for any wrong answer.
        mistakes: Pairs of the answer that a known mistake gives and the hint for it.
        rtol: The relative tolerance.
        atol: The absolute tolerance, in the unit of the answer.

    Raises:
        Wrong: The answer has another type or shape, contains NaN, or is not within the tolerances.
    """
    numbers = as_numbers(got)
    expected_numbers = as_numbers(expected)
    assert expected_numbers is not None, "the expected answer holds no numbers"
    if numbers is None:
        raise Wrong(expected, got, "" if got is None else f"Return a number or an array, not {type(got).__name__}.")
    if _are_close(numbers, expected_numbers, rtol, atol):
        return
    if numbers.shape == expected_numbers.shape:
        is_close = np.isclose(numbers, expected_numbers, rtol=rtol, atol=atol, equal_nan=True)
        if is_close.ravel()[:_SHOWN].all():  # the first numbers are correct, so a message shows later ones
            first_wrong = int(is_close.argmin())
            expected = _describe_from(first_wrong, expected_numbers)
            got = _describe_from(first_wrong, numbers)
    for value, hint_for_value in mistakes:
        if _are_close(numbers, as_numbers(value), rtol, atol):
            raise Wrong(expected, got, hint_for_value)
    raise Wrong(expected, got, hint or _default_hint(numbers, expected_numbers))


def _are_close(numbers: np.ndarray, others: np.ndarray | None, rtol: float, atol: float) -> bool:
    if others is None or numbers.shape != others.shape:
        return False
    return np.allclose(numbers, others, rtol=rtol, atol=atol, equal_nan=True)


def _default_hint(numbers: np.ndarray, expected: np.ndarray) -> str:
    """Return the hint for an answer about which the check knows nothing."""
    if numbers.shape != expected.shape:
        return f"The shape is {numbers.shape}, it should be {expected.shape}."
    if np.isnan(numbers).any():
        return "There is NaN in the answer."
    return ""


def _describe_from(first: int, numbers: np.ndarray) -> str:
    """Return some numbers from a position on, and this position."""
    position = ", ".join(str(index) for index in np.unravel_index(first, numbers.shape))
    shown = numbers.ravel()[first : first + _SHOWN // 2].tolist()
    return f"shape {numbers.shape}, from [{position}] on: {shown}"


def as_numbers(value: Any) -> np.ndarray | None:
    """Return a float64 array of the same shape, or None for a value that does not consist of real numbers."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu().double().numpy()
        if isinstance(value, bool) or not (isinstance(value, (int, float)) or hasattr(value, "reshape")):
            return None
        return np.asarray(value).astype(np.float64, casting="safe" if np.iscomplexobj(value) else "unsafe")
    except Exception:  # a learner's own class may raise anything
        return None


def _is_same(got: Any, expected: Any) -> bool:
    """Return whether an answer has this type and this value. A tensor with one number counts as the number."""
    try:
        if getattr(got, "shape", None) == ():
            got = got.item()
        return type(got) is type(expected) and bool(got == expected)
    except Exception:  # a learner's own class may raise anything
        return False
