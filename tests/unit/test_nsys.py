"""What nsys exports is read as a trace. Tables are as its user guide writes them, less columns that nobody reads."""

import contextlib
import sqlite3

import pytest

from dltutorial.errors import CourseError
from dltutorial.profile import trace, trace_summary
from dltutorial.profile.events import TraceRow
from dltutorial.profile.timeline import Timeline
from dltutorial.profile.trace_breakdown import StepBreakdown

STRINGS = "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)"
ACTIVITY = "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL"
TABLES = {
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, text TEXT, globalTid INTEGER, textId INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{ACTIVITY}, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{ACTIVITY}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL",
}
ROWS = {  # nanoseconds: two steps, each waits 2 ms for its batch, copies it, computes 3 ms
    "NVTX_EVENTS": [
        *((at, at + 8_000_000, "step", 77, None) for at in (10**9, 10**9 + 8_000_000)),
        *((at, at + 2_000_000, None, 77, 1) for at in (10**9, 10**9 + 8_000_000)),
        (10**9, None, "a mark", 77, None),
    ],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [(10**9 + 4_000_000, 10**9 + 4_010_000, 77, 2)],
    "CUPTI_ACTIVITY_KIND_KERNEL": [(at, at + 3_000_000, 0, 7, 3, 4) for at in (10**9 + 4_500_000, 10**9 + 12_500_000)],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [(10**9 + 2_500_000, 10**9 + 3_000_000, 0, 13, 4096, 1)],
}
NAMES = [(1, "load"), (2, "cudaLaunchKernel_v7000"), (3, "void gemm<float>(int)"), (4, "gemm")]


def exported(path, *tables, strings=STRINGS):
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(strings)
        file.executemany("INSERT INTO StringIds VALUES (?, ?)", NAMES)
        for table in tables:
            file.execute(f"CREATE TABLE {table} ({TABLES[table]})")
            file.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(ROWS[table][0]))})", ROWS[table])
        file.commit()
    return path


def test_ranges_calls_kernels_and_copies_come_with_their_names_rows_and_seconds(tmp_path):
    found = trace.read(exported(tmp_path / "a.sqlite", *TABLES))
    assert found.rows == (TraceRow("thread 1"), TraceRow("GPU 0 stream 13", 0), TraceRow("GPU 0 stream 7", 0))
    first = [(event.name, event.category, event.row) for event in found.events[:5]]
    assert first == [
        ("step", "range", 0),
        ("load", "range", 0),
        ("Memcpy HtoD", "copy", 1),
        ("cudaLaunchKernel", "runtime", 0),
        ("void gemm<float>(int)", "kernel", 2),
    ]
    assert [event.start_s for event in found.events[:5]] == pytest.approx([0, 0, 2.5e-3, 4e-3, 4.5e-3])
    assert found.events[4].duration_s == pytest.approx(3e-3)
    assert "gemm" in Timeline(found).page()


def test_the_detectives_numbers_come_out_of_it(tmp_path):
    found = trace.read(exported(tmp_path / "a.sqlite", *TABLES))
    step = StepBreakdown.of(found)
    assert (len(found.steps), trace_summary.input_wait_share(found)) == (2, pytest.approx(0.25))
    assert (step.product_s, step.device_s) == (pytest.approx(3e-3), pytest.approx(3.25e-3))


def test_tables_that_the_exporter_left_out_are_not_missed(tmp_path):
    found = trace.read(exported(tmp_path / "a.sqlite", "NVTX_EVENTS"))
    assert {event.category for event in found.events} == {"range"}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: exported(path), "no range, kernel or copy in it"),
        (lambda path: path.write_bytes(b"SQLite format 3\0 and no more"), "file is not a database"),
    ],
)
def test_another_file_of_sqlite_is_refused_in_one_line(tmp_path, make, why):
    make(tmp_path / "a.sqlite")
    with pytest.raises(
        CourseError, match=rf"a\.sqlite is no export of Nsight Systems \({why}\); make one: nsys exp.*$"
    ):
        trace.read(tmp_path / "a.sqlite")


def test_a_report_that_is_not_yet_exported_is_told_how(tmp_path):
    (tmp_path / "a.nsys-rep").write_bytes(b"\xff\x00")
    with pytest.raises(CourseError, match=r"first: nsys export --type sqlite$"):
        trace.read(tmp_path / "a.nsys-rep")
