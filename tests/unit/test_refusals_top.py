"""What the files at the top refuse, each in one clear line: ranks, nodes, names, files."""

import os
from pathlib import Path
from unittest import mock

import pytest

from dltutorial import node, paths
from dltutorial.errors import CourseError
from dltutorial.ranks import RankInfo

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


def write_below_a_file():
    Path("file").touch()
    paths.write_text(Path("file/x"), "")


def write_over_a_folder():
    Path("place").mkdir()
    paths.write_text(Path("place"), "")


# (what it is, a call, words of the line)
REFUSALS = [
    ("a rank alone", lambda: RankInfo.from_env({"RANK": "0"}), "start through torchrun"),
    ("a rank beyond the world", lambda: RankInfo.from_env(TORCHRUN | {"RANK": "8"}), "impossible ranks from torchrun"),
    (
        "an unknown node",
        lambda: node.login_sign({"DLTUTORIAL_NODE": "laptop"}),
        "; choose login or compute, or unset it",
    ),
    ("a name that leaves its folder", lambda: paths.inside(Path(), "../x"), "stays inside its folder"),
    ("no room below a file", write_below_a_file, "cannot write file/x"),
    ("a folder in the way", write_over_a_folder, "cannot write place: Is a directory"),
]


@pytest.mark.parametrize(("call", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_a_wrong_value_is_one_line(call, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CourseError) as refused:
        call()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob(".*.partial"))


def test_a_full_disk_leaves_the_older_file_and_no_part_of_the_new_one(tmp_path, monkeypatch):
    file = tmp_path / "weights.pt"
    file.write_text("old")
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(CourseError, match="No space left on device; make room"):
        paths.write_text(file, "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("weights.pt", "old")]


def test_a_tilde_in_a_variable_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable, folder in (("RUNS", paths.runs_dir), ("DATA", paths.data_dir), ("RECORDS", paths.records_dir)):
        monkeypatch.setenv(f"DLTUTORIAL_{variable}", "~/mine")
        assert folder() == tmp_path / "mine"


def test_the_folder_of_the_course_is_the_nearest_or_that_of_the_package(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert paths.course_folder("notebooks") == Path(paths.__file__).parents[1]
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "pyproject.toml").touch()
    assert paths.course_folder("notebooks") == tmp_path
    with pytest.raises(CourseError, match="no nowhere/ here or above"):
        paths.course_folder("nowhere")
