"""Cases of an exercise that differ in their numbers alone."""

from collections.abc import Callable
from typing import Any


def case(name: str, check: Callable[..., None], *given: Any, **options: Any) -> Callable[[Callable], None]:
    """The case ``name``: it calls ``check(fn, *given, **options)`` with the answer ``fn``."""

    def run(fn: Callable) -> None:
        check(fn, *given, **options)

    run.__doc__ = name
    return run
