"""Reading a report of Nsight Systems, exported to SQLite, into the same Trace as torch's profiler gives.

In: the file that ``nsys export --type=sqlite`` writes. Out: a :class:`~dltutorial.profile.events.Trace`: NVTX ranges
and calls of CUDA on threads of the host, kernels, copies and memory sets on streams of devices. The file is opened for
reading only. Times are nanoseconds there; a table stands in the file only if something was recorded for it.

Source: docs.nvidia.com, Nsight Systems, "SQLite Export Schema Reference". Checked against that document, not yet
against a report from a GPU.
"""

import contextlib
import math
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from dltutorial.errors import CourseError
from dltutorial.profile.events import Event, Trace
from dltutorial.profile.trace import in_order

MOST_EVENTS = 2_000_000
_PUSH_POP, _START_END = 59, 60  # NVTX_EVENTS.eventType of the two kinds of range
_COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
_VERSION = re.compile(r"_v\d+$")  # of the CUDA call, as in cudaLaunchKernel_v7000

# Table → its query: name, start, end, place (thread, or device and stream).
_HOST = {
    "NVTX_EVENTS": "SELECT coalesce(text, value), start, end, globalTid, NULL FROM NVTX_EVENTS"
    f" LEFT JOIN StringIds ON textId = id WHERE eventType IN ({_PUSH_POP}, {_START_END})",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "SELECT value, start, end, globalTid, NULL FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    " LEFT JOIN StringIds ON nameId = id",
}
_DEVICE = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "SELECT value, start, end, deviceId, streamId FROM CUPTI_ACTIVITY_KIND_KERNEL"
    " LEFT JOIN StringIds ON demangledName = id",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "SELECT copyKind, start, end, deviceId, streamId FROM CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET": "SELECT 'Memset', start, end, deviceId, streamId FROM CUPTI_ACTIVITY_KIND_MEMSET",
}
_CATEGORY = {
    "NVTX_EVENTS": "range",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "runtime",
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "copy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "copy",
}


def read(file: Path, most_events: int = MOST_EVENTS) -> Trace:
    """Read an exported report.

    Args:
        file: as ``nsys export --type=sqlite`` writes it.
        most_events: a report with more is refused.

    Raises:
        CourseError: no such file, no database, a truncated one, other tables or columns, nothing in it, or too much.
    """
    file = Path(file)
    if not file.is_file():
        raise CourseError(f"no report {file}; export one with: nsys export --type=sqlite REPORT.nsys-rep")
    try:
        with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return _trace(file, database, most_events)
    except (TypeError, ValueError, OverflowError) as error:
        raise CourseError(f"{file} holds an event without a proper time or device; export the report again") from error
    except sqlite3.OperationalError as error:
        raise CourseError(f"{file} cannot be read as a report of nsys ({error}); export it again") from error
    except sqlite3.DatabaseError as error:
        raise CourseError(f"{file} is not a whole SQLite database ({error}); export it again") from error


def _trace(file: Path, database: sqlite3.Connection, most_events: int) -> Trace:
    (n_pages,), (page_bytes,) = (database.execute(f"PRAGMA {what}").fetchone() for what in ("page_count", "page_size"))
    if n_pages * page_bytes > file.stat().st_size:  # of a last page that is cut, SQLite reads the rest as zeros
        raise CourseError(f"{file} is not a whole SQLite database (truncated); export it again")
    there = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    found = [table for table in _CATEGORY if table in there]
    if "StringIds" not in there or not found:
        wanted = "StringIds and any of " + ", ".join(_CATEGORY)
        raise CourseError(f"{file} is a database, but no report of nsys: it lacks {wanted}; export one with nsys")
    n_events = sum(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in found)
    if n_events > most_events:
        raise CourseError(f"{file} holds {n_events:,} events, more than {most_events:,}; capture fewer steps")
    places: dict[tuple, int] = {}
    events = [event for table in found for event in _events(database, table, places)]
    if not events:
        raise CourseError(f"{file} holds no event; did the run call nsight.capture, and does nsys trace cuda,nvtx?")
    devices = {row: (int(place[1]), str(place[2])) for place, row in places.items() if place[0] == "device"}
    return Trace.of(*in_order(events, len(places), devices))


def _events(database: sqlite3.Connection, table: str, places: dict[tuple, int]) -> Iterator[Event]:
    """The events of one table; ``places`` gives each thread and stream a row."""
    on_device = table in _DEVICE
    for name, start_ns, end_ns, thread_or_device, stream in database.execute((_DEVICE if on_device else _HOST)[table]):
        if start_ns is None or end_ns is None or end_ns < start_ns:  # a range that had not ended
            continue
        place = ("device", thread_or_device, stream) if on_device else ("thread", thread_or_device)
        row = places.setdefault(place, len(places))
        if not math.isfinite(start_ns + end_ns):
            raise ValueError(start_ns, end_ns)
        yield Event(_named(table, name), _CATEGORY[table], start_ns * 1e-9, (end_ns - start_ns) * 1e-9, row)


def _named(table: str, name: str | int | None) -> str:
    if table == "CUPTI_ACTIVITY_KIND_MEMCPY":
        return _COPIES.get(name, "Memcpy")  # type: ignore[arg-type]
    return _VERSION.sub("", str(name)) if name else "(no name)"
