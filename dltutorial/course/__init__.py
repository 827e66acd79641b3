"""The teaching kit: claims, predictions, checks of exercises, and the machinery that runs the notebooks.

A notebook needs two names: ``from dltutorial.course import Chapter, check``.
"""

from typing import Any

__all__ = ["Chapter", "check"]


def __getattr__(name: str) -> Any:
    """Import ``Chapter`` and ``check`` when they are asked for: the command line needs neither."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dltutorial.course import chapter, checks

    return {"Chapter": chapter.Chapter, "check": checks.check}[name]
