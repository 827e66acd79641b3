"""The command line: ``dltutorial --help`` lists the commands.

``dltutorial train`` is the program ``train.py``, with options of its own. Heavy imports wait until a command needs
them, so ``--help`` is quick.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dltutorial import __version__
from dltutorial.command_line import Parser, run_command
from dltutorial.config import PRESETS, preset

_PRESETS = f"{', '.join(PRESETS)}, or auto: what fits this machine"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after ``dltutorial``. None means those of this process.

    Returns:
        The exit status: 0, 2 after a mistake, 75 if a signal stopped training, 130 after Ctrl-C, or the command's own.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    return run_command(lambda: _run_words(words))


def _run_words(words: list[str]) -> int:
    if words[:1] == ["train"]:
        from dltutorial import train

        return train.main(words[1:])
    args = make_parser().parse_args(words)
    return args.command(args) or 0


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(prog="dltutorial", description="Hands-on deep learning at scale.")
    parser.add_argument("--version", action="version", version=f"dltutorial {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    doctor = _add(commands, "doctor", _doctor, "what this machine has, and what each chapter can show on it")
    doctor.add_argument("--measure", action="store_true", help="measure the machine's peaks first (seconds)")

    whats = _add(commands, "data", _data, "simulate a data set, check one, or write it in another layout")
    data = whats.add_subparsers(metavar="WHAT", dest="what", required=True)
    weather = _add(data, "weather", _data, "simulate a data set, unless it is there")
    weather.add_argument("--seed", type=number(int, 0, 2**31), default=0, help="of the simulation (default: 0)")
    cores = "default: one per usable core"
    weather.add_argument("--processes", type=number(int, 1, 1000), metavar="N", help=cores)
    check = _add(data, "check", _data, "read a data set completely, and say what is wrong with it")
    check.add_argument("--source", type=place, metavar="DIR", required=True, help="the data set")
    writes = "compute the statistics that are missing or do not fit, and write them to DIR/stats"
    check.add_argument("--write-statistics", action="store_true", help=writes)
    convert = _add(data, "convert", _data, "write a data set in another layout on disk")
    convert.add_argument("--source", type=place, metavar="DIR", help="the data set (default: the preset's weather)")
    layouts = "hdf5-chunk1, hdf5-chunk16-gzip4, hdf5-auto-lzf, hdf5-contiguous, npy, zarr-chunk1-zstd, …"
    convert.add_argument("--layout", metavar="NAME", required=True, help=layouts)
    for made in (weather, convert):
        made.add_argument("--preset", default="auto", help=_PRESETS)
        made.add_argument("--out", type=place, metavar="DIR", help="the new folder (default: among the course's data)")

    trains = "train the weather model, in one process or on the ranks of torchrun or srun"
    commands.add_parser("train", help=trains)  # dltutorial/train.py reads its options

    run = _add(commands, "run", _run, "run chapters as notebooks, without a browser")
    run.add_argument("chapters", nargs="*", metavar="CHAPTER", help="01, or a notebook's name (default: all)")
    jobs = "how many at a time (default: one that measures times runs alone, the others run two at a time)"
    run.add_argument("--jobs", type=number(int, 1, 1000), metavar="N", help=jobs)
    run.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    run.add_argument("--timeout", type=number(float, 1, 604_800), default=1800, metavar="S", help="seconds for a cell")
    run.add_argument("--out", type=place, metavar="DIR", help="default: runs/<date and time>")

    exercises = _add(commands, "exercises", _exercises, "how far you are with them; start one again; make them")
    of_them = exercises.add_subparsers(dest="action", metavar="status|reset|build", required=True)
    _add(of_them, "status", _exercises, "a table of yours")
    reset = _add(of_them, "reset", _exercises, "start one again; a copy of your file is kept")
    reset.add_argument("name", metavar="NAME", help="01, or a notebook's name")
    reset.add_argument("--yes", action="store_true", help="do not ask")
    build = _add(of_them, "build", _exercises, "for authors: make them from the solutions")
    build.add_argument("--check", action="store_true", help="change nothing; exit 1 if out of step")

    pocket = _add(commands, "pocket", _pocket, "a real Slurm cluster on this machine, for you alone")
    of_pocket = pocket.add_subparsers(dest="action", metavar="up|down|status|network", required=True)
    for action, told in (("up", "start it"), ("down", "end it"), ("status", "is it whole?")):
        one = _add(of_pocket, action, _pocket, told)
        one.add_argument("--nodes", type=int, default=2, metavar="N", help="of up (default: 2)")
        one.add_argument("--name", default="pocket", help="to have several (default: pocket)")
    text = "run a script under torchrun on two nodes of this machine, two ranks on each, joined by a slow link"
    network = _add(of_pocket, "network", _pocket, text)
    network.add_argument("script", nargs=argparse.REMAINDER, help="a Python file, and its arguments")
    scaling = _add(commands, "scaling", _scaling, "from your steps on 1, 2, 4, … ranks to more, with an interval")
    scaling.add_argument("file", type=place, metavar="FILE", help="CSV with columns ranks, samples (of a rank), step_s")
    scaling.add_argument("--per-node", type=number(int, 1, 10_000), default=1, metavar="N", help="ranks (default: 1)")
    scaling.add_argument("--to", type=number(int, 1, 10**9), metavar="N", help="ranks (default: 4 times the most)")
    run.add_argument("--preset", default="auto", help=_PRESETS)
    return parser


def _add(commands: argparse._SubParsersAction, name: str, function: Callable, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(command=function)
    return parser


def number(kind: type, least: float, most: float) -> Callable[[str], float]:
    """The type of an option that takes a number between these two, so neither nan nor inf."""

    def read(word: str) -> float:
        if not least <= (value := kind(word)) <= most:
            raise argparse.ArgumentTypeError(f"{word[:40]} is not from {least:,} to {most:,}")
        return value

    read.__name__ = kind.__name__  # argparse names it where a word is no number at all
    return read


def place(word: str) -> Path:
    """The type of an option that takes a file or folder. A shell does not expand the ``~`` of ``--out=~/x``."""
    return Path(word).expanduser()


def _doctor(args: argparse.Namespace) -> int:
    from dltutorial.course import doctor

    text, status = doctor.report(measure=args.measure)
    print(text)
    return status


def _data(args: argparse.Namespace) -> int:
    from dltutorial.data import check, convert, weather

    if args.what == "weather":
        print(weather.ensure(preset(args.preset), args.out, seed=args.seed, processes=args.processes))
        return 0
    if args.what == "convert":
        source = args.source or weather.ensure(preset(args.preset))
        print(convert.convert(source, args.layout, args.out))
        return 0
    report = check.check(args.source, args.write_statistics, progress=True)
    print(*report.problems, *report.notes, sep="\n")
    return 1 if report.problems else 0


def _run(args: argparse.Namespace) -> int:
    from dltutorial.course import runner

    return runner.run(args.chapters, args.preset, args.jobs, dict(args.parameter), args.out, args.timeout)


def _exercises(args: argparse.Namespace) -> int:
    from dltutorial.course import exercise_status, exercises

    if args.action == "status":
        print(exercise_status.status())
        return 0
    if args.action == "reset":
        return exercise_status.reset(args.name, yes=args.yes)
    return exercises.build(check=args.check)


def _pocket(args: argparse.Namespace) -> int:
    from dltutorial.launch import pocket, two_nodes

    if args.action == "network":
        two_nodes.run(args.script)
    return pocket.command(args.action, args.nodes, args.name)


def _scaling(args: argparse.Namespace) -> None:
    from dltutorial.scaling import fit

    print(fit.table(fit.read(args.file), args.per_node, args.to))
