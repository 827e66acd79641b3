"""Records of any bytes: each reader passes a line over, or says in one line which; what was written is read again."""

import datetime
import json
import time

import numpy as np
import pytest
import torch
from cells import run
from forking import is_line
from hostile import BYTES, JSON, PLAIN, TEXT, Content, as_json, changed, damaged, examples, json_bytes
from hypothesis import given
from hypothesis import strategies as st

from dltutorial.course import exercise_status
from dltutorial.errors import CourseError
from dltutorial.record import records, sharing

NOW = datetime.datetime.now(datetime.UTC)
RECORD = {
    "time": NOW.isoformat(timespec="milliseconds"), "chapter": "00", "what": "peak memory copy", "value": 2.5e9,
    "unit": "byte/s", "kind": "measurement", "preset": "smoke", "machine": "a machine", "versions": {"torch": "2.6"},
}  # fmt: skip
CHECK = {"kind": "check", "what": "twice", "status": "wrong", "failed": "a case", "hint": "no"}
GUESS = {"kind": "prediction", "what": "gain", "value": 2.0, "question": "How much?", "measured": 2.0, "guess": 3.0}
CHECKS = [RECORD | CHECK | {"cases_passed": 1, "cases": 3}, RECORD | CHECK | {"status": "passed"}]
KINDS = [
    RECORD,
    RECORD | {"chapter": "07", "what": "ladder_gain", "value": 2.7, "predicted": 2.5, "gains": {"baseline": 1}},
    *CHECKS,
    RECORD | {"kind": "claim", "what": "It holds", "value": True, "status": "shown", "evidence": "seen", "needs": ""},
    RECORD | GUESS | {"touched": True, "ratio": 1.5, "model": 2.5, "model_ratio": 1.25},
    RECORD | {"kind": "run", "what": "00_a", "value": 3.5, "unit": "s", "peak_bytes": 10**9},
    RECORD | {"chapter": "train", "what": "valid/rmse", "value": 0.5, "run": "r", "steps": 9},
    RECORD | {"chapter": "bench", "bench": "loaders", "samples": [1.0, 2.0], "predicted": None, "more": {}},
]
RECORDS = st.sampled_from(KINDS)
FIELDS = st.sampled_from(sorted({name for fields in sharing.FIELDS.values() for name in fields} - {"what"}))


def lines(good):
    """Of a file: good ones, nearly good ones, and any others."""
    nearly = as_json(good.flatmap(changed))
    cut = as_json(good).flatmap(damaged)
    lines = as_json(good) | nearly | nearly | cut | json_bytes()
    return st.lists(lines, max_size=5).map(lambda lines: Content(b"\n".join(lines)))


def records_or_line(file):
    """What is above a bad line, and whether there is one."""
    found = []
    try:
        found.extend(records.read(file))
    except CourseError as error:
        assert is_line(str(error)), str(error)
        return found, True
    return found, False


@examples(300)
@given(BYTES | lines(RECORDS))
def test_any_bytes_are_records_or_one_line(place, content):
    file = place / "records.jsonl"
    file.write_bytes(content)
    found, _ = records_or_line(file)
    assert all(isinstance(record["what"], str) for record in found)


ARRAYS = st.lists(st.floats() | st.integers(-9, 9), max_size=3).map(np.array)
OBJECTS = st.sampled_from(
    [object, {1, 2}, b"bytes", 1j, np.float16(2), np.int8(-3), np.bool_(True), np.datetime64("2020")]
)
VALUES = st.recursive(
    PLAIN | ARRAYS | ARRAYS.map(torch.tensor) | OBJECTS,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=6,
)


@examples(300)
@given(TEXT, VALUES, TEXT, st.dictionaries(st.sampled_from(["evidence", "ratio", "more"]), VALUES), BYTES)
def test_what_is_written_is_read_back_equal_whatever_was_there_before(place, what, value, unit, more, before):
    file = place / "written.jsonl"
    file.write_bytes(before)
    written = records.Writer("00", "smoke", file).write(what, value, unit, **more)
    file.write_bytes(file.read_bytes()[len(before) :])
    assert list(records.read(file)) == [written]


@examples(200)
@given(lines(st.sampled_from(CHECKS)))
def test_how_far_a_learner_is_can_be_told_from_any_records(place, content):
    root = place / "course"
    (root / "solutions").mkdir(parents=True, exist_ok=True)
    cells = [{"cell_type": "code", "id": "a", "metadata": {}, "source": [], "outputs": [], "execution_count": None}]
    text = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    (root / "solutions" / "00_a.ipynb").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLTUTORIAL_RECORDS", str(root / "records.jsonl"))
        (root / "records.jsonl").write_bytes(content)
        assert "00_a" in str(exercise_status.status(root))


@examples(60)
@given(lines(RECORDS))
def test_a_report_of_any_records_is_a_page_or_one_line(place, content):
    file = place / "reported.jsonl"
    file.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLTUTORIAL_RUNS", str(place / "runs"))
        try:
            page = "".join(run(patch, "report", undrawn=["svg"], files=[str(file)])["displayed"])
        except CourseError as error:
            assert is_line(str(error)), str(error)
            assert records_or_line(file)[1]
        else:
            assert page.count("<section") > 5


def shared(kind, **fields):
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW.timestamp() - 100))
    return {"time": when, "chapter": "07", "kind": kind} | fields


SHARED = [
    shared("check", what="ring", status="wrong", failed="a case", hint="All-gather is missing."),
    shared("check", what="ring", status="passed", failed="", hint=""),
    shared("prediction", what="gain", unit="×", guess=4.0, touched=True, measured=2.75),
    shared("measurement", what=next(iter(sharing.SHARED_MEASUREMENTS)), value=2.75, unit="×", preset="smoke"),
    shared("claim", what="It holds", status="failed"),
]


@examples(60)
@given(st.lists(lines(st.sampled_from(SHARED)), min_size=1, max_size=3))
def test_a_class_of_any_files_is_a_page(place, files):
    folder = place / "class"
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for number, content in enumerate(files):
        (folder / f"learner-{number}.jsonl").write_bytes(content + b"\n")
    with pytest.MonkeyPatch.context() as patch:
        names = run(patch, "class", folder=str(folder))
    assert len(names["people"]) == len(files)
    "".join(names["displayed"]).encode()  # a page can be written


@examples(150)
@given(RECORDS, TEXT | st.sampled_from([*sharing.SHARED_MEASUREMENTS]), st.dictionaries(FIELDS, JSON))
def test_of_any_record_a_class_sees_one_line_of_few_fields(record, what, others):
    line = sharing.shared_line(record | {"what": what} | others)
    if line:
        assert line.endswith("\n")
        assert line.count("\n") == 1
        found = json.loads(line)
        assert set(found) <= {"time", "chapter", "kind", *sharing.FIELDS[found["kind"]]}
        line.encode()
