"""No report of a GPU is at hand here: the file is written by the test, following NVIDIA's documented schema."""

import sqlite3

import pytest
import torch

from dltutorial.errors import CourseError
from dltutorial.profile import nsight, nsight_report, ranges, trace_summary
from dltutorial.profile.account import Account
from dltutorial.profile.timeline import Timeline

# As documented in Nsight Systems' "SQLite Export Schema Reference"; columns that nobody reads here are left out.
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, bytes INTEGER NOT NULL,
    copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, value INTEGER, bytes INTEGER);
"""
NAMES = ["step", "cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020", "void gemm<float>(int)", "gemm"]
THREAD = 0x1000000000A000 + 17
MS = 1_000_000


def report(path, schema=SCHEMA, steps=2):
    """Steps of 10 ms from 5 s on: 4 ms of loading, a launch, a copy, a kernel of 5 ms, a wait for it."""
    with sqlite3.connect(path) as database:
        database.executescript(schema)
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(NAMES, 1))
        for at in (5_000 * MS + 10 * MS * step for step in range(steps)):
            rows = [
                *[("NVTX_EVENTS", (at, at + 10 * MS, 59, None, None, None, None, THREAD, None, 1, 0))],
                *[("NVTX_EVENTS", (at, at + 4 * MS, 59, None, None, None, "load", THREAD, None, None, 0))],
                *[("NVTX_EVENTS", (at, None, 59, None, None, None, "never ends", THREAD, None, None, 0))],
                *[("NVTX_EVENTS", (at, at, 34, None, None, None, "a mark", THREAD, None, None, 0))],
                *[("CUPTI_ACTIVITY_KIND_RUNTIME", (at + 4 * MS, at + 5 * MS, 0, THREAD, 7, 2, 0))],
                *[("CUPTI_ACTIVITY_KIND_RUNTIME", (at + 5 * MS, at + 10 * MS, 0, THREAD, 8, 3, 0))],
                *[("CUPTI_ACTIVITY_KIND_KERNEL", (at + 5 * MS, at + 10 * MS, 0, 1, 7, 7, 4, 5))],
                *[("CUPTI_ACTIVITY_KIND_MEMCPY", (at + 4 * MS, at + 5 * MS, 0, 1, 14, 9, 4096, 1))],
                *[("CUPTI_ACTIVITY_KIND_MEMSET", (at + 4 * MS, at + 4 * MS + 10, 0, 1, 7, 9, 0, 64))],
            ]
            for table, values in rows:
                database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
    return path


def test_a_report_becomes_the_same_trace_as_the_profiler_gives(tmp_path):
    trace = nsight_report.read(report(tmp_path / "profile.sqlite"))
    assert [row.name for row in trace.rows] == ["thread 1", "GPU 0 stream 7", "GPU 0 stream 14"]
    assert trace.span_s == pytest.approx(0.02)
    summary = trace_summary.summarise(trace)
    assert summary.steps == 2
    assert summary.step_s == pytest.approx(0.01)
    assert summary.input_wait_share == pytest.approx(0.4)
    assert summary.device_idle_share == pytest.approx(0.4)
    names = {(event.category, event.name) for event in trace.events}
    assert ("kernel", "void gemm<float>(int)") in names
    assert ("runtime", "cudaLaunchKernel") in names
    assert ("copy", "Memcpy HtoD") in names
    assert not {"never ends", "a mark"} & {event.name for event in trace.events}
    assert "gemm" in Timeline(trace).page()


def test_the_detective_reads_a_report_too(tmp_path):
    account = Account.of(nsight_report.read(report(tmp_path / "profile.sqlite")))
    assert account.wait_s == pytest.approx(4e-3)
    assert account.synchronise_s == pytest.approx(5e-3)
    assert account.n_synchronise == 1
    assert account.product_s == pytest.approx(5e-3, rel=0.01)


def test_tables_that_recorded_nothing_may_be_missing(tmp_path):
    file = report(tmp_path / "profile.sqlite")
    with sqlite3.connect(file) as database:
        for table in ("MEMCPY", "MEMSET", "RUNTIME"):
            database.execute(f"DROP TABLE CUPTI_ACTIVITY_KIND_{table}")
    assert len(nsight_report.read(file).rows) == 2


def test_reading_changes_nothing(tmp_path):
    file = report(tmp_path / "profile.sqlite")
    file.chmod(0o444)
    before = file.read_bytes()
    nsight_report.read(file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["profile.sqlite"]


def damaged(kind, path):
    if kind == "missing":
        return path
    if kind == "not a database":
        path.write_bytes(b"REPORT" * 1000)
    elif kind == "truncated":
        report(path, steps=2000)
        path.write_bytes(path.read_bytes()[:40_000])
    elif kind == "cut in its last page":
        report(path, steps=2000)
        path.write_bytes(path.read_bytes()[:-10])
    elif kind in ("times as text", "endless times"):
        report(path)
        with sqlite3.connect(path) as database:
            database.execute("UPDATE NVTX_EVENTS SET end = ?", ("late" if kind == "times as text" else float("inf"),))
    elif kind == "other tables":
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE StringIds (id, value)")
    elif kind == "other columns":
        report(path)
        with sqlite3.connect(path) as database:
            database.execute("ALTER TABLE NVTX_EVENTS RENAME COLUMN textId TO nameId")
    elif kind == "empty":
        report(path, steps=0)
    else:
        report(path, steps=20)
    return path


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("missing", "no report .* nsys export --type=sqlite"),
        ("not a database", "is not a whole SQLite database"),
        ("truncated", "is not a whole SQLite database"),
        ("cut in its last page", "is not a whole SQLite database"),
        ("times as text", "without a proper time"),
        ("endless times", "without a proper time"),
        ("other tables", "no report of nsys: it lacks"),
        ("other columns", "cannot be read as a report of nsys .no such column: textId"),
        ("empty", "holds no event"),
        ("too large", "holds 180 events, more than 100"),
    ],
)
def test_what_is_no_whole_report_gets_one_clear_line(tmp_path, kind, why):
    with pytest.raises(CourseError, match=why) as caught:
        nsight_report.read(
            damaged(kind, tmp_path / "profile.sqlite"), most_events=100 if kind == "too large" else 10**6
        )
    assert "\n" not in str(caught.value)


def test_the_commands_capture_what_the_run_marks(monkeypatch):
    run = nsight.python_command("-m", "dltutorial.train.profiled", "--preset", "gpu")
    nsys, ncu = nsight.nsys_command(run, "vit"), nsight.ncu_command(run, "vit", kernels=20)
    assert nsys[:2] == ["nsys", "profile"]
    assert {"--capture-range=cudaProfilerApi", "--trace=cuda,nvtx,osrt", "--output=vit"} <= set(nsys)
    assert ncu[0] == "ncu"
    assert " ".join(ncu).count("--profile-from-start off") == 1
    assert nsys[-len(run) :] == ncu[-len(run) :] == run
    assert nsight.export_command("vit")[-1] == "vit.nsys-rep"
    monkeypatch.setenv("PATH", "")
    assert nsight.available("nsys") is None


def test_capture_names_each_step_and_leaves_the_warm_up_out(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    nsight.capture(lambda: seen.append(ranges.are_enabled()), steps=2, warmup=3)
    assert seen == [False] * 3 + [True] * 2
    with pytest.raises(CourseError, match="at least 1 step"):
        nsight.capture(seen.clear, steps=0)
