"""What the commands of the course refuse: one clear line each, and no file changes."""

import json
from pathlib import Path

import pytest
from test_exercises import CODE, edit, notebook

from dltutorial.course import exercise_status, exercises, runner
from dltutorial.errors import CourseError

PAIR = "01_b.ipynb, cell 2: each ### BEGIN SOLUTION of a code cell needs its ### END SOLUTION"


def solution(text):
    """A build with a solution notebook of this text."""

    def build():
        Path("solutions/01_b.ipynb").write_text(text)
        exercises.build(Path())

    return build


def reset(name):
    return lambda: exercise_status.reset(name, yes=True, root=Path())


# (what it is, a call, words of the line)
REFUSALS = [
    ("an unknown chapter", lambda: runner.run(["nonsense"]), "no chapter 'nonsense'; choose a number or name of: 00"),
    ("a misspelt parameter", lambda: runner.run(parameters={"stepz": 1}), "has no parameter 'stepz'; it has: preset"),
    ("an unknown preset", lambda: runner.run(preset="nonsense"), "preset 'nonsense' is not one of"),
    ("a folder of mine", lambda: runner.run(out=Path("mine")), "mine is not empty; choose another folder"),
    ("a file of mine", lambda: runner.run(out=Path("mine/notes")), "mine/notes: File exists; choose another f"),
    ("a block without end", solution(notebook("x", "### BEGIN SOLUTION\nx")), PAIR),
    ("an end without block", solution(notebook("x", "x\n### END SOLUTION")), PAIR),
    ("a solution in a text", solution(notebook("x", CODE, kind="markdown")), PAIR),
    ("no solutions", lambda: exercises.build(Path("mine")), "no notebooks NN_*.ipynb in mine/solutions"),
    ("an unknown exercise", reset("99"), "no exercise '99'; choose a number or name of: 00_a"),
]


def everything():
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one exercise and one chapter, and a folder of the learner's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLTUTORIAL_NOTEBOOKS", "notebooks")
    for name in ("solutions", "notebooks", "mine"):
        Path(name).mkdir()
    Path("mine/notes").write_text("mine")
    Path("solutions/00_a.ipynb").write_text(notebook(CODE, "print(1)"))
    exercises.build(Path())
    edit(Path("exercises/00_a.ipynb"))
    chapter = json.loads(notebook('preset = "auto"\nsteps: int = 5'))
    chapter["cells"][0]["metadata"]["tags"] = ["parameters"]
    chapter["metadata"] = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    Path("notebooks/00_welcome.ipynb").write_text(json.dumps(chapter))


@pytest.mark.parametrize(("call", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_what_cannot_be_gets_one_line_and_changes_no_file(course, call, words):
    before = everything()
    with pytest.raises(CourseError) as refused:
        call()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert {path: text for path, text in everything().items() if path in before} == before
    assert not Path("runs").exists()
