import contextlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from dltutorial.course import exercise_status, exercises
from dltutorial.errors import CourseError

CODE = """def double(x):
    \"\"\"Twice x.\"\"\"
    ### BEGIN SOLUTION
    # HINT: add it to itself
    if x:
        return x + x
    return x
    ### END SOLUTION


double(2)"""
BLANK = """def double(x):
    \"\"\"Twice x.\"\"\"
    # YOUR CODE HERE
    # Hint: add it to itself
    raise NotImplementedError


double(2)"""


def notebook(*sources, kind="code"):
    cells = [
        {"cell_type": kind, "id": f"c{i}", "metadata": {"tags": ["t"]}, "source": source}
        | ({"outputs": [{"output_type": "stream"}], "execution_count": 3} if kind == "code" else {})
        for i, source in enumerate(sources)
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


@pytest.fixture
def course(tmp_path):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "00_a.ipynb").write_text(notebook(CODE, "print(1)"))
    return tmp_path


def edit(file, text="print(1)", by="print('mine')"):
    file.write_text(file.read_text().replace(text, by))


def test_a_solution_becomes_a_blank_with_its_hint_at_the_right_indentation():
    assert exercises.blank(CODE) == BLANK


def test_several_blocks_in_one_cell_become_several_blanks():
    block = "### BEGIN SOLUTION\nx = 1\n### END SOLUTION"
    blank = "# YOUR CODE HERE\nraise NotImplementedError"
    assert exercises.blank(f"{block}\ny = 2\n{block}") == f"{blank}\ny = 2\n{blank}"


def test_an_exercise_differs_only_in_its_blanks_and_has_no_outputs(course):
    assert exercises.build(course) == 0
    cells = json.loads((course / "exercises" / "00_a.ipynb").read_text())["cells"]
    assert "".join(cells[0]["source"]) == BLANK
    assert "".join(cells[1]["source"]) == "print(1)"
    assert [(cell["id"], cell["outputs"], cell["execution_count"]) for cell in cells] == [
        ("c0", [], None),
        ("c1", [], None),
    ]
    assert cells[0]["metadata"] == {"tags": ["t"]}


def test_outputs_of_a_cell_that_is_no_code_do_not_make_an_exercise_look_run(course):
    solution = json.loads(notebook(CODE))
    text = {"cell_type": "markdown", "id": "t", "metadata": {}, "source": "Text.", "outputs": 1, "execution_count": 3}
    solution["cells"].append(text)
    (course / "solutions" / "00_a.ipynb").write_text(json.dumps(solution))
    exercises.build(course)
    made = course / "exercises" / "00_a.ipynb"
    assert json.loads(made.read_text())["cells"][1].keys() == {"cell_type", "id", "metadata", "source"}
    assert exercises.look(made).state == "as it came"


def test_check_tells_what_is_out_of_step_and_writes_nothing(course, capsys):
    assert exercises.build(course, check=True) == 1
    assert not (course / "exercises").exists()
    exercises.build(course)
    assert exercises.build(course, check=True) == 0
    edit(course / "solutions" / "00_a.ipynb")
    assert exercises.build(course, check=True) == 1
    assert "00_a.ipynb is out of step" in capsys.readouterr().err


def test_an_untouched_exercise_follows_its_solution(course):
    exercises.build(course)
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    assert exercises.build(course) == 0
    assert "print(2)" in (course / "exercises" / "00_a.ipynb").read_text()


def test_an_edited_copy_is_kept_as_it_is_and_stays_quiet_while_nothing_is_newer(course, capsys):
    exercises.build(course)
    mine = course / "exercises" / "00_a.ipynb"
    edit(mine)
    before = mine.read_bytes()
    capsys.readouterr()
    assert exercises.build(course) == 0
    assert (mine.read_bytes(), capsys.readouterr().out) == (before, "")
    assert list(mine.parent.iterdir()) == [mine]


def test_a_newer_version_comes_beside_an_edited_copy_and_is_told_once(course, capsys):
    exercises.build(course)
    mine = course / "exercises" / "00_a.ipynb"
    edit(mine)
    before = mine.read_bytes()
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    capsys.readouterr()
    assert [exercises.build(course), exercises.build(course)] == [0, 0]
    assert mine.read_bytes() == before
    assert "print(2)" in mine.with_name("00_a.new.ipynb").read_text()
    assert capsys.readouterr().out.count("its new version is exercises/00_a.new.ipynb") == 1


def test_work_in_the_new_version_beside_is_kept_when_a_third_comes(course):
    exercises.build(course)
    folder = course / "exercises"
    edit(folder / "00_a.ipynb")
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    exercises.build(course)
    edit(folder / "00_a.new.ipynb", "print(2)", "print('mine too')")
    edit(course / "solutions" / "00_a.ipynb", "print(2)", "print(3)")
    exercises.build(course)
    assert "print(3)" in (folder / "00_a.new.ipynb").read_text()
    assert "mine too" in next((folder / "kept").iterdir()).read_text()


def test_force_replaces_an_edited_copy_and_keeps_it(course):
    exercises.build(course)
    mine = course / "exercises" / "00_a.ipynb"
    edit(mine)
    assert exercises.build(course, force=True) == 0
    assert "mine" not in mine.read_text()
    assert "mine" in next((mine.parent / "kept").iterdir()).read_text()


def run_by_jupyter(file):
    """What JupyterLab writes after a run: results, and its own order of keys."""
    found = json.loads(file.read_text())
    for number, cell in enumerate(cell for cell in found["cells"] if cell["cell_type"] == "code"):
        cell.update(execution_count=number, outputs=[{"output_type": "stream", "name": "stdout", "text": ["seen\n"]}])
    file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return file.read_bytes()


def test_the_results_of_an_exercise_that_was_only_run_stay_while_nothing_is_newer(course, capsys):
    exercises.build(course)
    file = course / "exercises" / "00_a.ipynb"
    ran = run_by_jupyter(file)
    capsys.readouterr()
    assert exercises.build(course) == 0
    assert (file.read_bytes(), capsys.readouterr().out) == (ran, "")
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("force", [False, True])
def test_when_a_newer_version_replaces_an_exercise_that_was_run_its_results_are_kept(course, capsys, force):
    exercises.build(course)
    file = course / "exercises" / "00_a.ipynb"
    ran = run_by_jupyter(file)
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    capsys.readouterr()
    assert exercises.build(course, force=force) == 0
    assert "print(2)" in file.read_text()
    assert [kept.read_bytes() for kept in (file.parent / "kept").iterdir()] == [ran]
    assert "exercises/00_a.ipynb: new; yours is kept as exercises/kept/00_a." in capsys.readouterr().out


def test_results_in_the_new_version_beside_are_kept_when_a_third_comes(course):
    exercises.build(course)
    folder = course / "exercises"
    edit(folder / "00_a.ipynb")
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    exercises.build(course)
    ran = run_by_jupyter(folder / "00_a.new.ipynb")
    edit(course / "solutions" / "00_a.ipynb", "print(2)", "print(3)")
    exercises.build(course)
    assert "print(3)" in (folder / "00_a.new.ipynb").read_text()
    assert [kept.read_bytes() for kept in (folder / "kept").iterdir()] == [ran]


@pytest.mark.parametrize("work", [run_by_jupyter, lambda file: edit(file, "print(2)")])
def test_work_in_the_new_version_beside_stays_there_while_nothing_is_newer(course, work):
    exercises.build(course)
    folder = course / "exercises"
    edit(folder / "00_a.ipynb")
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    exercises.build(course)
    work(folder / "00_a.new.ipynb")
    before = (folder / "00_a.new.ipynb").read_bytes()
    exercises.build(course)
    assert (folder / "00_a.new.ipynb").read_bytes() == before
    assert not (folder / "kept").exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_learners_own_files_stay(course, force):
    exercises.build(course)
    folder = course / "exercises"
    mine = [
        "00_a-Copy1.ipynb",
        "01_b.ipynb",
        "00_a (1).ipynb",
        "Untitled.ipynb",
        "00_a.py",
        "00_notes.md",
        "99_x.ipynb",
    ]
    for name in mine:
        (folder / name).write_text((folder / "00_a.ipynb").read_text())
    (folder / "kept").mkdir()
    (folder / "kept" / "00_a.ipynb").write_text("mine")
    (folder / "data").mkdir()
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    before = {path: path.read_text() for path in folder.rglob("*") if path.is_file() and path.name != "00_a.ipynb"}
    exercises.build(course, force=force)
    assert {path: path.read_text() for path in before} == before
    assert sorted(path.name for path in folder.iterdir()) == sorted([*mine, "00_a.ipynb", "data", "kept"])


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("/away/now")]
)
def test_what_is_no_file_in_an_exercises_place_stays_and_the_exercise_comes_beside(course, make):
    exercises.build(course)
    file = course / "exercises" / "00_a.ipynb"
    fresh = file.read_bytes()
    file.unlink()
    make(file)
    before = os.lstat(file)
    assert exercises.look(file).state == "unreadable"
    assert exercises.build(course) == 0
    assert exercises.beside(file).read_bytes() == fresh
    assert os.lstat(file).st_ino == before.st_ino


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("/away/now"),
        lambda path: path.touch() or os.truncate(path, 2**40),
    ],
    ids=["fifo", "folder", "device", "away", "huge"],
)
def test_what_cannot_be_kept_is_one_line_and_stays(course, make):
    exercises.build(course)
    file = course / "exercises" / "00_a.ipynb"
    file.unlink()
    make(file)
    before = os.lstat(file)
    for act in (lambda: exercises.build(course, force=True), lambda: exercise_status.reset("0", True, course)):
        with pytest.raises(CourseError, match=r"cannot keep a copy of .*; make room, or move it away") as refused:
            act()
        assert "\n" not in str(refused.value)
    assert os.lstat(file).st_ino == before.st_ino
    assert not list(course.glob("exercises/kept/*"))


def twice(file):
    """A merge has left both sides' cells."""
    text = file.read_text()
    cells = json.dumps(json.loads(text)["cells"]).replace("print(1)", "print('mine')")
    file.write_text(text.replace('"cells":', f'"cells": {cells},\n "cells":'))
    return file.read_bytes()


def test_cells_that_stand_twice_in_a_notebook_are_not_dropped(course, capsys):
    exercises.build(course)
    file = course / "exercises" / "00_a.ipynb"
    mine = twice(file)
    assert exercises.look(file).state == "unreadable"
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    capsys.readouterr()
    assert exercises.build(course) == 0
    assert file.read_bytes() == mine
    told = "exercises/00_a.ipynb is not a whole notebook and stays; its new version is exercises/00_a.new.ipynb\n"
    assert capsys.readouterr().out == told
    assert exercise_status.reset("0", True, course) == 0
    assert [kept.read_bytes() for kept in (file.parent / "kept").iterdir()] == [mine]


def test_saved_widgets_are_results_and_kept(course):
    exercises.build(course)
    file = course / "exercises" / "00_a.ipynb"
    OF_PROGRAMS["widgets"](file)
    mine = file.read_bytes()
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    exercises.build(course)
    assert "print(2)" in file.read_text()
    assert [kept.read_bytes() for kept in (file.parent / "kept").iterdir()] == [mine]


def test_where_no_lock_can_be_had_a_build_goes_on(course):
    (course / ".lock").mkdir()
    assert exercises.build(course) == 0
    assert exercises.build(course, check=True) == 0


def test_several_builds_at_once_keep_the_results_once_and_leave_whole_exercises(course):
    (course / "pyproject.toml").touch()
    exercises.build(course)
    for number in range(1, 9):
        shutil.copy(course / "solutions" / "00_a.ipynb", course / "solutions" / f"{number:02}_b.ipynb")
    exercises.build(course)
    before = sorted(run_by_jupyter(file) for file in (course / "exercises").glob("*.ipynb"))
    for file in (course / "solutions").iterdir():
        edit(file, by="print(2)")
    words = [sys.executable, "-m", "dltutorial", "exercises", "build"]
    several = [subprocess.Popen(words, cwd=course, stdout=subprocess.PIPE) for _ in range(4)]
    told = b"".join(build.communicate()[0] for build in several)
    assert [build.returncode for build in several] == [0] * 4
    assert exercises.build(course, check=True) == 0
    assert sorted(kept.read_bytes() for kept in (course / "exercises" / "kept").iterdir()) == before
    assert told.count(b"yours is kept") == len(before)


def test_a_copy_of_an_older_release_that_carries_no_version_is_kept_unless_its_cells_are_the_new_ones(course):
    folder = course / "exercises"
    folder.mkdir()
    (folder / "00_a.ipynb").write_text(notebook(BLANK, "print('mine')"))
    assert exercises.build(course) == 0
    assert "mine" in (folder / "00_a.ipynb").read_text()
    (folder / "00_a.ipynb").write_text(ran := notebook(BLANK, "print(1)"))
    exercises.build(course)
    assert exercises.build(course, check=True) == 0
    assert [kept.read_text() for kept in (folder / "kept").iterdir()] == [ran]


@pytest.mark.parametrize(
    ("what", "by"),
    [
        ('"metadata": {\n', '"metadata": 3, "more": {\n'),
        ('"cell_type": "code"', '"cell_type": null'),
        ('"source": "print(1)"', '"source": [1]'),
        ('"source": "print(1)"', '"source": "\\ud800"'),
        ('"metadata": {},', '"metadata": {"dltutorial": []},'),
    ],
)
def test_a_solution_with_parts_that_cannot_be_is_one_line(course, what, by):
    file = course / "solutions" / "00_a.ipynb"
    assert what in file.read_text()
    edit(file, what, by)
    with pytest.raises(CourseError, match=r"00_a\.ipynb is not a notebook") as error:
        exercises.build(course)
    assert "\n" not in str(error.value)


def with_metadata(cell=None, whole=None, **fields):
    """A learner's change of an exercise that touches no source."""

    def change(file):
        found = json.loads(file.read_text())
        found["cells"][0] |= fields
        found["cells"][0]["metadata"] |= cell or {}
        found["metadata"] |= whole or {}
        file.write_text(json.dumps(found))

    return change


OWN = {
    "a tag": with_metadata({"tags": ["t", "mine"]}),
    "a slide": with_metadata({"slideshow": {"slide_type": "slide"}}),
    "a note in the cell's metadata": with_metadata({"note": "mine"}),
    "a cell that may not be edited": with_metadata({"editable": False}),
    "authors": with_metadata(whole={"authors": [{"name": "me"}]}),
    "a title": with_metadata(whole={"title": "mine"}),
    "a note beside the version": lambda file: edit(file, '"version"', '"note": "mine", "version"'),
    "a picture": with_metadata(attachments={"a.png": {"image/png": "aGk="}}),
    "another kind of cell": with_metadata(cell_type="raw"),
}
OF_PROGRAMS = {
    "results": with_metadata(outputs=[{"output_type": "stream"}], execution_count=3),
    "the time of a run": with_metadata({"execution": {"iopub.status.busy": "now"}, "trusted": True}),
    "a fold": with_metadata({"collapsed": True, "scrolled": False, "jupyter": {"outputs_hidden": True}}),
    "the kernel": with_metadata(whole={"kernelspec": {"name": "other"}, "language_info": {"version": "3.99"}}),
    "widgets": with_metadata(whole={"widgets": {"application/vnd.jupyter.widget-state+json": {}}}),
    "a minor format": lambda file: edit(file, '"nbformat_minor": 5', '"nbformat_minor": 6'),
    "a name of a cell": with_metadata(id="another"),
    "no attachments": with_metadata(attachments={}),
}


@pytest.mark.parametrize("change", OWN.values(), ids=OWN)
def test_whatever_a_person_changes_makes_an_exercise_theirs(course, change):
    exercises.build(course)
    mine = course / "exercises" / "00_a.ipynb"
    change(mine)
    before = mine.read_bytes()
    assert exercises.look(mine).state == "edited"
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    exercises.build(course)
    assert mine.read_bytes() == before
    assert "print(2)" in exercises.beside(mine).read_text()


@pytest.mark.parametrize("change", OF_PROGRAMS.values(), ids=OF_PROGRAMS)
def test_what_a_program_writes_unasked_is_no_edit(course, change):
    exercises.build(course)
    file = course / "exercises" / "00_a.ipynb"
    change(file)
    assert exercises.look(file).state in ("run", "as it came")
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    exercises.build(course)
    assert "print(2)" in file.read_text()


@pytest.mark.parametrize("there", ["as it came", "run", "forced", "beside", "missing"])
def test_what_is_saved_while_a_build_writes_is_not_lost(course, monkeypatch, there):
    """The save comes in the middle of a build: when the newer version, written beside, goes to disk."""
    exercises.build(course)
    file, fsync, saved = course / "exercises" / "00_a.ipynb", os.fsync, []
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    if there == "run":
        run_by_jupyter(file)
    elif there == "missing":
        file.unlink()
    elif there != "as it came":
        edit(file)
    saves = exercises.beside(file) if there == "beside" else file

    def save(number):
        if not saved:
            saved.append(notebook(BLANK, "print('saved just now')"))
            saves.write_text(saved[0])
        fsync(number)

    monkeypatch.setattr(os, "fsync", save)
    with pytest.raises(CourseError, match=r"exercises/00_a\..*ipynb was saved just now, and stays; run this again"):
        exercises.build(course, force=there == "forced")
    assert saves.read_text() == saved[0]
    assert exercises.build(course, force=there == "forced") == 0
    texts = [path.read_text() for path in (course / "exercises").rglob("*.ipynb")]
    assert saved[0] in texts
    assert any("print(2)" in text for text in texts)
    assert len(set(texts)) == len(texts)


def test_an_edit_of_line_ends_alone_while_a_build_writes_is_not_lost(course, monkeypatch):
    exercises.build(course)
    file, fsync = course / "exercises" / "00_a.ipynb", os.fsync
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    saved = file.read_bytes().replace(b"\n", b"\r\n")

    def save(number):
        file.write_bytes(saved)
        fsync(number)

    monkeypatch.setattr(os, "fsync", save)
    with pytest.raises(CourseError, match="was saved just now, and stays; run this again"):
        exercises.build(course)
    assert file.read_bytes() == saved


@pytest.mark.parametrize("in_step", [False, True])
def test_the_next_build_removes_what_a_killed_one_left_half_written_and_nothing_else(course, in_step):
    exercises.build(course)
    folder = course / "exercises"
    left = [".00_a.ipynb.0123abcd.partial", ".00_a.new.ipynb.ffffffff.partial"]
    others = [
        "00_a.ipynb.0123abcd.partial", ".00_a.ipynb.partial", ".00_a.ipynb.0123abc.partial", ".mine.0123abcd.partial",
        ".00_a.ipynb.0123ABCD.partial", ".01_b.ipynb.0123abcd.partial", ".00_a.ipynb.0123abcd.partial.mine",
        ".00_a_ipynb.0123abcd.partial",
    ]  # fmt: skip
    for name in (*left, *others):
        (folder / name).write_text("half")
    if not in_step:
        edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    assert exercises.build(course, check=True) == int(not in_step)
    assert {path.name for path in folder.iterdir()} == {"00_a.ipynb", *left, *others}
    exercises.build(course)
    assert {path.name for path in folder.iterdir()} == {"00_a.ipynb", *others}


def test_what_another_build_is_about_to_write_is_not_removed(course, monkeypatch):
    """It holds the lock as long as its file has that name."""
    exercises.build(course)
    (partial := course / "exercises" / ".00_a.ipynb.0123abcd.partial").touch()
    plain = exercises.paths.locked

    @contextlib.contextmanager
    def locked(root, waiting=""):
        partial.unlink()  # the other one has come to its end
        with plain(root, waiting):
            yield

    monkeypatch.setattr(exercises.paths, "locked", locked)
    assert exercises.build(course) == 0


@pytest.mark.parametrize("add", [lambda nb: nb.update(mine="x"), lambda nb: nb["cells"][0].update(note="x")])
def test_what_no_program_writes_into_a_notebook_makes_it_somebodys(add):
    notebook = {"cells": [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["b"]}],
                "metadata": {}, "nbformat": 4, "nbformat_minor": 5}  # fmt: skip
    notebook["metadata"]["dltutorial"] = {"version": exercises._digest(notebook)}
    assert exercises.look_at(json.dumps(notebook)).state == "as it came"
    add(notebook)
    assert exercises.look_at(json.dumps(notebook)).state == "run"


def test_what_no_program_writes_into_a_solution_does_not_come_into_its_exercise(course):
    """There it would count as a learner's work."""
    file = course / "solutions" / "00_a.ipynb"
    made = json.loads(file.read_text())
    made["mine"] = made["cells"][0]["mine"] = None
    file.write_text(json.dumps(made))
    exercises.build(course)
    assert "mine" not in (course / "exercises" / "00_a.ipynb").read_text()
    assert "as it came" in str(exercise_status.status(course))
