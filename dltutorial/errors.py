"""Errors that a learner may meet. Each message is one line that says what is wrong, why, and what to do.

The command line prints the line and exits with status 2. A notebook shows it as the message of the exception.
"""


class CourseError(Exception):
    """Something outside the code of the course is wrong. The message is one clear line."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows. It has no traceback, because the message says what to do."""
        lines = [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]
        return "\n\n".join(lines).split("\n")


class DataError(CourseError):
    """A data folder or file is missing, empty or truncated, has another layout or NaN, or cannot be written."""


class RecipeError(CourseError, ValueError):
    """There is no such preset or recipe, or a parameter has a value that is not possible."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 120 characters, or its class if there is no message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:120]
