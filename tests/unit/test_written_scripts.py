import json
import os
import sys
from pathlib import Path

import pytest

from dltutorial.course import programs, scripts
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
    (tmp_path / "pyproject.toml").touch()
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


@pytest.mark.parametrize("old", ["c = 2", " = "])
def test_what_is_not_there_exactly_once_is_not_changed(course, old):
    scripts.take("train.py")
    with pytest.raises(CourseError, match=r"times in train\.py, not once"):
        scripts.change("train.py", "train_2.py", {old: "b = 3"})
    assert not Path("train_2.py").exists()


def test_a_changed_file_is_imported_anew(course, monkeypatch):
    monkeypatch.syspath_prepend(str(course))
    for number, text in enumerate(("a = 1\n", "a = 2\n")):
        scripts._write(Path("chapter_file.py"), text)
        scripts._write(Path("imports_it.py"), "import chapter_file\n")
        import imports_it  # forgotten, because a file in this folder changed

        assert imports_it.chapter_file.a == number + 1


def test_programs_of_a_notebook_find_this_python(monkeypatch):
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("PET_LOCAL_ADDR", raising=False)
    scripts.prepare()
    scripts.prepare()
    assert os.environ["PATH"].split(os.pathsep).count(str(Path(sys.executable).parent)) == 1
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert os.environ["PET_LOCAL_ADDR"] == "127.0.0.1"


def test_a_file_to_change_that_cannot_be_read_is_one_line(course):
    with pytest.raises(CourseError, match=r"cannot read train.py \(.*; run the cell that writes it again"):
        scripts.change("train.py", "train_2.py", {"b = 2": "b = 3"})


@pytest.fixture
def shell():
    """What runs a notebook's cells."""
    from IPython.core.interactiveshell import InteractiveShell

    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def outcome(shell, cell):
    """Run a cell, and return its error or None."""
    return shell.run_cell(cell).error_in_exec


@pytest.fixture
def prepared(shell, course):
    scripts.prepare()
    Path("fails.py").write_text("import other\nprint(1)\nprint([1][2])\n")
    Path("other.py").write_text("print('{\"rank\": 0}')\n")
    return shell


@pytest.mark.parametrize("cell", ["!python fails.py", "lines = !python fails.py"])
def test_a_cell_stops_with_the_error_of_its_program(prepared, capfd, cell):
    error = outcome(prepared, cell)
    assert isinstance(error, programs.ProgramFailed)
    assert str(error) == "python fails.py ended with exit status 1. IndexError: list index out of range"
    assert "line 3, in <module>" in capfd.readouterr().out


def test_a_program_may_fail_if_the_cell_says_so(prepared):
    assert outcome(prepared, "lines = !python fails.py || true") is None
    assert "IndexError: list index out of range" in prepared.user_ns["lines"]


def test_the_results_of_a_program_are_its_lines_of_json(prepared):
    assert outcome(prepared, "lines = !python other.py") is None
    assert programs.json_lines(["a warning", *prepared.user_ns["lines"]]) == [{"rank": 0}]
    with pytest.raises(CourseError, match="printed no line of JSON"):
        programs.json_lines(["a warning"])


@pytest.mark.parametrize(
    "output",
    [
        "[rank1]: Traceback\n[rank1]: ValueError: no\n[rank0]: RuntimeError: closed\n",
        "Traceback\nValueError: no\nE1 torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
    ],
)
def test_of_several_ranks_the_first_error_is_named(output):
    assert programs._first_error(output) == ("ValueError", "no")


@pytest.mark.parametrize("error", ["No module named 'ddp'", "python: can't open file '/x/ddp.py': [Errno 2]"])
def test_a_missing_file_of_a_chapter_names_the_cell_to_run(course, error):
    assert 'the cell that begins with %%writefile ddp.py or calls scripts.take("ddp.py")' in programs.how_to_get(error)
    assert programs.how_to_get(error.replace("ddp", "numpy")) == ""


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
