import json

import pytest
from test_exercises import CODE, edit, notebook

from dltutorial.cli import main
from dltutorial.course import exercise_status, exercises
from dltutorial.record.records import Writer


@pytest.fixture
def course(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "solutions").mkdir()
    for name in ("00_a.ipynb", "01_b.ipynb"):
        (tmp_path / "solutions" / name).write_text(notebook(CODE, "print(1)"))
    monkeypatch.chdir(tmp_path)
    exercises.build()
    return tmp_path


def row(stem="01_b"):
    table = exercise_status.status()
    return next(dict(zip(table.header, row, strict=True)) for row in table.rows if row[0] == stem)


@pytest.mark.usefixtures("course")
def test_status_counts_attempts_and_passes_and_shows_the_last():
    writer = Writer("01", "smoke")
    for status in ("not attempted", "wrong", "wrong", "passed", "wrong"):
        writer.write("thing", None, kind="check", status=status, failed="a tail")
    Writer("00", "smoke").write("other", None, kind="claim", status="shown")
    shown = row()
    assert (shown["attempts"], shown["times passed"]) == ("4", "1")
    assert shown["last check"].startswith("wrong: a tail")
    assert row("00_a")["last check"] == "not attempted yet"


def test_status_finds_records_of_kernels_that_had_no_runs_folder_set(course, monkeypatch):
    with monkeypatch.context() as kernel:
        kernel.setenv("DLTUTORIAL_RUNS", str(course / "exercises" / "runs"))
        Writer("01", "smoke").write("thing", kind="check", status="passed")
    assert row()["times passed"] == "1"


def test_the_capstone_is_the_last_row_and_has_checks_of_its_own(course):
    capstone = json.loads(notebook(CODE)) | {"metadata": {"dltutorial": {"chapter": "capstone"}}}
    (course / "solutions" / "capstone.ipynb").write_text(json.dumps(capstone))
    Writer("capstone", "smoke").write("capstone", True, kind="check", status="passed")
    assert [row[0] for row in exercise_status.status().rows] == ["00_a", "01_b", "capstone"]
    assert row("capstone")["times passed"] == "1"


@pytest.mark.parametrize("name", ["01", "1", "01_b", "01_b.ipynb", "exercises/01_b.ipynb"])
def test_reset_writes_a_new_exercise_and_keeps_a_copy_of_the_old_one(course, name, capsys):
    file = course / "exercises" / "01_b.ipynb"
    new = file.read_bytes()
    edit(file)
    old = file.read_bytes()
    capsys.readouterr()
    assert exercise_status.reset(name, yes=True) == 0
    assert file.read_bytes() == new
    first_line = capsys.readouterr().out.splitlines()[0]
    copy = course / first_line.removeprefix("your file is kept as ")
    assert copy.parent == file.parent / "kept"
    assert copy.read_bytes() == old


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_at_a_terminal_reset_asks(course, monkeypatch, answer, status):
    edit(course / "exercises" / "01_b.ipynb")
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert exercise_status.reset("01") == status
    assert ("mine" in (course / "exercises" / "01_b.ipynb").read_text()) == bool(status)


def test_the_commands_show_the_table_and_reset_an_exercise(course, capsys):
    edit(course / "exercises" / "01_b.ipynb")
    assert main(["exercises", "reset", "01", "--yes"]) == 0
    assert main(["exercises", "status"]) == 0
    assert "01_b" in capsys.readouterr().out
    assert "mine" not in (course / "exercises" / "01_b.ipynb").read_text()
