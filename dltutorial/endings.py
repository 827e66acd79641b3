"""How a command ends when something is not as it must be: one line for the reader, one exit status for a script.

| status | what happened |
|---|---|
| 2 | a mistake that can be mended: the line says what, why, and what to do |
| 75 | a signal ended training, with a checkpoint: start it again to go on |
| 130 | Ctrl-C |
| 141 | nobody reads the output any more |
"""

from dltutorial.errors import CourseError, Interrupted


def of(error: BaseException) -> tuple[int, str] | None:
    """(exit status, what to print) for an error a user can meet; None for one that nobody foresaw."""
    if isinstance(error, CourseError):
        return error.exit_status if isinstance(error, Interrupted) else 2, str(error)
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; what was finished is kept"
    if isinstance(error, BrokenPipeError):
        return 141, ""
    if isinstance(error, OSError):  # a place that nobody thought of: a full disk, a folder where a file should be
        return 2, f"{error}; make sure that you may write there and that the disk has room"
    return None
