"""The tools of the course for notebooks. A notebook needs ``from dltutorial.course import Chapter, check``.

The files of this folder are these.

    chapter.py            ``Chapter``: claims, predictions and records of one notebook
    guess.py              the prediction of a learner, compared with the measurement
    show.py               the boxes and bars that a learner sees
    checks.py             ``check``: run the cases of an exercise, and unfold hints
    guard.py              limit the time of a learner's function, and describe its errors
    explorers/            models with sliders
    scripts.py            give a chapter the files that an earlier chapter writes
    programs.py           stop a cell if a program that it started has failed
    notebooks.py          find the notebooks, and read their metadata
    runner.py             ``dltutorial run``: execute notebooks without a browser
    execute.py            execute one notebook
    site.py               the pages of such a run
    exercises.py          make the exercises from the solutions
    exercise_status.py    how far a learner is, and start an exercise again
    doctor.py             ``dltutorial doctor``: what this machine can show
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
