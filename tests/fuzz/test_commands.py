"""Command lines of random words: a documented exit status, no traceback, no hang, nothing outside of their folders.

The machine says of itself that it is a login node, so what takes long (training, simulating, converting, benchmarks,
chapters) is refused just before it would begin. Left out, since nothing refuses them: ``pocket up`` (Slurm's daemons),
``pocket network`` (it becomes another program),
``doctor --measure`` (seconds of every core), ``report`` and ``class view`` of a folder that is there (a kernel each).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from hostile import EXTREMES, examples
from hypothesis import given
from hypothesis import strategies as st

from dltutorial.cli import make_parser

STATUSES = {0, 1, 2, 75, 130}  # done; not so; a mistake in one line; ended by a signal, to be resumed; Ctrl-C
OWN = {"DLTUTORIAL_RUNS": "runs", "DLTUTORIAL_DATA": "data", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config",
       "HOME": "home", "TMPDIR": "tmp", "IPYTHONDIR": "home", "JUPYTER_DATA_DIR": "home", "PWD": "work"}  # fmt: skip
UNSET = ("RANK", "WORLD_SIZE", "DLTUTORIAL_RECORDS", "DLTUTORIAL_PRESET", "DLTUTORIAL_NOTEBOOKS", "DLTUTORIAL_CLASS",
         "SLURM_JOB_ID", "COLUMNS", "TERM", "LC_ALL", "LANG")  # fmt: skip


@pytest.fixture(scope="module")
def jail(place):
    """A course of one chapter to work in, folders for what commands keep, and one where nothing may appear."""
    for name in {*OWN.values(), "outside"}:
        (place / name).mkdir()
    work = place / "work"
    (work / "pyproject.toml").write_text("")
    cell = nbformat.v4.new_code_cell("steps = 3", metadata={"tags": ["parameters"]})
    about = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    for folder in ("notebooks", "solutions", "exercises", "pages", "slurm", "folder"):
        (work / folder).mkdir()
        if folder in ("notebooks", "solutions"):
            nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=about), work / folder / "00_a.ipynb")
    (work / "file").write_text("text")
    (work / "knobs.json").write_text(json.dumps({"preset": "smoke", "steps": 3}))
    (work / "loop").symlink_to("loop")
    os.mkfifo(work / "pipe")
    return place


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
ODD = ["", "-", "--", "-1", "--=", "-p", "--help", "--version", "@file", "%s", "{}", "\udcff", "a\nb", "ß"]
WORDS = st.sampled_from(ODD)
PLACES = ["file", "folder", "nowhere", "nowhere/x", ".", "knobs.json", "loop", "pipe", "file/x", "x" * 300]
PATHS = st.sampled_from(PLACES)
KNOWN = ["00", "0", "a", "r", "smoke", "auto", "ladder", "npy", "hdf5-chunk1", "../outside/x", "../../x", ".."]
NAMES = st.sampled_from(KNOWN)
NUMBERS = st.sampled_from(["0", "1", "2", "-1", "0.5", "1e9", "nan", "inf", "900.5", *(str(one) for one in EXTREMES)])


def options(parser):
    """The words of an argument, and what may follow it; of a positional one no words."""
    for action in parser._actions:
        values = st.sampled_from(sorted(action.choices)) if action.choices else NAMES
        values = PATHS if action.type is Path else NUMBERS if action.type in (int, float) else values
        takes = 0 if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction) else action.nargs or 1
        counts = {"*": [0, 1, 2], "?": [0, 1], "+": [1, 2], "...": [0, 1, 2]}.get(takes, [takes])
        yield action.option_strings, values, st.sampled_from(counts)


def grammar(parser, words=()):
    """Each command, and what it takes."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for name, command in inner[0].choices.items() if inner else ():
        yield from grammar(command, (*words, name))
    if not inner:
        yield words, list(options(parser))


GRAMMAR = dict(grammar(make_parser()))


@st.composite
def command_lines(draw):
    command = draw(st.sampled_from([*GRAMMAR]))
    line = [*command]
    positional = [one for one in GRAMMAR[command] if not one[0]]
    for words, values, count in positional + draw(st.lists(st.sampled_from(GRAMMAR[command]), max_size=3)):
        line += [draw(st.sampled_from(words))] if words else []
        line += [draw(st.one_of(values, values, values, NAMES, PATHS, NUMBERS, TEXT)) for _ in range(draw(count))]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        line.insert(draw(st.integers(0, len(line))), draw(TEXT | WORDS | NAMES))
    return line


ENVIRONMENTS = st.fixed_dictionaries(
    {"DLTUTORIAL_NODE": st.sampled_from(["login", "login", "login", "banana"])},
    optional={
        "COLUMNS": st.sampled_from(["0", "1", "20", "-5", "many", "99999999"]),
        "TERM": st.sampled_from(["dumb", "", "nonsense"]),
        "DLTUTORIAL_PRESET": st.sampled_from(["smoke", "gpu", "nonsense", "", "auto"]),
        "DLTUTORIAL_RECORDS": PATHS,
        "DLTUTORIAL_NOTEBOOKS": PATHS,
        "DLTUTORIAL_CLASS": st.sampled_from(["off", "x"]),
        "DLTUTORIAL_DATA": PATHS,
        "DLTUTORIAL_RUNS": PATHS,
        "XDG_CACHE_HOME": PATHS,
        "XDG_CONFIG_HOME": PATHS,
        "SLURM_CPUS_PER_TASK": st.sampled_from(["2", "x", "-1"]),
        "RANK": st.sampled_from(["0", "x"]),
    },
)


def is_left_out(line):
    """See above."""
    words = set(line)
    return (
        ("pocket" in words and any("up".startswith(word) or word == "up" for word in words if word))
        or any(word.startswith("--m") for word in line)
        or "report" in words
        or {"class", "view"} <= words
        or {"pocket", "network"} <= words
    )


def surroundings(jail):
    """What lies where no command may write: names, sizes, times."""
    folders = [jail / "outside", Path(__file__).parents[2] / "exercises", Path(__file__).parents[2] / "notebooks"]
    files = [file for folder in folders for file in (folder, *folder.rglob("*"))]
    kept = {str(file): (file.lstat().st_size, file.lstat().st_mtime_ns) for file in files if "runs" not in file.parts}
    return kept, sorted(jail.iterdir()), sorted(jail.parent.iterdir())


def environment(jail, drawn):
    return dict.fromkeys(UNSET) | {name: str(jail / folder) for name, folder in OWN.items()} | drawn


def judged(line, status, said):
    assert status in STATUSES, (line, status, said)
    assert "Traceback" not in said, (line, said)
    if status == 2:
        lines = [line for line in said.splitlines() if line]
        assert lines, line
        assert any(line.startswith("dltutorial") for line in lines), (line, said)


@examples(300)
@given(command_lines(), ENVIRONMENTS, st.sampled_from(["utf-8", "utf-8", "ascii", "latin-1"]))
def test_a_command_line_ends_as_documented(forking, jail, line, drawn, encoding):
    if is_left_out(line):
        return
    before = surroundings(jail)
    around = {"env": environment(jail, drawn), "cwd": str(jail / "work"), "encoding": encoding}
    done = forking("command_line", line, **around)
    done.value_or_line()
    judged(line, done.value or 0, done.err)
    assert surroundings(jail) == before, line


@examples(6)
@given(command_lines(), ENVIRONMENTS, st.sampled_from(["C", "POSIX", "C.UTF-8", "nonsense"]))
def test_a_program_ends_as_documented(jail, line, drawn, locale):
    """The same as a program of its own: a few, since each takes seconds to load."""
    if is_left_out(line) or any("\udcff" in word for word in line):
        return
    env = os.environ | environment(jail, drawn | {"LC_ALL": locale})
    done = subprocess.run(  # -P: a cache drawn into the folder of work has the package's name, and -m would take it
        [sys.executable, "-P", "-m", "dltutorial", *line],
        cwd=jail / "work", stdin=subprocess.DEVNULL, capture_output=True,
        env={name: value for name, value in env.items() if value is not None}, timeout=250, check=False,
    )  # fmt: skip
    judged(line, done.returncode, done.stderr.decode("utf-8", "replace"))


def test_the_jail_is_closed(jail):
    """What the tests above compare does change when something is written there."""
    before = surroundings(jail)
    (jail / "outside" / "x").mkdir()
    assert surroundings(jail) != before
    shutil.rmtree(jail / "outside" / "x")
