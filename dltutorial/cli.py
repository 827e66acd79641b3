"""The command line of the course: ``dltutorial --help`` lists the commands.

The input is the list of words after ``dltutorial``. The output is what the command prints, and an exit status. Each
command imports what it needs, so that ``dltutorial --help`` does not load torch. ``train_options.py`` has the options
of ``dltutorial train``.

Source: https://docs.python.org/3/library/argparse.html, "Sub-commands".
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dltutorial import __version__
from dltutorial.config import PRESETS, preset
from dltutorial.one_line_errors import Parser, number, run_command

_PRESET = f"{', '.join(PRESETS)}, or auto, which takes what fits this machine"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after ``dltutorial``. None means those of this process.

    Returns:
        The exit status: 0, 2 after a mistake, 75 if a signal stopped training, 130 after Ctrl-C, or the command's own.
    """
    words = sys.argv[1:] if argv is None else list(argv)

    def command() -> int:
        if words[:1] == ["train"]:  # the trainer reads its own options
            from dltutorial import train

            return train.main(words[1:])
        args = make_parser().parse_args(words)
        return args.command(args)

    return run_command(command)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line. The attribute ``command`` of its result runs the command."""
    parser = Parser(prog="dltutorial", description="Hands-on deep learning at scale.")
    parser.add_argument("--version", action="version", version=f"dltutorial {__version__}")
    top = parser.add_subparsers(metavar="COMMAND", required=True)

    add = _add(top, "doctor", _doctor, "what this machine has, and what each chapter can show on it")
    add("--measure", action="store_true", help="measure the peaks of the machine first, which takes seconds")

    add = _add(top, "run", _run, "run chapters as notebooks, without a browser")
    chapters = "03, a name, or 03-further for material beyond the core; default: all"
    add("chapters", nargs="*", metavar="CHAPTER", help=chapters)
    add("--preset", default="auto", help=_PRESET)
    add("--jobs", type=number(int, 1, 1000), metavar="N", help="notebooks at a time (default: 2, or 1 if it measures)")
    add("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    add("--timeout", type=number(float, 1, 604_800), default=1800, metavar="S", help="seconds for each cell")
    add("--out", type=Path, metavar="DIR", help="default: runs/<date and time>")

    actions = _add_group(top, "exercises", "show how far you are, start an exercise again, or build all of them")
    _add(actions, "status", _exercises, "a table of your exercises")
    add = _add(actions, "reset", _exercises, "start an exercise again; first, your file is copied")
    add("name", metavar="NAME", help="01, or the name of a notebook")
    add("--yes", action="store_true", help="do not ask")
    add = _add(actions, "build", _exercises, "for authors: make the exercises from the solutions")
    add("--check", action="store_true", help="change nothing; exit with 1 if an exercise differs from its solution")

    actions = _add_group(top, "data", "simulate a data set, or check one")
    add = _add(actions, "weather", _data, "simulate a data set, unless it exists")
    add("--preset", default="auto", help=_PRESET)
    add("--out", type=Path, metavar="DIR", help="the new folder (default: among the data of the course)")
    add = _add(actions, "check", _data, "read a data set completely, and say what is wrong with it")
    add("--source", type=Path, metavar="DIR", required=True, help="the data set")
    add("--write-statistics", action="store_true", help="write statistics that are missing or wrong to DIR/stats")

    actions = _add_group(top, "pocket", "a real Slurm cluster on this machine, for you alone")
    for name, text in (("up", "start it"), ("down", "end it"), ("status", "say which nodes run")):
        add = _add(actions, name, _pocket, text)
        add("--nodes", type=number(int, 1, 64), default=2, metavar="N", help="nodes that up starts (default: 2)")
    add = _add(actions, "network", _pocket_network, "run a script under torchrun on two nodes with a slow link")
    add("script", nargs=argparse.REMAINDER, help="a Python file, and its arguments")

    top.add_parser("train", help="train the weather model, in one process or on the ranks of torchrun or srun")
    return parser


def _add(actions: argparse._SubParsersAction, name: str, command: Callable, text: str) -> Callable:
    """Add a command with this help ``text``, and return the function that adds an argument to it."""
    parser = actions.add_parser(name, help=text, description=text)
    parser.set_defaults(command=command)
    return parser.add_argument


def _add_group(actions: argparse._SubParsersAction, name: str, text: str) -> argparse._SubParsersAction:
    """Add a command that has commands of its own, and return the object to which these are added."""
    parser = actions.add_parser(name, help=text, description=text)
    return parser.add_subparsers(metavar="WHAT", dest="action", required=True)


def _doctor(args: argparse.Namespace) -> int:
    from dltutorial.course.doctor import report

    text, status = report(measure=args.measure)
    print(text)
    return status


def _run(args: argparse.Namespace) -> int:
    from dltutorial.course import runner

    return runner.run(args.chapters, args.preset, args.jobs, dict(args.parameter), args.out, args.timeout)


def _exercises(args: argparse.Namespace) -> int:
    from dltutorial.course import exercise_status, exercises

    if args.action == "reset":
        return exercise_status.reset(args.name, yes=args.yes)
    if args.action == "build":
        return exercises.build(check=args.check)
    print(exercise_status.status())
    return 0


def _data(args: argparse.Namespace) -> int:
    from dltutorial.data import check, weather

    if args.action == "weather":
        print(weather.ensure(preset(args.preset), args.out))
        return 0
    report = check.check(args.source, args.write_statistics)
    print(*report.problems, *report.notes, sep="\n")
    return int(bool(report.problems))


def _pocket(args: argparse.Namespace) -> int:
    from dltutorial.launch import pocket

    return pocket.command(args.action, args.nodes)


def _pocket_network(args: argparse.Namespace) -> int:
    from dltutorial.launch import two_nodes

    two_nodes.run(args.script)
