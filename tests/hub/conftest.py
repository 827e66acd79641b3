"""One hub for all tests of this folder, and the course as a repository that learners pull."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import workshop

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[workshop.Hub]:
    with workshop.running(tmp_path_factory.mktemp("hub")) as found:
        yield found


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The course as a bare Git repository, by its address."""
    folder = tmp_path_factory.mktemp("git")
    course = folder / "course"
    for name in ("notebooks", "exercises", "slurm"):
        shutil.copytree(ROOT / name, course / name, ignore=shutil.ignore_patterns("runs", ".ipynb_checkpoints"))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, course)
    author = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*author, "commit", "-qm", "The course")):
        subprocess.run(["git", *words], cwd=course, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", "course", "course.git"], cwd=folder, check=True)
    return (folder / "course.git").as_uri()
