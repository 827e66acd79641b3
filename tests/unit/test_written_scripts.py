import json
import os
import sys
from pathlib import Path

import pytest

from dltutorial import paths
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


def latin_1(name):
    Path(name).write_bytes(b"# caf\xe9")


def dangling(name):
    Path(name).symlink_to("nowhere")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, latin_1, dangling])
def test_whatever_has_a_files_place_is_kept(course, make, capsys):
    make("train.py")
    scripts.take("train.py")
    assert "your own train.py is now train.mine1.py" in capsys.readouterr().out
    assert os.path.lexists("train.mine1.py")
    make("train_2.py")
    scripts.change("train.py", "train_2.py", {"b = 2": "b = 3"})
    assert os.path.lexists("train_2.mine1.py")


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
    for text in ("first", "a\rb", "a\rc", "second"):  # a cell that is edited and run again leaves one file
        shell.run_cell(f"%%writefile answer.py\n{text}\n")
    assert files(tmp_path) == {"answer.py": "second\n"}
    (tmp_path / "answer.py").write_text("written in an editor\n")
    shell.run_cell("%%writefile answer.py\nblank\n")
    shell.run_cell("%%writefile -a answer.py\nmore\n")
    assert files(tmp_path) == {"answer.py": "blank\nmore\n", "answer.mine1.py": "written in an editor\n"}
    assert "your own answer.py is now answer.mine1.py" in capsys.readouterr().out
    shell.run_cell("%%writefile answer.py -a\nmore\n")
    assert files(tmp_path)["answer.py"] == "blank\nmore\nmore\n"


def test_a_file_at_home_is_kept_too(shell, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "answer.py").write_text("written in an editor\n")
    scripts.prepare()
    shell.run_cell("%%writefile ~/answer.py\nblank\n")
    assert files(tmp_path) == {"answer.py": "blank\n", "answer.mine1.py": "written in an editor\n"}


def test_a_file_that_cannot_be_set_aside_is_one_line(course, monkeypatch):
    Path("train.py").write_text("mine")

    def rename(file, target):
        raise PermissionError(1, "Operation not permitted", str(file))

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(CourseError, match=r"cannot keep your own train.py .Operation not permitted.; rename it"):
        scripts.take("train.py")
    assert Path("train.py").read_text() == "mine"


@pytest.mark.parametrize("make", [lambda file: file.write_text("mine"), Path.mkdir])
def test_two_who_set_a_file_aside_at_once_never_choose_one_name(course, monkeypatch, make):
    plain, second = Path.rename, []

    def rename(file, target):
        if not second:  # another process does all of it between this one's choice of a name and its renaming
            second.append(None)
            plain(file, "away")
            make(file)
            second[0] = paths.set_aside(file)
            plain(Path("away"), file)
        return plain(file, target)

    make(Path("train.py"))
    monkeypatch.setattr(Path, "rename", rename)
    first = paths.set_aside(Path("train.py"))
    assert (
        {first.name, second[0].name} == {"train.mine1.py", "train.mine2.py"} == {path.name for path in course.iterdir()}
    )


@pytest.mark.parametrize("make", [lambda file: file.write_text("mine"), Path.mkdir])
def test_a_name_that_is_not_used_in_the_end_is_free_again(course, monkeypatch, make):
    make(Path("train.py"))

    def rename(file, target):
        raise PermissionError(1, "Operation not permitted", str(file))

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(CourseError, match=r"cannot keep your own train\.py"):
        paths.set_aside(Path("train.py"))
    assert [path.name for path in course.iterdir()] == ["train.py"]


@pytest.mark.parametrize("name", ['"my -a run.py"', "-- -a"])
def test_a_name_that_looks_like_an_option_is_kept_too(shell, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / name.removeprefix("-- ").strip('"')
    file.write_text("written in an editor\n")
    scripts.prepare()
    shell.run_cell(f"%%file {name}\nblank\n")
    shell.run_cell(f"%%writefile {name}\nblank\n")
    shell.run_cell("%%writefile\nblank\n")  # IPython says what is missing
    assert "written in an editor\n" in files(tmp_path).values()
    assert file.read_text() == "blank\n"


def saved_as_it_goes_to_disk(monkeypatch, text):
    """Somebody saves train.py in the moment in which its newer version, written beside, goes to disk."""
    fsync = os.fsync

    def save(number):
        Path("train.py").write_text(text)
        fsync(number)

    monkeypatch.setattr(os, "fsync", save)


@pytest.mark.parametrize("there", [None, "a = 1\nb = 2\n", "mine"])
def test_a_file_that_is_saved_while_it_is_taken_stays(course, monkeypatch, there):
    if there:
        Path("train.py").write_text(there)
    with (
        monkeypatch.context() as patch,
        pytest.raises(CourseError, match=r"train\.py was saved just now, and stays; run"),
    ):
        saved_as_it_goes_to_disk(patch, "saved just now")
        scripts.take("train.py")
    assert Path("train.py").read_text() == "saved just now"
    scripts.take("train.py")
    kept = {text for name, text in files(course).items() if ".mine" in name}
    assert kept == {"saved just now", *(["mine"] if there == "mine" else [])}


def test_a_file_that_is_saved_while_its_cell_runs_stays(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scripts.prepare()
    shell.run_cell("%%writefile train.py\nfirst\n")
    with monkeypatch.context() as patch:
        saved_as_it_goes_to_disk(patch, "saved just now")
        result = shell.run_cell("%%writefile train.py\nsecond\n")
    assert "train.py was saved just now, and stays; run this again" in str(result.error_in_exec)
    assert files(tmp_path) == {"train.py": "saved just now"}
    shell.run_cell("%%writefile train.py\nsecond\n")
    assert files(tmp_path) == {"train.py": "second\n", "train.mine1.py": "saved just now"}


@pytest.mark.parametrize("own", ["first\r\n", "first\r", "first\n\n", "first"])
def test_an_edit_of_line_ends_alone_is_kept(shell, tmp_path, monkeypatch, own):
    monkeypatch.chdir(tmp_path)
    scripts.prepare()
    shell.run_cell("%%writefile train.py\nfirst\n")
    (tmp_path / "train.py").write_bytes(own.encode())
    for _ in range(2):
        shell.run_cell("%%writefile train.py\nfirst\n")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "train.py": b"first\n", "train.mine1.py": own.encode(),
    }  # fmt: skip


def test_a_file_that_a_cell_writes_again_keeps_its_rights_and_its_other_names_what_they_hold(
    shell, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    scripts.prepare()
    shell.run_cell("%%writefile job.sbatch\nfirst\n")
    (tmp_path / "job.sbatch").chmod(0o755)
    (tmp_path / "mine.sbatch").hardlink_to(tmp_path / "job.sbatch")
    shell.run_cell("%%writefile job.sbatch\nsecond\n")
    assert (tmp_path / "job.sbatch").stat().st_mode & 0o777 == 0o755
    assert files(tmp_path) == {"job.sbatch": "second\n", "mine.sbatch": "first\n"}


@pytest.mark.parametrize("name", ["nowhere/train.py", "folder", "device"])
def test_where_no_file_can_be_the_cell_does_what_ipythons_own_does(shell, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to(os.devnull)
    scripts.prepare()
    assert bool(shell.run_cell(f"%%writefile {name}\ntext\n").error_in_exec) == (name != "device")
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "device"}
    assert (tmp_path / "device").is_symlink()


def test_a_cell_of_a_user_without_a_home_writes_where_ipython_does(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~nobody-of-that-name").mkdir()
    scripts.prepare()
    shell.run_cell("%%writefile ~nobody-of-that-name/train.py\ntext\n")
    assert files(tmp_path / "~nobody-of-that-name") == {"train.py": "text\n"}
