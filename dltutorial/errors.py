"""Errors a learner may meet: one line that says what, why, and what to do.

The command line prints the line and exits with status 2; a notebook shows it as the exception's message.
"""

import warnings


def warn(words: str) -> None:
    """Warn at the line two calls above the caller's."""
    warnings.warn(words, stacklevel=4)


class CourseError(Exception):
    """Something outside the code is not as it must be. The message is one clear line."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message without the traceback, because the message says what to do."""
        lines = [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]
        return "\n\n".join(lines).split("\n")


class DataError(CourseError):
    """A data folder or file is missing, empty, truncated, foreign, or holds NaN; or it cannot be written."""


class RecipeError(CourseError, ValueError):
    """A preset, recipe or parameter that cannot be."""


class DivergedError(CourseError):
    """The loss or the scores of a training run are no finite numbers any more."""
