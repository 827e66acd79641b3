"""The options of each command of ``dltutorial``. Those of ``dltutorial train`` are in ``train_options.py``.

Input: nothing. Output: a parser. It makes a namespace from the words of a command line. The attribute ``command`` of
this namespace is a function of ``commands.py``.

Source: https://docs.python.org/3/library/argparse.html, "Sub-commands".
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from dltutorial import __version__
from dltutorial.cli import commands
from dltutorial.config import PRESETS
from dltutorial.one_line_errors import Parser, number

_PRESET = f"{', '.join(PRESETS)}, or auto, which takes what fits this machine"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = Parser(prog="dltutorial", description="Hands-on deep learning at scale.")
    parser.add_argument("--version", action="version", version=f"dltutorial {__version__}")
    top = parser.add_subparsers(metavar="COMMAND", required=True)

    add = _add(top, "doctor", commands.doctor, "what this machine has, and what each chapter can show on it")
    add("--measure", action="store_true", help="measure the peaks of the machine first, which takes seconds")

    add = _add(top, "run", commands.run, "run chapters as notebooks, without a browser")
    add(
        "chapters",
        nargs="*",
        metavar="CHAPTER",
        help="03, a name, or 03-further for material beyond the core; default: all",
    )
    add("--preset", default="auto", help=_PRESET)
    add("--jobs", type=number(int, 1, 1000), metavar="N", help="notebooks at a time (default: 2, or 1 if it measures)")
    add("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    add("--timeout", type=number(float, 1, 604_800), default=1800, metavar="S", help="seconds for each cell")
    add("--out", type=Path, metavar="DIR", help="default: runs/<date and time>")

    actions = _add_group(top, "exercises", "show how far you are, start an exercise again, or build all of them")
    _add(actions, "status", commands.exercises, "a table of your exercises")
    add = _add(actions, "reset", commands.exercises, "start an exercise again; first, your file is copied")
    add("name", metavar="NAME", help="01, or the name of a notebook")
    add("--yes", action="store_true", help="do not ask")
    add = _add(actions, "build", commands.exercises, "for authors: make the exercises from the solutions")
    add("--check", action="store_true", help="change nothing; exit with 1 if an exercise differs from its solution")

    actions = _add_group(top, "data", "simulate a data set, check one, or write it in another layout")
    add = _add(actions, "weather", commands.data, "simulate a data set, unless it exists")
    add("--preset", default="auto", help=_PRESET)
    add("--out", type=Path, metavar="DIR", help="the new folder (default: among the data of the course)")
    add("--seed", type=number(int, 0, 2**31), default=0, help="seed of the simulation (default: 0)")
    add = _add(actions, "check", commands.data, "read a data set completely, and say what is wrong with it")
    add("--source", type=Path, metavar="DIR", required=True, help="the data set")
    add("--write-statistics", action="store_true", help="write statistics that are missing or wrong to DIR/stats")
    add = _add(actions, "convert", commands.data, "write a data set in another layout on disk")
    add("--preset", default="auto", help=_PRESET)
    add("--out", type=Path, metavar="DIR", help="the new folder (default: among the data of the course)")
    add("--source", type=Path, metavar="DIR", help="the data set (default: the weather of the preset)")
    add("--layout", metavar="NAME", required=True, help="hdf5-chunk1, hdf5-chunk16-gzip4, npy, zarr-chunk1-zstd, …")

    actions = _add_group(top, "pocket", "a real Slurm cluster on this machine, for you alone")
    for name, text in (("up", "start it"), ("down", "end it"), ("status", "say which nodes run")):
        add = _add(actions, name, commands.pocket, text)
        add("--nodes", type=int, default=2, metavar="N", help="nodes that up starts (default: 2)")
        add("--name", default="pocket", help="names one of several clusters (default: pocket)")
    add = _add(actions, "network", commands.pocket, "run a script under torchrun on two nodes with a slow link")
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
