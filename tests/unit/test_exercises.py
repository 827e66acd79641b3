import json

import pytest

from dltutorial.course import exercises
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
    cells = []
    for number, source in enumerate(sources):
        cell = {"cell_type": kind, "id": f"c{number}", "metadata": {"tags": ["t"]}, "source": source}
        if kind == "code":
            cell |= {"outputs": [{"output_type": "stream"}], "execution_count": 3}
        cells.append(cell)
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def edit(file, text="print(1)", by="print('mine')"):
    file.write_text(file.read_text().replace(text, by))


@pytest.fixture
def course(tmp_path, monkeypatch):
    """The course's folder, which is the working folder, with one solution and its exercise."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "00_a.ipynb").write_text(notebook(CODE, "print(1)"))
    monkeypatch.chdir(tmp_path)
    exercises.build()
    return tmp_path


def test_a_solution_becomes_a_blank_with_its_hint_at_the_right_indentation():
    assert exercises.blank(CODE) == BLANK


def test_several_blocks_in_one_cell_become_several_blanks():
    block = "### BEGIN SOLUTION\nx = 1\n### END SOLUTION"
    blank = "# YOUR CODE HERE\nraise NotImplementedError"
    assert exercises.blank(f"{block}\ny = 2\n{block}") == f"{blank}\ny = 2\n{blank}"


@pytest.mark.parametrize("source", ["### BEGIN SOLUTION\nx", "x\n### END SOLUTION", "x  ### BEGIN SOLUTION"])
def test_markers_that_do_not_pair_are_one_line_that_names_notebook_and_cell(course, source):
    (course / "solutions" / "00_a.ipynb").write_text(notebook(CODE, source))
    with pytest.raises(CourseError, match=r"00_a\.ipynb, cell 2: each ### BEGIN SOLUTION .* needs its ### END"):
        exercises.build()


def test_an_exercise_differs_only_in_its_blanks_and_has_no_outputs(course):
    cells = json.loads((course / "exercises" / "00_a.ipynb").read_text())["cells"]
    assert ["".join(cell["source"]) for cell in cells] == [BLANK, "print(1)"]
    assert [(cell["id"], cell["outputs"], cell["execution_count"]) for cell in cells] == [
        ("c0", [], None),
        ("c1", [], None),
    ]
    assert cells[0]["metadata"] == {"tags": ["t"]}


def test_check_names_an_exercise_that_is_out_of_step_and_writes_nothing(course, capsys):
    assert exercises.build(check=True) == 0
    before = (course / "exercises" / "00_a.ipynb").read_text()
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    assert exercises.build(check=True) == 1
    assert "exercises/00_a.ipynb is not what its solution makes" in capsys.readouterr().err
    assert (course / "exercises" / "00_a.ipynb").read_text() == before


def test_an_edited_exercise_is_copied_before_a_build_writes_it(course):
    file = course / "exercises" / "00_a.ipynb"
    edit(file)
    before = file.read_text()
    assert exercises.build() == 0
    assert [copy.read_text() for copy in (course / "exercises" / "kept").iterdir()] == [before]
    assert exercises.build(check=True) == 0


def test_a_learners_other_files_stay(course):
    folder = course / "exercises"
    for name in ("00_a-Copy1.ipynb", "Untitled.ipynb", "00_a.py"):
        (folder / name).write_text("mine")
    edit(course / "solutions" / "00_a.ipynb", by="print(2)")
    exercises.build()
    assert [path.read_text() for path in folder.glob("*.*") if path.name != "00_a.ipynb"] == ["mine"] * 3
