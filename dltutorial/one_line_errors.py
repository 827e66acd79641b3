"""Report each mistake of a user in one line: a wrong option, and an error of a command.

Exit status: 0 for success, 2 for a mistake of the user, 130 after Ctrl-C. A command may return others.
"""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from dltutorial import advice


class Parser(argparse.ArgumentParser):
    """A parser that reports a wrong option in one line, without its usage."""

    def error(self, message: str) -> NoReturn:
        """Print the line, and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def run_command(command: Callable[[], int]) -> int:
    """Run a command, and print an error that a user can correct as one line.

    Returns:
        The exit status of the command, or that of the error.

    Raises:
        Exception: An error that nobody foresaw. Its traceback says where it happened.
    """
    try:
        return command()
    except (Exception, KeyboardInterrupt) as error:
        ending = advice.exit_status(error)
        if ending is None:
            raise
        status, line = ending
        print(f"dltutorial: {line}", file=sys.stderr)
        return status


def number(kind: type, least: float, most: float) -> Callable[[str], float]:
    """Return the type of an option that takes a number from ``least`` to ``most``. This excludes nan."""

    def read(word: str) -> float:
        value = kind(word)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{word[:40]} is not from {least:,} to {most:,}")
        return value

    read.__name__ = kind.__name__  # argparse puts this name into the message for a word that is not a number
    return read
