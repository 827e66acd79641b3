"""Take a trace of training steps (what ran when, on which thread or stream), and read a trace from a file.

Input: a function that makes one step, or a file in Chrome's trace format, as the PyTorch profiler exports it.
Output: a frozen :class:`~dltutorial.profile.events.Trace`. ``trace_summary`` adds up its times, ``timeline`` draws it.

Source: "Trace Event Format" (Google, documentation of Perfetto); docs.pytorch.org, torch.profiler.
"""

import gzip
import json
import math
import os
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.profiler

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.profile import ranges
from dltutorial.profile.events import ON_DEVICE, STEP, Event, Trace, TraceRow

Row = tuple[str, str]  # process (of a kernel: device) and thread (of a kernel: stream), as the file names them

_MAX_TIME_S = 1e12  # 30,000 years, so that a time in nanoseconds has a meaning
# The profiler's category → the category of the course. Other events, such as flow arrows, are left out.
_CATEGORIES = {
    "user_annotation": "range",
    "gpu_user_annotation": "device range",
    "cpu_op": "operator",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "python_function": "python",
}
_FORMAT_ERRORS = (
    EOFError,
    zlib.error,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)


def take(run_step: Callable[[], object], steps: int = 5, warmup: int = 3, *, file: Path | None = None) -> Trace:
    """Run ``warmup + steps`` steps with ranges switched on, and record the last ones, on the CPU and on CUDA.

    Recording takes time. Therefore compare traces with each other, not with a measurement without a profiler.

    Args:
        run_step: Runs one step, such as loading a batch and training on it.
        steps: The number of recorded steps.
        warmup: The number of steps before them. The profiler already runs, but their events are left out.
        file: Write the trace to this file, ``….json`` or ``….json.gz``. Perfetto and VizTracer's viewer open it, too.

    Returns:
        The trace.

    Raises:
        CourseError: ``steps`` or ``warmup`` is below 1, or the file has another ending or cannot be written.
    """
    if steps < 1 or warmup < 1:
        raise CourseError(f"cannot trace {steps} steps after {warmup} of warm-up; give at least 1 of each")
    name = file.name if file else "trace.json"
    if not name.endswith((".json", ".json.gz")):
        raise CourseError(f"a trace is kept as ….json or ….json.gz, not {name}; choose such a name")
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    schedule = torch.profiler.schedule(wait=0, warmup=warmup, active=steps, repeat=1)
    # The profiler of torch 2.13 writes to stderr even without an error. A level that the user has set stays.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with ranges.enabled(), torch.profiler.profile(activities=activities, schedule=schedule) as profiler:
        for _ in range(warmup + steps):
            run_step()
            profiler.step()
    with tempfile.TemporaryDirectory(prefix="dltutorial-trace-") as folder:
        exported = Path(folder) / name
        profiler.export_chrome_trace(str(exported))
        trace = read(exported)
        if file is not None:
            with paths.atomic(file) as temporary:
                shutil.copyfile(exported, temporary)
    if torch.cuda.is_available() and all(row.device is None for row in trace.rows):
        warnings.warn("the steps ran nothing on the GPU, or its profiling is not permitted here", stacklevel=2)
    return trace


def read(file: Path) -> Trace:
    """Read a trace of the PyTorch profiler.

    Args:
        file: Its name ends in ``.json`` or ``.json.gz``.

    Returns:
        The trace. Every ``ProfilerStep#…`` becomes the range ``step``.

    Raises:
        CourseError: There is no such file, it is cut short, or it is not a trace of the PyTorch profiler.
    """
    file = Path(file)
    open_file = gzip.open if file.suffix == ".gz" else open
    try:
        with open_file(file, "rb") as stream:
            content = json.load(stream)
        entries = content["traceEvents"] if isinstance(content, dict) else content
        return _assemble([entry for entry in entries if entry.get("ph") == "X" and entry.get("cat") in _CATEGORIES])
    except OSError as error:
        raise CourseError(f"cannot read the trace {file}: {error.strerror or error}; check its path") from error
    except _FORMAT_ERRORS as error:
        kind = type(error).__name__
        raise CourseError(f"{file} is not a whole trace of torch's profiler ({kind}); take it again") from error


def _assemble(entries: list[dict[str, Any]]) -> Trace:
    """Convert events of Chrome's format, which counts in microseconds. An entry of another form raises any error."""
    if not entries:
        raise ValueError("no event of the PyTorch profiler")
    events: list[tuple[Event, Row]] = []
    first_s: dict[Row, float] = {}
    for entry in entries:
        event = _convert(entry)
        row = (str(entry["pid"]), str(entry["tid"]))
        events.append((event, row))
        first_s[row] = min(event.start_s, first_s.get(row, math.inf))
    device_rows = {row for event, row in events if event.category in ON_DEVICE}
    step_rows = {row for event, row in events if event.category == "range" and event.name == STEP}
    # The order of reading: the thread that runs the steps, the other threads, the streams of the devices.
    order = sorted(first_s, key=lambda row: (row in device_rows, row not in step_rows, first_s[row]))
    indices = {row: index for index, row in enumerate(order)}
    trace_rows = [_name_row(row, index, is_device=row in device_rows) for row, index in indices.items()]
    return Trace.of([event._replace(row=indices[row]) for event, row in events], trace_rows)


def _convert(entry: dict[str, Any]) -> Event:
    """Make an event, whose row is not known yet, from an entry of the file."""
    category = _CATEGORIES[entry["cat"]]
    name = entry["name"]
    start_s = float(entry["ts"]) * 1e-6
    duration_s = float(entry["dur"]) * 1e-6
    if not (abs(start_s) + duration_s < _MAX_TIME_S and duration_s >= 0):
        raise ValueError(f"{name} has no proper time")
    if category == "range" and name.startswith("ProfilerStep#"):
        name = STEP
    # JSON may hold half of a character, which cannot be written to a page.
    name = name.encode("utf-8", "replace").decode()
    return Event(name, category, start_s, duration_s, row=0)


def _name_row(row: Row, index: int, is_device: bool) -> TraceRow:
    """Name a row for readers."""
    if is_device:
        device, stream = row
        return TraceRow(f"GPU {device} stream {stream}", int(device))
    return TraceRow(f"thread {index + 1}")
