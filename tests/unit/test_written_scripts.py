import json
import os
import sys
from pathlib import Path

import pytest

from dltutorial.course import scripts
from dltutorial.errors import CourseError


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of two chapters, and an empty folder to work in."""
    (folder := tmp_path / "notebooks").mkdir()
    for name, sources in {
        "00_first": ["preset = 1", "%%writefile train.py\na = 1\nb = 2\n"],
        "01_second": ["%%writefile train.py\nother", "%%writefile ddp.py\nimport train"],
    }.items():
        cells = [{"cell_type": "code", "source": text, "metadata": {}} for text in sources]
        (folder / f"{name}.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}}))
    monkeypatch.setenv("DLTUTORIAL_NOTEBOOKS", str(folder))
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    return work


def files(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_files_are_taken_from_the_first_chapter_that_writes_them(course):
    scripts.take("train.py", "ddp.py")
    assert files(course) == {"train.py": "a = 1\nb = 2\n", "ddp.py": "import train\n"}


def test_a_learners_own_file_is_kept_beside(course, capsys):
    for own in ("mine", "mine as well"):
        Path("train.py").write_text(own)
        scripts.take("train.py")
        scripts.take("train.py")
    assert files(course) == {"train.py": "a = 1\nb = 2\n", "train.mine1.py": "mine", "train.mine2.py": "mine as well"}
    assert capsys.readouterr().out.count("your own train.py is now train.mine") == 2


def test_what_no_chapter_writes_is_one_line(course):
    with pytest.raises(CourseError, match=r"no chapter writes 'other\.py'"):
        scripts.take("other.py")


def test_a_changed_file_shows_its_difference(course, capsys):
    scripts.take("train.py")
    scripts.change("train.py", "train_2.py", {"b = 2": "b = 3"})
    assert Path("train_2.py").read_text() == "a = 1\nb = 3\n"
    assert "-b = 2\n+b = 3" in capsys.readouterr().out


def test_a_learners_own_file_is_kept_from_a_change(course):
    scripts.take("train.py")
    for _ in range(2):
        Path("quick.py").write_text("mine")
        scripts.change("train.py", "quick.py", {"b = 2": "b = 3"})
    scripts.change("train.py", "quick.py", {"b = 2": "b = 3"})  # as it is: nothing to keep
    assert {name: text for name, text in files(course).items() if name != "train.py"} == {
        "quick.py": "a = 1\nb = 3\n", "quick.mine1.py": "mine", "quick.mine2.py": "mine",
    }  # fmt: skip


@pytest.mark.parametrize("old", ["c = 2", " = "])
def test_what_is_not_there_exactly_once_is_not_changed(course, old):
    scripts.take("train.py")
    with pytest.raises(CourseError, match=r"times in train\.py, not once"):
        scripts.change("train.py", "train_2.py", {old: "b = 3"})
    assert not Path("train_2.py").exists()


def test_the_source_of_functions_is_shown(capsys):
    scripts.source(scripts.take, scripts.source)
    out = capsys.readouterr().out
    assert "def take(" in out
    assert "def source(" in out


def test_programs_of_a_notebook_find_this_python(monkeypatch):
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    scripts.prepare()
    scripts.prepare()
    assert os.environ["PATH"].split(os.pathsep).count(str(Path(sys.executable).parent)) == 1
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_a_file_to_change_that_cannot_be_read_is_one_line(course):
    with pytest.raises(CourseError, match=r"cannot read train.py \(.*; run the cell that writes it again"):
        scripts.change("train.py", "train_2.py", {"b = 2": "b = 3"})


@pytest.fixture
def shell():
    """What runs a notebook's cells."""
    from IPython.core.interactiveshell import InteractiveShell

    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def test_run_all_keeps_a_file_that_was_edited_outside_of_its_cell(shell, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scripts.prepare()
    scripts.prepare()
    for text in ("first", "other", "second"):  # a cell that is edited and run again leaves one file
        shell.run_cell(f"%%writefile answer.py\n{text}\n")
    assert files(tmp_path) == {"answer.py": "second\n"}
    (tmp_path / "answer.py").write_text("written in an editor\n")
    shell.run_cell("%%writefile answer.py\nblank\n")
    shell.run_cell("%%writefile -a answer.py\nmore\n")
    assert files(tmp_path) == {"answer.py": "blank\nmore\n", "answer.mine1.py": "written in an editor\n"}
    assert "your own answer.py is now answer.mine1.py" in capsys.readouterr().out
    shell.run_cell("%%writefile answer.py -a\nmore\n")
    assert files(tmp_path)["answer.py"] == "blank\nmore\nmore\n"
