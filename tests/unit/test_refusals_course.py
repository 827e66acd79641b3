"""What the course's room refuses: one clear line each, and every file is as it was."""

import json
import os
import shutil
from pathlib import Path

import pytest
from test_exercises import CODE, edit, notebook

from dltutorial import cli, paths
from dltutorial.course import bench, benches, classroom, exercise_status, exercises, notebooks, report, runner
from dltutorial.errors import CourseError
from dltutorial.record import sharing

ROOT = Path(__file__).parents[2]
KNOWN = 'preset = "auto"\nsteps: int = 5'
PAIR = "each ### BEGIN SOLUTION of a code cell needs its ### END SOLUTION"


def command(*words):
    """Of the command line; the line that it prints."""

    def run():
        args = cli.make_parser().parse_args([str(word) for word in words])
        args.command(args)

    return run


def solution(source, kind="code", name="01_b.ipynb"):
    """A build with a solution of this source."""

    def build():
        Path("solutions", name).write_text(source if kind is None else notebook("x", source, kind=kind))
        exercises.build(Path())

    return build


def over(text, call):
    """A call that is to write ``mine``, where there is a file with this text, or another thing."""

    def write():
        make = {"pipe": os.mkfifo, "folder": os.mkdir, "device": lambda path: Path(path).symlink_to("/dev/zero")}
        if text in make:
            make[text]("mine")
        else:
            Path("mine").write_text(text, "utf-8", errors="surrogateescape")
        before = os.lstat("mine")
        try:
            call()
        finally:
            after = os.lstat("mine")
            assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    return write


def without(metadata):
    """Parameters for a notebook that does not say its kernel, or not its language."""

    def run():
        (own := paths.runs_dir() / "00_own.ipynb").parent.mkdir(parents=True, exist_ok=True)
        made = json.loads(notebook(KNOWN)) | {"metadata": metadata}
        made["cells"][0]["metadata"]["tags"] = ["parameters"]
        own.write_text(json.dumps(made))
        notebooks.checked(own, {"preset": "smoke"})

    return run


def joined(name="me", folder="class"):
    return lambda: classroom.join(Path(folder), name)


def joined_after(make):
    def join():
        make()
        classroom.join(Path("class"), "me")

    return join


def damaged_setting(make):
    def look():
        sharing.setting_file().parent.mkdir(parents=True)
        make(sharing.setting_file())
        classroom.status()

    return look


def shared_file(make):
    def look():
        classroom.join(Path("class"), "me")
        Path("class/me.jsonl").unlink()
        make(Path("class/me.jsonl"))
        classroom.status()

    return look


def left_while_the_class_is_away():
    classroom.join(Path("class"), "me")
    Path("class").rename("away")
    try:
        classroom.leave(remove=True)
    finally:
        Path("away").rename("class")
        assert sharing.membership().name == "me"
        Path("class/me.jsonl").unlink()


def damaged_page(name, make):
    """A report from pages that somebody has edited."""

    def write():
        page, mark = Path("pages", name), Path("pyproject.toml")  # which makes it the course's folder
        page.unlink()
        mark.touch()
        make(page)
        try:
            report.write("report")
        finally:
            mark.unlink()
            page.unlink(missing_ok=True)
            shutil.copy(ROOT / page, page)

    return write


def joined_where_my_records_are():
    (file := paths.records_file()).parent.mkdir(parents=True, exist_ok=True)
    classroom.join(file.parent, file.stem)


def over_my_own(name, *words):
    """A page without --out, where a file of its name lies that the course has not written."""

    def write():
        (own := paths.runs_dir() / f"{name}.html").parent.mkdir(parents=True, exist_ok=True)
        own.write_text("mine")
        try:
            command(*words)()
        finally:
            assert own.read_text() == "mine"

    return write


def kept_nowhere():
    Path("exercises/kept").write_text("a file where the folder should be")
    exercise_status.reset("00", yes=True, root=Path())


RECORD = '{"time": "2026", "chapter": "01", "what": "a", "kind": "claim", "preset": "smoke", "machine": "m"}\n'
FIGURES = dict.fromkeys(("bench", "command", "time", "preset", "machine", "versions", "rows"), "")
PAGE = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="dltutorial {}">'
BENCH = command("bench", "known", "--json", "mine")
REPORT, VIEW = command("report", "--out", "mine"), command("class", "view", "class", "--out", "mine")
# (what it is, a call, words of the line)
REFUSALS = [
    *((f"a chapter {name!r}", lambda n=name: notebooks.find(n), f"no chapter {name!r}; choose a number or name of: 00")
      for name in ("07", "nonsense", "", "fee")),
    ("an unknown chapter to run", lambda: runner.run(["nonsense"]), "no chapter 'nonsense'"),
    ("a misspelt parameter", lambda: runner.run(parameters={"stepz": 1}), "has no parameter 'stepz'; it has: preset"),
    *((f"parameters without {what}", without(metadata), "Restore its metadata from git") for what, metadata in (
        ("a kernel", {}), ("a language", {"kernelspec": {"name": "python3", "display_name": "x"}}))),
    ("an unknown preset", lambda: runner.run(preset="nonsense"), "preset 'nonsense' is not one of"),
    ("a run over a folder of mine", lambda: runner.run(out=Path("class")), "class is not empty; choose another folder"),
    *((f"a run over a {what}", over(what, lambda: runner.run(out=Path("mine"))), "mine: File exists; choose another f")
      for what in ("pipe", "my notes")),
    *(("markers that do not pair", solution(source), f"01_b.ipynb, cell 2: {PAIR}") for source in (
        "### BEGIN SOLUTION\nx", "x\n### END SOLUTION", "x = 1  ### BEGIN SOLUTION\n### END SOLUTION",
        "### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "### BEGIN SOLUTION\nx\n### END SOLUTIONS",
        "### BEGIN SOLUTION\nx\n### END SOLUTION\n### END SOLUTION")),
    ("a marker in a text", solution(CODE, "markdown"), f"01_b.ipynb, cell 2: {PAIR}"),
    ("a solution that is none", solution("{", None), "01_b.ipynb is not a notebook"),
    ("a solution of brackets", solution("[" * 100_000, None), "01_b.ipynb is not a notebook (brackets are nested too"),
    ("no solutions", lambda: exercises.build(Path("class")), "no notebooks NN_*.ipynb in class/solutions"),
    ("nobody to ask", lambda: exercise_status.reset("00", root=Path()), "nobody is here to answer; add --yes"),
    *((f"a reset of {name!r}", lambda n=name: exercise_status.reset(n, yes=True, root=Path()),
       f"no exercise {name or ''!r}; choose a number or name of: 00_a") for name in (None, "", "99", ".")),
    ("no place to keep", kept_nowhere, "exercises/kept: File exists; make room, or move it away"),
    *((f"a name {name!r}", joined(name), "bad name")
      for name in ("../escape", "a/b", "", ".hidden", "<b>", "line\nbr")),
    ("a long name", joined("x" * 41), "the name has 41 characters; take 40 at most"),
    ("a name that is taken", joined("taken"), "somebody is taken already in"),
    ("a class where my records are", joined_where_my_records_are, "holds your own records; choose another name"),
    ("a report over mine", over_my_own("report", "report"), "report.html is no page of the report and stays as it is"),
    ("a view over mine", over_my_own("class", "class", "view", "class"), "class.html is no page of the class and stay"),
    ("no class", joined(folder="nowhere"), "ask your instructor for the class's folder"),
    ("a file for a class", joined(folder="class/taken.jsonl"), "ask your instructor for the class's folder"),
    ("a second class", joined_after(joined()), "leave it first: dltutorial class leave"),
    ("a class that is away", left_while_the_class_is_away, "class is out of reach now; when it is not, again, or l"),
    *(("a damaged page", damaged_page("report.ipynb", make), words) for make, words in (
        (os.mkfifo, "no regular file; check the path"), (lambda page: page.write_text("{"), "not a notebook"),
        (lambda page: page.write_bytes(b"\xe9"), "not a notebook"), (lambda page: None, "No such file"),
        (lambda page: page.write_text('{"cells": [], "metadata": {}, "nbformat": 4}'), "restore them from git"))),
    *(("a damaged style", damaged_page("report.css", make), "report.ipynb or .css cannot be used")
      for make in (os.mkfifo, lambda page: None, lambda page: page.write_bytes(b"\xe9"))),
    *(("a damaged setting", damaged_setting(make), "class.json cannot be read; leave it with dltutorial class leave")
      for make in (os.mkfifo, os.mkdir, lambda file: file.write_text("[" * 9999), lambda file: file.write_text("3"))),
    *(("a shared file that is none", shared_file(make), "leave the class, and join again")
      for make in (os.mkfifo, os.mkdir, lambda file: file.symlink_to("/dev/zero"))),
    ("an unknown benchmark", command("bench", "unknown"), "no benchmark 'unknown'; choose one of: known"),
    ("figures below a file", command("bench", "known", "--json", "class/taken.jsonl/b.json"), "cannot write class/tak"),
    *((f"figures over {text[:20]!r}", over(text, BENCH), "mine is no result of dltutorial bench known and stays")
      for text in ("", "my notes", "3", '{"cells": []}', RECORD, '{"bench": 1}', json.dumps(FIGURES | {"notes": 1}),
                   json.dumps(FIGURES | {"bench": "other"}), "[" * 100_000, "\udcff", "pipe", "folder", "device")),
    *((f"a report over {text[:20]!r}", over(text, REPORT), "mine is no page of the report and stays as it is; give an")
      for text in ("", RECORD, "<!doctype html>", PAGE.format("class"), "\udcff", "pipe", "folder", "device")),
    *((f"a view over {text[:20]!r}", over(text, VIEW), "mine is no page of the class and stays as it is; give another")
      for text in (RECORD, PAGE.format("report"), "pipe", "folder")),
    ("a view over a learner's file", command("class", "view", "class", "--out", "class/taken.jsonl"), "no page of the"),
    ("a report over a notebook", lambda: report.write("report", Path("pages/report.ipynb")), "no page of the report"),
]  # fmt: skip


def everything():
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one exercise and one chapter, a class, and a benchmark that nobody may measure."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path.with_name(f"{tmp_path.name}-runs")))
    monkeypatch.delenv("DLTUTORIAL_RECORDS", raising=False)
    monkeypatch.setenv("DLTUTORIAL_NOTEBOOKS", "notebooks")
    monkeypatch.setattr(bench, "BENCHES", ("known",))
    monkeypatch.setattr(benches, "known", lambda preset, repeats: pytest.fail("it measured"), raising=False)
    for name in ("solutions", "notebooks", "class"):
        Path(name).mkdir()
    Path("class/taken.jsonl").write_text("somebody's\n")
    Path("solutions/00_a.ipynb").write_text(notebook(CODE, "print(1)"))
    exercises.build(Path())
    edit(Path("exercises/00_a.ipynb"))
    made = json.loads(notebook(KNOWN))
    made["cells"][0]["metadata"]["tags"] = ["parameters"]
    made["metadata"] = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    Path("notebooks/00_welcome.ipynb").write_text(json.dumps(made))
    shutil.copytree(ROOT / "pages", "pages")


@pytest.mark.parametrize(("call", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_what_cannot_be_gets_one_line_and_changes_no_file(course, call, words):
    before = everything()
    with pytest.raises(CourseError) as refused:
        call()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value).replace("line\nbr", "")
    assert {path: text for path, text in everything().items() if path in before} == before
    assert not Path("runs").exists()
