import json

import nbformat
import pytest

from dltutorial.course import notebooks, runner


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
    (tmp_path / "pyproject.toml").touch()
    folder = tmp_path / "notebooks"
    folder.mkdir()
    write(folder / "00_welcome.ipynb", ('preset = "auto"', ["parameters"]), ("x = 1", []))
    write(folder / "03_feed.ipynb", ('preset = "auto"\nsteps: int = 5\nname = "7"\nn = f()', ["parameters"]))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("wanted", ["03", "3", "03_feed", "03_feed.ipynb", "notebooks/03_feed.ipynb"])
def test_a_chapter_is_found_by_number_or_name(course, wanted):
    assert notebooks.find(wanted) == course / "03_feed.ipynb"


@pytest.mark.parametrize(
    "wanted", ["03-further", "3-further", "further/03_feed.ipynb", "notebooks/further/03_feed.ipynb"]
)
def test_a_further_notebook_is_found_by_its_number_or_path(course, wanted):
    (course / "further").mkdir()
    write(course / "further" / "03_feed.ipynb", ('preset = "auto"', ["parameters"]))
    further = course / "further" / "03_feed.ipynb"
    assert notebooks.find(wanted) == further
    assert notebooks.find("03") == course / "03_feed.ipynb"
    assert notebooks.chapters() == [course / "00_welcome.ipynb", course / "03_feed.ipynb", further]
    assert (notebooks.about(further)["chapter"], notebooks.place(further)) == ("03-further", "further/03_feed.ipynb")


def test_text_becomes_the_type_of_the_default(course):
    given = {"steps": "10", "name": "10", "n": "[1, 2]"}
    assert notebooks.checked(course / "03_feed.ipynb", given) == {"steps": 10, "name": "10", "n": [1, 2]}


def test_two_runs_in_one_second_have_two_folders(course):
    assert len({runner.new_folder(None) for _ in range(3)}) == 3


def test_the_notebooks_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert notebooks.folder().name == "notebooks"


def test_copies_that_jupyterlab_and_nbgitpuller_make_are_no_chapters(tmp_path):
    for name in ("01_one", "01_one-Copy1", "01_one-Copy12", "01_one__20261122101530", "02_two", "capstone"):
        nbformat.write(nbformat.v4.new_notebook(), tmp_path / f"{name}.ipynb")
    assert [file.stem for file in notebooks.chapters(tmp_path)] == ["01_one", "02_two", "capstone"]
