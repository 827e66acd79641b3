"""What records, trackers and tables refuse, each in one clear line. What a class refuses: test_sharing."""

import os
from pathlib import Path
from unittest import mock

import pytest

from dltutorial.errors import CourseError
from dltutorial.record import board, records, track
from dltutorial.record.table import Table


def write_below_a_file():
    Path("file").write_text("")
    records.Writer("01", "smoke", Path("file/r.jsonl")).write("a", 1)


def reading(content):
    def read():
        Path("r.jsonl").write_bytes(content)
        list(records.read(Path("r.jsonl")))

    return read


def written_to_a_pipe():
    os.mkfifo("r.jsonl")
    records.Writer("01", "smoke", Path("r.jsonl")).write("a", 1)


def read_from(place):
    def read():
        os.mkfifo("pipe")
        Path("folder").mkdir()
        list(records.read(Path(place)))

    return read


def tracked(kind, mode):
    def start():
        with mock.patch.dict(os.environ, {"WANDB_MODE": mode}):
            track.Tracker((kind,), Path("r"), {})

    return start


def named(name):
    with mock.patch.dict(os.environ, {"DLTUTORIAL_RECORDS": name}):
        records.Writer("00", "smoke").write("x", 1)


# (what it is, a call, its error, words of the line)
REFUSALS = [
    ("no room for records", write_below_a_file, CourseError, "set DLTUTORIAL_RECORDS to a file you may write"),
    ("records into notes", lambda: named("thesis.txt"), CourseError, "names thesis.txt; records go to a file whose"),
    ("records into a pipe", written_to_a_pipe, CourseError, "r.jsonl: a pipe or device, no regular file; make room"),
    ("records of a pipe", read_from("pipe"), CourseError, "cannot read records pipe: a pipe or device"),
    ("records of a device", read_from("/dev/zero"), CourseError, "cannot read records /dev/zero: a pipe or device"),
    ("records of a folder", read_from("folder"), CourseError, "cannot read records folder: Is a directory"),
    ("no records", lambda: list(records.read(Path("r.jsonl"))), CourseError, "run a chapter first"),
    ("no text", reading(b"\xff\xfe"), CourseError, "not a file of records (not text)"),
    ("another object", reading(b'{"time": 3}\n'), CourseError, "line 1 is not a record; remove that line"),
    ("another line inside", reading(b"notes\n\n"), CourseError, "line 1 is not a record; remove that line"),
    ("no events", lambda: board.show(Path()), CourseError, "or below; give the folder that holds some, or train with"),
    ("no folder of events", lambda: board.show(Path("a")), CourseError, "no TensorBoard event files (*tfevents*) in a"),
    ("an unknown mode of W&B", tracked("wandb", "nonsense"), CourseError, "in mode 'nonsense'"),
    ("a ragged row", lambda: Table.of(["a", "b"], [["1"]]), ValueError, "every row needs 2 cells"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_what_cannot_be_gets_one_line(call, kind, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as refused:
        call()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
