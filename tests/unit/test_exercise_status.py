import json

import pytest
from test_exercises import CODE, edit, notebook

from dltutorial.cli import main
from dltutorial.course import exercise_status, exercises
from dltutorial.record.records import Writer


@pytest.fixture
def course(tmp_path):
    (tmp_path / "solutions").mkdir()
    for name in ("00_a.ipynb", "01_b.ipynb"):
        (tmp_path / "solutions" / name).write_text(notebook(CODE, "print(1)"))
    exercises.build(tmp_path)
    return tmp_path


def row(course, stem="01_b"):
    table = exercise_status.status(course)
    return next(dict(zip(table.header, row, strict=True)) for row in table.rows if row[0] == stem)


def test_status_counts_attempts_and_passes_and_shows_the_last_and_the_best(course):
    writer = Writer("01", "smoke")
    for status, passed in (("not attempted", 0), ("wrong", 1), ("wrong", 2), ("passed", 3), ("wrong", 0)):
        writer.write("thing", None, kind="check", status=status, cases_passed=passed, cases=3, failed="a tail")
    Writer("00", "smoke").write("other", None, kind="claim", status="shown")
    shown = row(course)
    assert (shown["attempts"], shown["times passed"], shown["best"]) == ("4", "1", "3 of 3 cases")
    assert shown["last check"].startswith("wrong: a tail")
    assert row(course, "00_a")["last check"] == "not attempted yet"


def test_status_finds_records_of_kernels_that_had_no_runs_folder_set(course, monkeypatch):
    with monkeypatch.context() as kernel:
        kernel.setenv("DLTUTORIAL_RUNS", str(course / "exercises" / "runs"))
        Writer("01", "smoke").write("thing", kind="check", status="passed")
    assert row(course)["times passed"] == "1"


def test_the_capstone_is_the_last_row_and_has_checks_of_its_own(course):
    capstone = json.loads(notebook(CODE)) | {"metadata": {"dltutorial": {"chapter": "capstone"}}}
    (course / "solutions" / "capstone.ipynb").write_text(json.dumps(capstone))
    Writer("capstone", "smoke").write("capstone", True, kind="check", status="passed", cases_passed=11, cases=11)
    assert [row[0] for row in exercise_status.status(course).rows] == ["00_a", "01_b", "capstone"]
    assert row(course, "capstone")["best"] == "11 of 11 cases"


@pytest.mark.parametrize("name", ["01", "1", "01_b", "b", "01_b.ipynb", "exercises/01_b.ipynb"])
def test_reset_writes_a_new_exercise_and_keeps_a_copy_of_the_old_one(course, name, monkeypatch, capsys):
    monkeypatch.chdir(course)
    file = course / "exercises" / "01_b.ipynb"
    new = file.read_bytes()
    edit(file)
    old = file.read_bytes()
    capsys.readouterr()
    assert exercise_status.reset(name, yes=True, root=course) == 0
    assert file.read_bytes() == new
    first_line = capsys.readouterr().out.splitlines()[0]
    copy = course / first_line.removeprefix("your file is kept as ")
    assert copy.parent == file.parent / "kept"
    assert copy.read_bytes() == old


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_at_a_terminal_reset_asks(course, monkeypatch, answer, status):
    edit(course / "exercises" / "01_b.ipynb")
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert exercise_status.reset("01", root=course) == status
    assert ("mine" in (course / "exercises" / "01_b.ipynb").read_text()) == bool(status)


def test_the_commands_show_the_table_and_reset_an_exercise(course, monkeypatch, capsys):
    (course / "pyproject.toml").touch()
    monkeypatch.chdir(course)
    edit(course / "exercises" / "01_b.ipynb")
    assert main(["exercises", "reset", "01", "--yes"]) == 0
    assert main(["exercises", "status"]) == 0
    assert "01_b" in capsys.readouterr().out
    assert "mine" not in (course / "exercises" / "01_b.ipynb").read_text()
