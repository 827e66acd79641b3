"""The command line of the course: ``dltutorial --help`` lists the commands.

The input is the list of words after ``dltutorial``. The output is what the command prints, and an exit status. This
package contains

    parser.py      the options of each command
    commands.py    what each command does
"""

import sys
from collections.abc import Sequence

from dltutorial.cli.parser import make_parser
from dltutorial.one_line_errors import run_command

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after ``dltutorial``. None means those of this process.

    Returns:
        The exit status: 0, 2 after a mistake, 75 if a signal stopped training, 130 after Ctrl-C, or the command's own.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    return run_command(lambda: _run_words(words))


def _run_words(words: list[str]) -> int:
    """Let the trainer read its own options, and the parser all others."""
    if words[:1] == ["train"]:
        from dltutorial import train

        return train.main(words[1:])
    args = make_parser().parse_args(words)
    return args.command(args)
