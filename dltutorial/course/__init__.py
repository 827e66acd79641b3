"""The tools of a course: claims, predictions, checks of exercises, explorers, and the runner of the notebooks.

A notebook needs two names: ``from dltutorial.course import Chapter, check``.
"""

from typing import Any

__all__ = ["Chapter", "check"]


def __getattr__(name: str) -> Any:
    """Import ``Chapter`` and ``check`` when they are used, because the command line needs neither.

    Raises:
        AttributeError: There is no such name.
    """
    if name == "Chapter":
        from dltutorial.course.chapter import Chapter

        return Chapter
    if name == "check":
        from dltutorial.course.checks import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
