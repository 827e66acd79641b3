"""Records of any bytes: lines that are no records are skipped, and what was written is read back."""

import json
import shutil

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dltutorial.record import records

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=8
)
KEYS = ("time", "chapter", "what", "kind", "preset", "machine")
GOOD_RECORDS = st.fixed_dictionaries(dict.fromkeys(KEYS, TEXT), optional={"value": st.integers(), "unit": TEXT})


def as_line(value):
    return json.dumps(value).encode()


GOOD_LINES = GOOD_RECORDS.map(as_line)
HALF_LINES = GOOD_LINES.flatmap(lambda line: st.integers(0, len(line)).map(lambda end: line[:end]))
LINES = GOOD_LINES | HALF_LINES | JSON.map(as_line) | st.binary(max_size=60)
ARRAYS = st.lists(st.floats() | st.integers(-9, 9), max_size=3).map(np.array)
VALUES = st.recursive(
    PLAIN | ARRAYS | ARRAYS.map(torch.tensor),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def empty(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


@given(st.lists(LINES, max_size=5))
def test_lines_that_are_no_records_are_skipped(place, lines):
    folder = empty(place / "records")
    (folder / "a.jsonl").write_bytes(b"\n".join(lines))
    for record in records.read(folder):
        assert all(isinstance(record[key], str) for key in KEYS)


@given(GOOD_RECORDS, st.lists(LINES, max_size=3))
def test_a_good_record_is_read_among_any_lines(place, record, lines):
    folder = empty(place / "records")
    (folder / "a.jsonl").write_bytes(b"\n".join([*lines, as_line(record)]))
    assert record in records.read(folder)


@given(TEXT, VALUES, TEXT)
def test_what_is_written_is_read_back(place, what, value, unit):
    folder = empty(place / "records")
    written = records.Writer("00", "smoke", folder).write(what, value, unit)
    assert records.read(folder) == [written]
