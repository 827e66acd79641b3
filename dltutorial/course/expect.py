"""Comparing a learner's answer with the right one, so that any answer at all gives a clear word.

In: what was got, what was expected, and the values that well-known mistakes give. Out: nothing, or :class:`Wrong`.
"""

import math
from collections.abc import Sequence
from typing import Any


class Wrong(Exception):
    """An answer is not the expected one; ``hint`` is about this very mistake."""

    def __init__(self, expected: Any, got: Any, hint: str = "") -> None:
        """Keep the three as they are; they are put into words when shown."""
        super().__init__(expected, got, hint)
        self.expected, self.got, self.hint = expected, got, hint


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
    if _same(got, expected):
        return
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
    numbers, wanted = _numbers(got), _numbers(expected)
    if numbers is None:
        raise Wrong(expected, got, "" if got is None else f"Return a number or an array, not {type(got).__name__}.")
    for value, advice in mistakes:
        if _close(numbers, _numbers(value), rtol, atol) and not _close(numbers, wanted, rtol, atol):
            raise Wrong(expected, got, advice)
    if numbers[0] != wanted[0]:
        raise Wrong(expected, got, hint or f"The shape is {numbers[0]}, it should be {wanted[0]}.")
    if any(math.isnan(value) for value in numbers[1]) and not any(math.isnan(value) for value in wanted[1]):
        raise Wrong(expected, got, hint or "There is NaN in the answer.")
    if not _close(numbers, wanted, rtol, atol):
        raise Wrong(expected, got, hint)


def _numbers(value: Any) -> tuple[tuple[int, ...], list[float]] | None:
    """Shape and flat values; None for what holds no real numbers."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu().double().numpy()
        if hasattr(value, "shape") and hasattr(value, "reshape"):
            return tuple(value.shape), [float(item) for item in value.reshape(-1).tolist()]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return (), [float(value)]
    except Exception:
        return None
    return None


def _close(a: tuple | None, b: tuple | None, rtol: float, atol: float) -> bool:
    if a is None or b is None or a[0] != b[0]:
        return False
    pairs = zip(a[1], b[1], strict=True)
    return all(math.isclose(x, y, rel_tol=rtol, abs_tol=atol) or (math.isnan(x) and math.isnan(y)) for x, y in pairs)


def _same(got: Any, expected: Any) -> bool:
    try:
        if getattr(got, "shape", None) == ():
            got = got.item()
        return type(got) is type(expected) and bool(got == expected)
    except Exception:
        return False
