import contextlib
import json
import os
import sys
from pathlib import Path

import pytest
from test_exercises import CODE, edit, notebook

from dltutorial import paths
from dltutorial.cli import main
from dltutorial.course import checks, exercise_status, exercises, notebooks
from dltutorial.course.checks import Registry
from dltutorial.errors import CourseError
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


def test_status_counts_attempts_and_passes_and_tells_the_last_and_the_best(course):
    writer = Writer("01", "smoke")
    for status, passed in (("not attempted", 0), ("wrong", 1), ("wrong", 2), ("passed", 3), ("wrong", 0)):
        writer.write("thing", None, kind="check", status=status, cases_passed=passed, cases=3, failed="a tail")
    Writer("00", "smoke").write("other", None, kind="claim", status="shown")
    told = row(course)
    assert (told["attempts"], told["passed"], told["best"]) == ("4", "1", "3 of 3 cases")
    assert told["last check"].startswith("wrong: a tail")
    assert row(course, "00_a")["last check"] == "not attempted yet"


def test_status_reads_records_of_an_older_release_and_stops_at_a_broken_line(course, capsys):
    Writer("01", "smoke").write("thing", True, kind="check", status="passed")
    file = paths.records_file()
    file.write_text(file.read_text() + "no record\n{}\n")
    assert row(course)["passed"] == "1"
    assert row(course)["best"] == "–"
    assert "line 3 is not a record" in capsys.readouterr().err


def test_the_capstone_stands_last_and_has_checks_of_its_own(course):
    made = json.loads(notebook(CODE)) | {"metadata": {"dltutorial": {"chapter": "capstone"}}}
    (course / "solutions" / "capstone.ipynb").write_text(json.dumps(made))
    exercises.build(course)
    Writer("capstone", "smoke").write("capstone", True, kind="check", status="passed", cases_passed=11, cases=11)
    assert [row[0] for row in exercise_status.status(course).rows] == ["00_a", "01_b", "capstone"]
    assert row(course, "capstone")["best"] == "11 of 11 cases"
    assert exercise_status.reset("capstone", yes=True, root=course) == 0


ODD = ["\ud800", "a\nb", "\0", 10**400, -1, 1.5, True, None, [1], {"a": 1}]


@pytest.mark.parametrize("odd", ODD)
def test_status_of_odd_records_can_be_printed(course, odd, monkeypatch, capsys):
    monkeypatch.chdir(course)
    (course / "pyproject.toml").touch()
    good = Writer("01", "smoke").write("thing", kind="check", status="wrong", cases=2, cases_passed=1, failed="a tail")
    for key in ("cases", "cases_passed", "failed", "status", "time", "value", "hint"):
        odd_one = json.dumps(good | {key: odd if key != "time" else f"\ud800\n{odd}"})
        paths.records_file().write_text(paths.records_file().read_text() + odd_one + "\n")
    assert main(["exercises", "status"]) == 0
    table = capsys.readouterr().out
    assert len(table.encode().splitlines()) == 4
    assert row(course)["best"] == "1 of 2 cases"


@pytest.mark.parametrize("line", ["[" * 100_000, '{"value": ' + "7" * 5000 + "}", "\0" * 99], ids=["[", "7", "NUL"])
def test_status_of_damaged_records_counts_all_others_and_names_the_line(course, line, capsys):
    Writer("01", "smoke").write("thing", kind="check", status="wrong")
    file = paths.records_file()
    file.write_text(file.read_text() + line)
    Writer("01", "smoke").write("thing", kind="check", status="passed")
    assert (row(course)["attempts"], row(course)["passed"]) == ("2", "1")
    told = f"dltutorial: {file}, line 2 cannot be read, so passed over (1 such)"
    assert capsys.readouterr().err.splitlines() == [told, told]


def test_status_finds_records_of_kernels_that_had_no_runs_folder_set(course):
    Writer("01", "smoke", course / "exercises/runs/records.jsonl").write("thing", kind="check", status="passed")
    assert row(course)["passed"] == "1"


def test_status_tells_what_became_of_each_file(course):
    file = course / "exercises" / "01_b.ipynb"
    assert row(course)["file"] == "as it came"
    edit(file, '"execution_count": null', '"execution_count": 7')
    assert row(course)["file"] == "run"
    edit(file)
    assert row(course)["file"] == "edited"
    file.write_text('{"cells": [')
    assert row(course)["file"] == "unreadable"
    file.unlink()
    assert row(course)["file"] == "missing"


def test_status_tells_of_a_newer_version_and_where_it_is(course):
    edit(course / "exercises" / "01_b.ipynb")
    assert row(course)["newer version"] == "no"
    edit(course / "solutions" / "01_b.ipynb", by="print(2)")
    assert row(course)["newer version"] == "yes: dltutorial exercises build"
    exercises.build(course)
    assert row(course)["newer version"] == "exercises/01_b.new.ipynb"


def test_an_opened_exercise_is_told_of_its_newer_version(course, monkeypatch, capsys):
    file = course / "exercises" / "01_b.ipynb"
    edit(file)
    for nothing in (None, "", str(file), str(course / "notebooks" / "01_b.ipynb"), "exercises"):
        assert exercise_status.notice(nothing) == ""
    edit(course / "solutions" / "01_b.ipynb", by="print(2)")
    assert "In a terminal: dltutorial exercises build." in exercise_status.notice(str(file))
    exercises.build(course)
    monkeypatch.setenv("JPY_SESSION_NAME", str(file))
    capsys.readouterr()
    _ = Registry().layer_time_s
    assert "It is exercises/01_b.new.ipynb. Yours stays as it is." in capsys.readouterr().out


def test_files_of_an_editor_or_a_share_beside_the_checks_are_none(tmp_path, monkeypatch):
    names = dir(Registry())
    (tmp_path / "._ring.py").write_bytes(b"\xff\x00EXERCISE = ")
    (tmp_path / ".#ring.py").symlink_to("somebody@somewhere.1234")
    (tmp_path / "old.py").write_bytes(b"# \xe9\n")
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(tmp_path)])
    assert names and dir(Registry()) == names


@pytest.mark.parametrize("name", ["01", "1", "01_b", "b", "01_b.ipynb", "exercises/01_b.ipynb"])
def test_reset_makes_it_fresh_keeps_the_old_one_and_tells_where(course, name, capsys):
    file = course / "exercises" / "01_b.ipynb"
    fresh = file.read_bytes()
    edit(file)
    mine = file.read_bytes()
    assert exercise_status.reset(name, yes=True, root=course) == 0
    assert file.read_bytes() == fresh
    kept = course / capsys.readouterr().out.strip().rpartition(" ")[2]
    assert kept.parent == file.parent / "kept"
    assert kept.read_bytes() == mine


def test_two_resets_in_the_same_second_keep_two_copies(course):
    file = course / "exercises" / "01_b.ipynb"
    for text in ("print('one')", "print('two')", "print('three')"):
        edit(file, by=text)
        exercise_status.reset("01", yes=True, root=course)
    texts = [kept.read_text() for kept in (file.parent / "kept").iterdir()]
    assert [sum(word in text for text in texts) for word in ("one", "two", "three")] == [1, 1, 1]


@pytest.mark.parametrize("broken", [b"", b'{"cells": [', b"\xff\xfe\x00", b'{"cells": 3}'])
def test_a_broken_notebook_can_be_reset_and_is_kept(course, broken):
    file = course / "exercises" / "01_b.ipynb"
    file.write_bytes(broken)
    assert exercise_status.reset("01", yes=True, root=course) == 0
    assert exercises.look(file).state == "as it came"
    assert next((file.parent / "kept").iterdir()).read_bytes() == broken


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_at_a_terminal_reset_asks(course, monkeypatch, answer, status):
    edit(course / "exercises" / "01_b.ipynb")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert exercise_status.reset("01", root=course) == status
    assert ("mine" in (course / "exercises" / "01_b.ipynb").read_text()) == bool(status)


def test_what_is_saved_while_a_reset_writes_is_not_lost(course, monkeypatch):
    file, fsync = course / "exercises" / "01_b.ipynb", os.fsync

    def save(number):
        file.write_text("saved just now")
        fsync(number)

    monkeypatch.setattr(os, "fsync", save)
    with pytest.raises(CourseError, match="was saved just now, and stays"):
        exercise_status.reset("01", yes=True, root=course)
    assert file.read_text() == "saved just now"


def test_a_reset_and_a_build_wait_for_each_other(course, monkeypatch):
    held = []

    @contextlib.contextmanager
    def locked(folder, waiting=""):
        held.append(folder)
        yield
        held.append((course / "exercises" / "01_b.ipynb").read_text())

    edit(course / "exercises" / "01_b.ipynb")
    monkeypatch.setattr(paths, "locked", locked)
    exercise_status.reset("01", yes=True, root=course)
    assert held[0] == course
    assert "mine" not in held[1]


@pytest.mark.parametrize("words", [["--yes", "01"], ["01", "--yes"]])
def test_the_options_of_a_reset_may_stand_before_or_behind_its_name(course, words, monkeypatch):
    (course / "pyproject.toml").touch()
    monkeypatch.chdir(course)
    edit(course / "exercises" / "01_b.ipynb")
    assert main(["exercises", "reset", *words]) == 0
    assert exercises.look(course / "exercises" / "01_b.ipynb").is_pristine


def test_the_command_shows_the_table_and_refuses_a_name_it_has_no_use_for(capsys):
    assert main(["exercises", "status"]) == 0
    assert "01_train_a_weather_model" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["exercises", "status", "01"])
    assert "unrecognized arguments: 01; see dltutorial --help" in capsys.readouterr().err


def test_every_committed_exercise_carries_its_version():
    for file in notebooks.chapters(Path(__file__).parents[2] / "exercises"):
        about = json.loads(file.read_text())["metadata"]["dltutorial"]
        assert about["version"] == exercises.look(file).now, file.name
