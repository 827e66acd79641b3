"""The teaching kit: claims, predictions, checks of exercises, and the machinery that runs the notebooks.

A notebook needs two names: ``from dltutorial.teach import Chapter, check``.
"""

from typing import Any

__all__ = ["Chapter", "check"]


def __getattr__(name: str) -> Any:
    """Import ``Chapter`` and ``check`` when they are first asked for: the command line needs neither."""
    if name == "Chapter":
        from dltutorial.teach.chapter import Chapter

        return Chapter
    if name == "check":
        from dltutorial.teach.checks import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
