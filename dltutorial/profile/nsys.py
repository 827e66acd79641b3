"""A report of Nsight Systems as events of a trace: NVTX ranges, calls of CUDA, kernels and copies.

In: what ``nsys export --type sqlite`` makes of a report. Out: events as torch's profiler lists them (microseconds), for
``trace.read``. The exporter makes a table only if it has rows for it, so any may be missing.

Source: Nsight Systems User Guide, "SQLite Schema Reference" (docs.nvidia.com/nsight-systems).
"""

import contextlib
import re
import sqlite3
from pathlib import Path
from typing import Any

from dltutorial.errors import CourseError

MAGIC = b"SQLite format 3\0"  # how such a file begins
# Table → category of torch's profiler; process (a kernel's device) and thread (stream); name, and the key to its text.
_TABLES = {
    "NVTX_EVENTS": ("user_annotation", "0", "globalTid", "coalesce(text, StringIds.value)", "textId"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("cuda_runtime", "0", "globalTid", "StringIds.value", "nameId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": ("kernel", "deviceId", "streamId", "StringIds.value", "demangledName"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        *("gpu_memcpy", "deviceId", "streamId"),
        *("'Memcpy ' || CASE copyKind WHEN 1 THEN 'HtoD' WHEN 2 THEN 'DtoH' ELSE copyKind END", "NULL"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("gpu_memset", "deviceId", "streamId", "'Memset'", "NULL"),
}
_VERSION = re.compile(r"_v\d+$")  # of a call: cudaLaunchKernel_v7000


def entries(file: Path) -> list[dict[str, Any]]:
    """The events of an export; what has no end, as an NVTX mark, is left out.
    CourseError: a file of SQLite that is no such export.
    """
    found = []
    try:
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as export:
            there = {name for (name,) in export.execute("SELECT name FROM sqlite_master")}
            for table, (category, process, thread, name, key) in _TABLES.items():
                if table in there:
                    wanted = f"SELECT start, [end], {process}, {thread}, coalesce({name}, 'unnamed') FROM {table}"
                    joined = f"LEFT JOIN StringIds ON StringIds.id = {key} WHERE [end] >= start"
                    found += [(category, *row) for row in export.execute(f"{wanted} {joined}")]
        if not found:
            raise sqlite3.DataError("no range, kernel or copy in it")
    except sqlite3.Error as error:
        make = "make one: nsys export --type sqlite REPORT.nsys-rep"
        raise CourseError(f"{file} is no export of Nsight Systems ({error}); {make}") from error
    return [
        {"ph": "X", "cat": category, "name": _VERSION.sub("", name), "pid": process, "tid": thread}
        | {"ts": start * 1e-3, "dur": (end - start) * 1e-3}
        for category, start, end, process, thread, name in found
    ]
