"""``make update`` brings a newer version of the course and keeps what the learner has changed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AUTHOR = ("-c", "user.name=Author", "-c", "user.email=author@example.org")
pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")


def git(folder, *words):
    subprocess.run(["git", *AUTHOR, *words], cwd=folder, check=True, capture_output=True)


def commit(folder):
    git(folder, "add", ".")
    git(folder, "commit", "--message", "A version of the course")


def write_notebook(file, *sources):
    cells = [
        {"cell_type": "code", "id": f"cell-{i}", "metadata": {}, "execution_count": None, "outputs": [], "source": [s]}
        for i, s in enumerate(sources)
    ]
    file.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1))


def sources(file):
    return [cell["source"][0] for cell in json.loads(file.read_text())["cells"]]


def update(folder):
    """Run the recipe of ``make update`` with this Python's programs instead of a new .venv."""
    words = ["make", "--assume-old=.venv/.course", "update", f"BIN={Path(sys.executable).parent}"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # make may run the tests
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)


@pytest.fixture
def course(tmp_path):
    """The author's folder and a learner's clone; both have one bare repository as their remote ``origin``."""
    author, learner = tmp_path / "author", tmp_path / "learner"
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(author)], check=True)
    (author / "notebooks").mkdir()
    write_notebook(author / "notebooks" / "00.ipynb", "a = 1", "b = 1", "c = 1", "d = 1")
    shutil.copy(ROOT / "Makefile", author)
    commit(author)
    git(tmp_path, "clone", "--bare", "author", "course.git")
    git(tmp_path, "clone", "course.git", "learner")
    git(author, "remote", "add", "origin", "../course.git")
    return author, learner


def test_an_edited_notebook_survives_an_update_and_the_new_chapter_arrives(course):
    author, learner = course
    write_notebook(learner / "notebooks" / "00.ipynb", "a = 'learner'", "b = 1", "c = 1", "d = 1")
    (learner / "notebooks" / "my_own.ipynb").write_text("{}")
    write_notebook(author / "notebooks" / "00.ipynb", "a = 'author'", "b = 1", "c = 1", "d = 'author'")
    write_notebook(author / "notebooks" / "01.ipynb", "new = 1")
    commit(author)
    git(author, "push", "origin", "main")

    done = update(learner)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Your changes have stayed." in done.stdout
    # Both have changed the first cell, so the learner's line wins there. Only the author has changed the last one.
    assert sources(learner / "notebooks" / "00.ipynb") == ["a = 'learner'", "b = 1", "c = 1", "d = 'author'"]
    assert sources(learner / "notebooks" / "01.ipynb") == ["new = 1"]
    assert (learner / "notebooks" / "my_own.ipynb").read_text() == "{}"
