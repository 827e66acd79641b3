"""Errors a learner may meet: one line that says what, why, and what to do.

The command line prints the line and exits with status 2; a notebook shows it as the exception's message.
"""

import re
import sys
import warnings


def warn(words: str) -> None:
    """Warn at the line two calls above the caller's; no error, even where warnings are to be errors."""
    try:
        warnings.warn(words, stacklevel=4)
    except UserWarning:
        print(words, file=sys.stderr)


class CourseError(Exception):
    """Something outside the code is not as it must be. The message is one clear line."""

    def __str__(self) -> str:
        """What bytes of a file's name would do to a terminal is shown, not done."""
        return re.sub(r"[\0-\x08\x0b-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], super().__str__())

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the text alone says what to do. What was being handled when it arose is named."""
        lines = [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]
        if self.__context__ is not None and not self.__suppress_context__:
            lines.append(f"(while this was handled: {type(self.__context__).__name__}: {self.__context__})")
        return "\n\n".join(lines).split("\n")


class DataError(CourseError):
    """A data folder or file is missing, empty, truncated, foreign, or holds NaN; or it cannot be written."""


class RecipeError(CourseError, ValueError):
    """A preset, recipe or parameter that cannot be."""


class DivergedError(CourseError):
    """The loss or the scores of a training run are no finite numbers any more."""


class CheckpointError(CourseError):
    """A checkpoint cannot be written or read, or is of another run."""


class Interrupted(CourseError):
    """A signal asked a training run to end, and it did, with a checkpoint: start it again to go on.

    ``exit_status`` is the program's: EX_TEMPFAIL of sysexits.h, "try again later", which no other ending has.
    """

    exit_status = 75
