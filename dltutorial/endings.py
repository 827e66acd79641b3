"""How a command ends when something is not as it must be: one line for the reader, one exit status for a script.

| status | what happened |
|---|---|
| 2 | something that can be mended: the line says what, why, and what to do |
| 75 | a signal ended training, with a checkpoint: start it again to go on |
| 130 | Ctrl-C |
| 141 | nobody reads the output any more |
"""

from dltutorial import advice
from dltutorial.errors import CourseError, Interrupted


def of(error: BaseException) -> tuple[int, str] | None:
    """(exit status, what to print) for an error a user can meet; None for one that nobody foresaw.

    An error that is known, but likely to be a mistake in somebody's code, gets its advice as a note: the traceback,
    which says where, ends with it.
    """
    found = advice.of(error)
    if isinstance(error, CourseError):
        status = error.exit_status if isinstance(error, Interrupted) else 2
        return status, f"{error}\n\n{found.do}" if found else str(error)
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; what was finished is kept"
    if isinstance(error, BrokenPipeError):
        return 141, ""
    if found and (found.outside or isinstance(error, OSError)):
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return 2, f"{said.rstrip('.')}. {found.do}"
    if isinstance(error, OSError):  # a place that nobody thought of: a full disk, a folder where a file should be
        return 2, f"{error}; make sure that you may write there and that the disk has room"
    if found:
        error.add_note(found.do)
    return None
