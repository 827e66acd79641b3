"""A data set has its final name only if it is complete."""

import contextlib
import subprocess
import sys

import numpy as np
import pytest

from dltutorial.data import convert, store, writing
from dltutorial.data.loaders import SnapshotPairs
from dltutorial.errors import DataError

SHAPE = (3, 4, 8)


def test_a_data_set_takes_its_name_when_it_is_complete(tmp_path):
    with writing.building(tmp_path / "data") as temporary:
        (temporary / "file").write_text("content")
        assert not (tmp_path / "data").exists()
    assert (tmp_path / "data" / "file").read_text() == "content"
    assert [file.name for file in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, DataError, OSError(28, "No space left on device")])
def test_an_error_leaves_no_file(error, tmp_path):
    with pytest.raises((KeyboardInterrupt, DataError)), writing.building(tmp_path / "data") as temporary:
        (temporary / "file").write_text("content")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_if_two_processes_build_the_same_data_set_the_second_discards_its_copy(tmp_path):
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(writing.building(tmp_path / "data"))
        second = stack.enter_context(writing.building(tmp_path / "data"))
        for number, folder in enumerate((first, second)):
            (folder / "dataset.json").write_text(str(number))
    assert (tmp_path / "data" / "dataset.json").read_text() == "1"  # the inner block ended first
    assert [file.name for file in tmp_path.iterdir()] == ["data"]


def test_a_data_set_is_converted_once(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    folder = convert.convert(tiny_data, "npy")
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert convert.convert(tiny_data, "npy") == folder
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    assert len(SnapshotPairs(store.open_split(folder))) == 18


def test_a_year_with_nan_is_an_error(tmp_path):
    why = "snapshot 0: the source has NaN or infinity here"
    with pytest.raises(DataError, match=why), writing.year_writer(tmp_path / "sim_0001.h5", 2, SHAPE) as append:
        append(np.full((2, *SHAPE), np.nan))


FULL_DISK = """
import resource, sys
from pathlib import Path
from dltutorial.data import convert
from dltutorial.errors import DataError
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # no file can grow beyond this, as on a full disk
try:
    convert.convert(Path(sys.argv[1]), sys.argv[2])
except DataError as error:
    print(error)
"""


@pytest.mark.parametrize("layout", ["hdf5-chunk1", "hdf5-chunk1-gzip4", "npy"])
def test_a_full_disk_is_one_line_and_leaves_nothing(layout, tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    command = [sys.executable, "-c", FULL_DISK, tiny_data, layout]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"cannot write {tmp_path}/") and "make room" in line
    assert list(tmp_path.iterdir()) == []
