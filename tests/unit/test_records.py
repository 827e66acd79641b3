"""Each process writes its records into a file of its own, and the records of all files are read."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.record import records

RECORD = {"time": "2026-01-01", "chapter": "01", "what": "a", "kind": "claim", "preset": "smoke", "machine": "m"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the records, which does not exist yet."""
    monkeypatch.setenv("DLTUTORIAL_RECORDS", str(tmp_path / "new" / "records"))
    return tmp_path / "new" / "records"


def test_what_was_written_is_read_back(folder):
    records.Writer("01", "smoke").write("loss", 0.5, "", seeds=(1, 2))
    (result,) = records.read(folder)
    assert (result["chapter"], result["preset"], result["value"], result["seeds"]) == ("01", "smoke", 0.5, [1, 2])


def test_numbers_of_numpy_and_torch_become_plain_and_nan_becomes_text(folder):
    writer = records.Writer("01", "smoke")
    writer.write("a", np.float32(0.5), "", tensor=torch.arange(2), nan=float("nan"))
    (result,) = records.read(folder)
    assert (result["value"], result["tensor"], result["nan"]) == (0.5, [0, 1], "nan")


def test_records_go_to_the_runs_folder_or_where_the_environment_says(tmp_path, monkeypatch):
    records.Writer("01", "smoke").write("a", 1)
    assert len(records.read(tmp_path / "runs" / "records")) == 1
    monkeypatch.setenv("DLTUTORIAL_RECORDS", str(tmp_path / "elsewhere"))
    records.Writer("01", "smoke").write("b", 2)
    assert [record["what"] for record in records.read(paths.records_dir())] == ["b"]


def test_each_process_has_one_file_and_all_are_read_in_the_order_of_time(folder):
    code = "import sys; from dltutorial.record import records; records.Writer('01', 'smoke').write('other', 2)"
    writer = records.Writer("01", "smoke")
    writer.write("first", 1)
    subprocess.run([sys.executable, "-c", code], check=True)
    writer.write("last", 3)
    assert [record["what"] for record in records.read(folder)] == ["first", "other", "last"]
    assert len(list(folder.iterdir())) == 2
    assert len(list(folder.glob(f"*-{os.getpid()}.jsonl"))) == 1


@pytest.mark.parametrize("line", ['{"time": "2026-0', "", "\0\0\0"])
def test_a_line_that_is_not_json_is_skipped(tmp_path, line):
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(RECORD)}\n{line}\n{json.dumps(RECORD)}\n{line}")
    (tmp_path / "notes.txt").write_text("my notes")
    assert records.read(tmp_path) == [RECORD, RECORD]


def test_a_folder_that_does_not_exist_has_no_records(tmp_path):
    assert records.read(tmp_path / "none") == []


def test_a_place_that_cannot_be_written_is_one_line(folder):
    folder.parent.mkdir()
    folder.touch()
    with pytest.raises(CourseError, match=r"^cannot write records to .*: File exists; make room, or set D"):
        records.Writer("01", "smoke").write("a", 1)
