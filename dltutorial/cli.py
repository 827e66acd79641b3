"""The command line: ``dltutorial --help`` lists the commands.

Every mistake a user can make ends in one line on stderr and exit status 2, an interrupt in status 130. Training that
a signal asked to end, with a checkpoint to resume from, has status 75: a job script can queue it again. Heavy
imports wait until a command needs them, so ``--help`` is quick.
"""

import argparse
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from dltutorial import __version__, advice, paths
from dltutorial.config import BENCHES, PRESETS, Recipe, add_options, preset, read_knobs
from dltutorial.errors import CourseError

_PRESETS = f"{', '.join(PRESETS)}, or auto: what fits this machine"


class Parser(argparse.ArgumentParser):
    """Says what was wrong in one line, without repeating the usage."""

    def error(self, message: str) -> NoReturn:
        """Leave with status 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    while (free := os.open(os.devnull, os.O_RDWR)) < 3:  # its stream is closed; a file of ours would take the number
        os.set_inheritable(free, True)
    os.close(free)
    sys.stdin, sys.stdout, sys.stderr = (one or open(os.devnull, "r+") for one in (sys.stdin, sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a question mark for what a locale lacks, and no error
    try:
        with no_interrupt_lost():
            paths.stands_somewhere()
            try:
                args = make_parser().parse_args(argv)
                return args.command(args) or 0
            finally:
                sys.stdout.flush()  # what fails while Python ends nobody can catch
    except BaseException as error:
        try:
            sys.stdout.flush()
        except OSError:  # nor is it to fail there once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if (ending := advice.exit_status(error)) is None:
            raise
        status, line = ending
        if status == 130 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would tear down what tidies up
        if line:
            print(f"dltutorial: {line}", file=sys.stderr)
        else:
            sys.stderr.close()
        return status


@contextlib.contextmanager
def no_interrupt_lost() -> Iterator[None]:
    """Inside ``with``, a Ctrl-C that was raised where none can be caught is raised again, a moment later.

    Python raises it wherever the main thread happens to be. In a weak reference's callback or a ``__del__`` it reports
    it as ignored and goes on, and a run of hours that was to end does not.
    """
    before = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            # A real signal: it also ends a call that waits, which _thread.interrupt_main would not.
            again = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
            again.daemon = True
            again.start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(prog="dltutorial", description="Hands-on deep learning at scale.")
    parser.add_argument("--version", action="version", version=f"dltutorial {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    doctor = _add(commands, "doctor", _doctor, "what this machine has, and what each chapter can show on it")
    doctor.add_argument("--measure", action="store_true", help="measure the machine's peaks first (seconds)")

    room = _add(commands, "class", _class, "share with a class, by your own choice; or look at one that you teach")
    of_room = room.add_subparsers(dest="action", metavar="join|leave|status|view", required=True)
    join = _add(of_room, "join", _class, "share a few fields of your records from now on")
    join.add_argument("--name", help="a name of your own (default: a pseudonym drawn by chance)")
    leave = _add(of_room, "leave", _class, "share nothing more")
    leave.add_argument("--remove", action="store_true", help="remove what was shared, too")
    _add(of_room, "status", _class, "whether anything is shared, and all of it")
    view = _add(of_room, "view", _class, "one page of the class that you teach")
    view.add_argument("--out", type=place, metavar="FILE", help="default: class.html in the runs folder")
    view.add_argument("--watch", type=number(float, 1, 3600), metavar="S", help="write it again every S seconds")
    for one in (join, view):
        one.add_argument("folder", type=place, metavar="FOLDER", help="that the class shares")

    whats = _add(commands, "data", _data, "simulate a data set, check one, convert it, or compute its statistics")
    data = whats.add_subparsers(metavar="WHAT", dest="what", required=True)
    weather = _add(data, "weather", _data, "simulate a data set, unless it is there")
    convert = _add(data, "convert", _data, "write a data set in another layout on disk")
    for made in (weather, convert):  # what was not given stays out of the namespace
        made.add_argument("--preset", default=argparse.SUPPRESS, help=_PRESETS)
        made.add_argument("--seed", type=int, default=argparse.SUPPRESS, help="another planet's weather (default: 0)")
        cores, few = "default: one per usable core", number(int, 1, 1000)
        made.add_argument("--processes", type=few, default=argparse.SUPPRESS, metavar="N", help=cores)
        made.add_argument("--out", type=place, metavar="DIR", help="where to (default: the course's data folder)")
    convert.add_argument("--source", type=place, metavar="DIR", help="the data set (default: the preset's weather)")
    layouts = "hdf5-chunk1, hdf5-chunk16-gzip4, hdf5-auto-lzf, hdf5-contiguous, npy, zarr-chunk1-zstd, …"
    convert.add_argument("--layout", metavar="NAME", required=True, help=layouts)
    check = _add(data, "check", _data, "read a data set through: what is wrong, and what is odd")
    statistics = _add(data, "statistics", _data, "compute those of a data set's stats/ that it lacks")
    for given in (check, statistics):
        given.add_argument("--source", type=place, metavar="DIR", required=True, help="the data set")
    statistics.add_argument("--overwrite", action="store_true", help="replace those that are there")

    trains = "train the weather model, alone or on the ranks of torchrun or srun; every knob of a recipe is an option"
    train = _add(commands, "train", _train, trains)
    train.add_argument("--config", type=place, metavar="FILE", help="a JSON file with knobs; options go before it")
    train.add_argument("--data", type=place, metavar="DIR", help="a data set (default: simulate the preset's)")
    train.add_argument("--name", help="of the run, a folder under the runs folder (default: made of date and time)")
    again = train.add_mutually_exclusive_group()
    again.add_argument("--overwrite", action="store_true", help="replace a run of that name")
    resume = "start run --name, or go on from its newest checkpoint; knobs not given (nor by --preset) are the run's"
    again.add_argument("--resume", action="store_true", help=resume)
    add_options(train.add_argument_group("knobs"))

    tune = _add(commands, "tune", _tune, "train many times with other knobs; workers that name one study share it")
    tune.add_argument("--name", required=True, help="of the study, a folder under the runs folder")
    tune.add_argument("--trials", type=number(int, 1, 10**6), default=27, metavar="N", help="in all (default: 27)")
    how = "learning_rate=1e-4..1e-2:log, warmup_steps=0..40, optimizer=adamw,lamb: what to try of a knob"
    tune.add_argument("--knob", action="append", required=True, metavar="NAME=VALUES", help=how)
    tried = "what Optuna tries next (default: tpe); Ray: random"
    tune.add_argument("--sampler", choices=["tpe", "random"], default="tpe", help=tried)
    kinds = "asha: end what is poor at 1/9, 1/3 (default); pbt: let it go on as a good one; none"
    tune.add_argument("--scheduler", choices=["asha", "pbt", "none"], default="asha", help=kinds)
    who = "optuna: workers share a file, nobody leads (default); ray: this process leads a Ray cluster"
    tune.add_argument("--engine", choices=["optuna", "ray"], default="optuna", help=who)
    tune.add_argument("--data", type=place, metavar="DIR", help="a data set (default: simulate the preset's)")
    add_options(tune.add_argument_group("knobs that all trials share"))

    run = _add(commands, "run", _run, "run chapters as notebooks, without a browser")
    run.add_argument("chapters", nargs="*", metavar="CHAPTER", help="01, or a notebook's name (default: all)")
    run.add_argument("--jobs", type=number(int, 1, 1000), default=1, metavar="N", help="at a time (default: 1)")
    run.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    run.add_argument("--timeout", type=number(float, 1, 604_800), default=1800, metavar="S", help="seconds for a cell")
    run.add_argument("--out", type=place, metavar="DIR", help="default: runs/<date and time>")
    bench = _add(commands, "bench", _bench, "measure, and print a table")
    names = f"{', '.join(BENCHES)}; without one, what each of them measures"
    bench.add_argument("name", metavar="NAME", nargs="?", help=names)
    bench.add_argument("--repeats", type=number(int, 1, 1000), default=5, metavar="N")
    bench.add_argument("--json", type=place, metavar="FILE", help="write the figures there too")

    exercises = _add(commands, "exercises", _exercises, "how far you are with them; start one afresh; make them")
    of_them = exercises.add_subparsers(dest="action", metavar="status|reset|build", required=True)
    _add(of_them, "status", _exercises, "a table of yours")
    reset = _add(of_them, "reset", _exercises, "start one afresh; yours is kept")
    reset.add_argument("name", metavar="NAME", help="01, or a notebook's name")
    reset.add_argument("--yes", action="store_true", help="do not ask")
    build = _add(of_them, "build", _exercises, "make them from the solutions; those that you edited stay")
    build.add_argument("--check", action="store_true", help="change nothing; exit 1 if out of step")
    build.add_argument("--force", action="store_true", help="replace those you edited, and keep yours")

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
    report = _add(commands, "report", _report, "one HTML page of everything measured here")
    report.add_argument("records", nargs="*", type=place, help="records files (default: the runs folder's)")
    report.add_argument("--out", type=place, metavar="FILE", help="default: report.html in the runs folder")
    for command in (train, tune, run, bench):
        command.add_argument("--preset", default="auto", help=_PRESETS)
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
    """The type of an option that takes a file or folder; an empty word would be the current folder."""
    if not word.strip():
        raise argparse.ArgumentTypeError("a name is expected; is it a variable that is not set?")
    try:
        return Path(word).expanduser()  # --out=~/x: no shell has expanded it
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"there is no home folder {word[:40]!r}; give the whole path") from None


def _doctor(args: argparse.Namespace) -> int:
    from dltutorial.course import doctor

    text, status = doctor.report(measure=args.measure)
    print(text)
    return status


def _class(args: argparse.Namespace) -> None:
    from dltutorial.course import classroom

    if args.action == "view":
        return classroom.view(args.folder, args.out, args.watch)
    told = {"join": lambda: classroom.join(args.folder, args.name), "leave": lambda: classroom.leave(args.remove)}
    print(told.get(args.action, classroom.status)())


def _data(args: argparse.Namespace) -> None:
    from dltutorial import node
    from dltutorial.data import convert, formats, store, weather, writing

    given = {name: value for name, value in vars(args).items() if name in ("preset", "seed", "processes")}
    if args.what == "check":
        print(store.validate(args.source, progress=True))
    elif args.what == "statistics":
        node.refuse_on_login("computing statistics")
        print(*writing.write_stats(args.source, progress=True, overwrite=args.overwrite), sep="\n")
    elif args.what == "weather":
        print(weather.ensure(preset(given.pop("preset", "auto")), args.out, **given))
    else:
        layout = formats.Layout.of(args.layout)
        if args.source and given:
            raise CourseError(f"data convert: --source and --{next(iter(given))} exclude each other; leave out one")
        source = args.source or weather.ensure(preset(given.pop("preset", "auto")), **given)
        print(convert.convert(source, layout, args.out))


def _train(args: argparse.Namespace) -> None:
    knobs = read_knobs(args.config) if args.config else {}
    kept = str(knobs.pop("preset", "auto"))
    named = kept if args.preset == "auto" else args.preset
    options = {name: tuple(v) if name == "track" else v for name, v in vars(args).items() if name in Recipe.knobs()}
    from dltutorial.train import command

    command.train(named, knobs | options, data=args.data, name=args.name, overwrite=args.overwrite, resume=args.resume)


def _tune(args: argparse.Namespace) -> None:
    fixed = {name: tuple(v) if name == "track" else v for name, v in vars(args).items() if name in Recipe.knobs()}
    from dltutorial.train import tune

    how = {"sampler": args.sampler, "scheduler": args.scheduler, "engine": args.engine}
    tune.tune(args.preset, fixed, args.knob, data=args.data, name=args.name, trials=args.trials, **how)


def _run(args: argparse.Namespace) -> int:
    from dltutorial.course import runner

    return runner.run(args.chapters, args.preset, args.jobs, dict(args.parameter), args.out, args.timeout)


def _bench(args: argparse.Namespace) -> int:
    from dltutorial.course import bench

    return bench.run(args.name, repeats=args.repeats, json_file=args.json, preset=args.preset)


def _exercises(args: argparse.Namespace) -> int:
    from dltutorial.course import exercise_status, exercises

    if args.action == "status":
        print(exercise_status.status())
        return 0
    if args.action == "reset":
        return exercise_status.reset(args.name, yes=args.yes)
    return exercises.build(check=args.check, force=args.force)


def _pocket(args: argparse.Namespace) -> int:
    from dltutorial.launch import pocket, two_nodes

    if args.action == "network":
        two_nodes.run(args.script)
    return pocket.command(args.action, args.nodes, args.name)


def _scaling(args: argparse.Namespace) -> None:
    from dltutorial.scaling import fit

    print(fit.table(fit.read(args.file), args.per_node, args.to))


def _report(args: argparse.Namespace) -> None:
    from dltutorial.course import report

    print(report.write("report", args.out, files=list(dict.fromkeys(map(os.path.realpath, args.records)))))
