"""``stage`` as chapter 03 shows it: a data set is on the node's disk whole, or one line says why not."""

import ast
import json
import os
from pathlib import Path

import pytest

CHAPTER = Path(__file__).parents[2] / "notebooks" / "03_feed_the_device.ipynb"


@pytest.fixture(scope="module")
def stage():
    """The imports and functions of its cell."""
    cells = ["".join(cell["source"]) for cell in json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]]
    (cell,) = (ast.parse(cell) for cell in cells if "def stage(" in cell)
    cell.body = [part for part in cell.body if isinstance(part, (ast.Import, ast.ImportFrom, ast.FunctionDef))]
    names = {}
    exec(compile(cell, "stage", "exec"), names)
    return names["stage"]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "data" / "train" / "1980.h5").write_bytes(b"all of it")
    (tmp_path / "disk").mkdir()
    return tmp_path / "data"


def test_what_a_killed_rank_left_is_copied_anew(stage, source, tmp_path):
    half = tmp_path / "disk" / "data.partial" / "train"
    half.mkdir(parents=True)
    (half / "1980.h5").write_bytes(b"all")
    for _ in range(2):
        copy = stage(source, tmp_path / "disk")
        assert (copy / "train" / "1980.h5").read_bytes() == b"all of it"
    assert not half.exists()


def test_too_little_room_is_one_line_before_anything_is_copied(stage, source, tmp_path):
    with open(source / "train" / "1981.h5", "w") as file:
        os.truncate(file.fileno(), 2**43)  # 8 TiB that take no room
    with pytest.raises(OSError, match=r"disk lacks [\d.]+ GB: stage a share$"):
        stage(source, tmp_path / "disk")
    assert not [*(tmp_path / "disk").glob("data*/")]


@pytest.mark.parametrize("there", [b"all", None])
def test_a_folder_of_that_name_that_is_no_whole_copy_is_told_and_kept(there, stage, source, tmp_path):
    copy = tmp_path / "disk" / "data" / "train"
    copy.mkdir(parents=True)
    if there is not None:
        (copy / "1980.h5").write_bytes(there)
    with pytest.raises(OSError, match=r"data is no whole copy of .*data: delete it, then stage again$"):
        stage(source, tmp_path / "disk")
    assert copy.exists()
