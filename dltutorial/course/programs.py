"""Stop a cell if a program that it started with ``!`` failed, and read the results that a program printed.

IPython ignores the exit status of ``!python train.py``. Here the cell stops with the error of the program, so that no
later cell works with results that do not exist. ``Chapter(…)`` installs this for its notebook.

    lines = !torchrun --standalone --nproc-per-node 2 verbs.py  # stops here if the program fails
    rows = programs.json_lines(lines)                           # dictionaries; at least one
    !mpiexec -n 2 python grid.py || true                        # this program may fail

Source: https://ipython.readthedocs.io, "System shell access".
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import Any

from dltutorial import advice
from dltutorial.course import notebooks
from dltutorial.errors import CourseError

# The last line of a traceback, perhaps with the prefix that torchrun gives to the lines of a rank.
_ERROR_LINE = re.compile(
    r"^(?:\[[^\]]*\]:?\s*)*((?:\w+\.)*\w*(?:Error|Exception|Interrupt|RankFailed|RanksHang))(?:: (.*))?$"
)


# How Python says that a module or a program is missing.
_MISSING = re.compile(r"No module named '(?P<module>\w+)'|can't open file '(?:[^']*/)?(?P<program>\w+\.py)'")


class ProgramFailed(CourseError):
    """A program that a cell started ended with an exit status other than 0."""


def stop_cells_of_failed_programs(shell: Any) -> None:
    """From now on, a cell of this IPython shell stops if a ``!`` command in it fails."""

    def system(command: str) -> None:
        from IPython.utils.process import system as run_and_print

        command = shell.var_expand(command, depth=1)  # puts the values of Python's variables into {name}
        output = _Tee()
        with redirect_stdout(output):  # type: ignore[type-var]
            status = run_and_print(command)
        _check(command, status, "".join(output.texts))

    def getoutput(command: str, split: bool = True, depth: int = 0) -> Any:
        from IPython.utils.text import SList  # it also gives the text as one string

        command = shell.var_expand(command, depth=depth + 1)
        done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text = done.stdout.decode(errors="replace")
        if done.returncode:
            print(text)
        _check(command, done.returncode, text)
        return SList(text.splitlines())

    shell.system = system
    shell.getoutput = getoutput


def json_lines(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the dictionaries that a program printed as JSON, one per line. Other lines are skipped.

    Args:
        lines: The output of the program.

    Raises:
        CourseError: There is no such line.
    """
    rows = [json.loads(line) for line in lines if line.startswith("{") and line.rstrip().endswith("}")]
    if not rows:
        raise CourseError("the program printed no line of JSON; run it in a terminal and look at what it prints")
    return rows


def what_to_do(kind: str, message: str) -> str:
    """Return what to do about an exception of this class with this message, or an empty string."""
    entry = advice.of_words(kind, message)
    return how_to_get(message) or (entry.do if entry else "")


def how_to_get(error: str) -> str:
    """Say which cell to run if an error message names a file that a chapter writes. Otherwise return an empty string.

    Args:
        error: The message, such as "ModuleNotFoundError: No module named 'vit'".
    """
    missing = _MISSING.search(error)
    if missing is None:
        return ""
    name = missing["program"] or f"{missing['module']}.py"
    if not any(name in notebooks.written(chapter) for chapter in notebooks.chapters()):
        return ""
    cell = f'the cell that begins with {notebooks.WRITES}{name} or calls scripts.take("{name}")'
    return f"{name} is a file of the course, and it is not in this folder: run {cell}, then run this cell again."


class _Tee:
    """Prints text and keeps it."""

    def __init__(self) -> None:
        self.stdout = sys.stdout
        self.texts: list[str] = []

    def write(self, text: str) -> int:
        """Print and keep ``text``."""
        self.texts.append(text)
        return self.stdout.write(text)

    def flush(self) -> None:
        """Show what was printed."""
        self.stdout.flush()


def _check(command: str, status: int, output: str) -> None:
    """Raise an error if the exit status of a program is not 0.

    Raises:
        ProgramFailed: The status is not 0. The message has the program's own error and what to do about it.
    """
    if status == 0:
        return
    if status in (-2, 130):
        raise ProgramFailed(f"{_short(command)} was interrupted")
    kind, message = _first_error(output)
    error = f"{kind}: {message}".strip(": ")
    failed = ProgramFailed(f"{_short(command)} ended with exit status {status}. {error}".rstrip())
    todo = what_to_do(kind, message)
    if todo:
        failed.add_note(todo)
    raise failed


def _first_error(output: str) -> tuple[str, str]:
    """Return the class and the message of the first exception in the output of a program.

    If several ranks fail, the first error is the cause of the others. Without an exception, the class is empty, and the
    message is the last line.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        match = _ERROR_LINE.match(line)
        if match:
            return match[1].rpartition(".")[2], match[2] or ""
    return "", lines[-1] if lines else ""


def _short(command: str) -> str:
    """Return the beginning of a command."""
    return command if len(command) <= 60 else f"{command[:59]}…"
