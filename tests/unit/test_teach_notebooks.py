import json

import pytest

from dltutorial.course import notebooks, runner
from dltutorial.errors import CourseError, RecipeError


def write(path, *cells):
    made = [
        {"cell_type": "code", "id": f"c{n}", "metadata": {"tags": tags}, "source": source, "outputs": []}
        | {"execution_count": None}
        for n, (source, tags) in enumerate(cells)
    ]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    text = {"cells": made, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(text))


@pytest.fixture
def course(tmp_path, monkeypatch):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    write(folder / "00_welcome.ipynb", ('preset = "auto"', ["parameters"]), ("x = 1", []))
    write(folder / "03_feed.ipynb", ('preset = "auto"\nsteps: int = 5\nname = "7"\nn = f()', ["parameters"]))
    monkeypatch.setenv("DLTUTORIAL_NOTEBOOKS", str(folder))
    return folder


@pytest.mark.parametrize("wanted", ["03", "3", "03_feed", "feed", "03_feed.ipynb", "notebooks/03_feed.ipynb"])
def test_a_chapter_is_found_by_number_or_name(course, wanted):
    assert notebooks.find(wanted) == course / "03_feed.ipynb"


@pytest.mark.parametrize("wanted", ["07", "nonsense", "", "fee"])
def test_an_unknown_chapter_lists_those_there_are(course, wanted):
    with pytest.raises(CourseError, match=r"^no chapter '.*'; choose a number or name of: 00_welcome, 03_feed$"):
        notebooks.find(wanted)


def test_text_becomes_the_type_of_the_default(course):
    given = {"steps": "10", "name": "10", "n": "[1, 2]"}
    assert notebooks.checked(course / "03_feed.ipynb", given) == {"steps": 10, "name": "10", "n": [1, 2]}


@pytest.mark.parametrize(
    ("asked", "error", "why"),
    [
        ({"wanted": ["nonsense"]}, CourseError, "no chapter 'nonsense'"),
        ({"parameters": {"stepz": 1}}, RecipeError, "00_welcome has no parameter 'stepz'; it has: preset"),
        ({"parameters": {"steps": 1}}, RecipeError, "00_welcome has no parameter 'steps'"),
        ({"preset": "nonsense"}, RecipeError, "nonsense"),
        ({"jobs": 0}, CourseError, "must be positive"),
        ({"timeout_s": 0}, CourseError, "must be positive"),
    ],
)
def test_what_is_asked_wrongly_is_told_before_anything_runs(course, tmp_path, asked, error, why):
    with pytest.raises(error, match=why):
        runner.run(**asked)
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_holds_something_is_not_written_to(course, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    with pytest.raises(CourseError, match="is not empty"):
        runner.run(out=tmp_path / "mine")
    with pytest.raises(CourseError, match="cannot write"):
        runner.run(out=tmp_path / "mine" / "file")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]


def test_two_runs_in_one_second_have_two_folders(course):
    assert len({runner.new_folder(None) for _ in range(3)}) == 3


def test_a_missing_or_empty_folder_of_notebooks_gets_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_NOTEBOOKS", str(tmp_path / "nowhere"))
    with pytest.raises(CourseError, match="DLTUTORIAL_NOTEBOOKS"):
        notebooks.folder()
    monkeypatch.setenv("DLTUTORIAL_NOTEBOOKS", str(tmp_path))
    with pytest.raises(CourseError, match="no notebooks"):
        notebooks.chapters()


def test_the_notebooks_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.delenv("DLTUTORIAL_NOTEBOOKS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert notebooks.folder().name == "notebooks"
