"""The teaching kit: claims, predictions, checks of exercises, and the machinery that runs the notebooks.

A notebook needs two names: ``from dltutorial.course import Chapter, check``.
"""

from typing import Any

__all__ = ["Chapter", "check"]


def __getattr__(name: str) -> Any:
    """Import ``Chapter`` and ``check`` when they are asked for: the command line needs neither.

    The notebook that asks also gets, below its tracebacks, a sentence of what to do; an exercise is told if a newer
    version of it has come.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dltutorial.course import chapter, checks, first_aid

    first_aid.watch()
    if name == "check":
        first_aid.tell_of_newer_version()
    return {"Chapter": chapter.Chapter, "check": checks.check}[name]
