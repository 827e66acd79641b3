"""Taking a trace (what ran when, on which thread or stream) and reading a kept one.

In: a function that makes one step, or a file in Chrome's trace format, as torch's profiler exports it. Out: a frozen
:class:`~dltutorial.profile.events.Trace`. ``trace_summary`` adds it up, ``timeline`` draws it.

Source: "Trace Event Format" (Google, docs of Perfetto); docs.pytorch.org, torch.profiler.
"""

import contextlib
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

Row = tuple[str, str]  # process (of a kernel: device) and thread (stream), as the file names them

_MOST_S = 1e12  # 30,000 years; nanoseconds of it can be counted
# What the profiler calls an event → what the course calls it. Others (flow arrows, the profiler's own) are left out.
_CATEGORIES = {"user_annotation": "range", "gpu_user_annotation": "device range", "cpu_op": "operator",
               "cuda_runtime": "runtime", "cuda_driver": "runtime", "kernel": "kernel", "gpu_memcpy": "copy",
               "gpu_memset": "copy", "python_function": "python"}  # fmt: skip


def take(run_step: Callable[[], object], steps: int = 5, warmup: int = 3, *, file: Path | None = None) -> Trace:
    """Run ``warmup + steps`` steps and record the last ones, ranges switched on, CUDA included where it is.

    The recorder itself costs time: compare traces with each other, not with a stopwatch.

    Args:
        run_step: loads a batch, trains on it, …; no arguments.
        steps: recorded.
        warmup: run before, with the recorder already on, and left out.
        file: keep the trace, as ``….json`` or ``….json.gz`` (Perfetto and vizviewer open it too).

    Raises:
        CourseError: a number of steps that cannot be, the file cannot be written, or as ``require_place``.
    """
    if steps < 1 or warmup < 1:
        raise CourseError(f"cannot trace {steps} steps after {warmup} of warm-up; give at least 1 of each")
    name = Path(file).name if file else "trace.json"
    if file:
        require_place(Path(file))
    on_cuda = torch.cuda.is_available()
    activities = [torch.profiler.ProfilerActivity.CPU, *[torch.profiler.ProfilerActivity.CUDA] * on_cuda]
    plan = torch.profiler.schedule(wait=0, warmup=warmup, active=steps, repeat=1)
    # Torch 2.13's recorder writes lines to the error stream when all is well; a level that is set already stays.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with tempfile.TemporaryDirectory(prefix="dltutorial-trace-") as folder:
        with ranges.enabled(), torch.profiler.profile(activities=activities, schedule=plan) as recorder:
            for _ in range(warmup + steps):
                run_step()
                recorder.step()
        made = Path(folder) / name
        recorder.export_chrome_trace(str(made))
        trace = read(made)  # first: what cannot be read back is not kept
        if file is not None:
            with paths.atomic(Path(file)) as partial:
                shutil.copyfile(made, partial)
    if on_cuda and all(row.device is None for row in trace.rows):
        warnings.warn("the steps ran nothing on the GPU, or its profiling is not permitted here", stacklevel=2)
    return trace


def require_place(file: Path) -> None:
    """CourseError: no trace is kept under such a name, or what is there by now is none, and would be lost."""
    if not file.name.endswith((".json", ".json.gz")):
        raise CourseError(f"a trace is kept as ….json or ….json.gz, not {file.name}; choose such a name")
    with contextlib.suppress(OSError, CourseError):
        if not file.exists() or read(file):
            return
    raise CourseError(f"{file} is no trace that can be read, and stays as it is; give another name")


def read(file: Path) -> Trace:
    """Read a trace of torch's profiler.

    Args:
        file: ends in ``.json`` or ``.json.gz``.

    Returns:
        The trace. Every ``ProfilerStep#…`` becomes the range ``step``.

    Raises:
        CourseError: There is no such file, it is cut short, or it is not a trace of torch's profiler.
    """
    file = Path(file)
    try:
        with open(file, "rb") as stream:
            found = json.load(gzip.GzipFile(fileobj=stream) if file.suffix == ".gz" else stream)
        listed = found["traceEvents"] if isinstance(found, dict) else found
        return _assemble([entry for entry in listed if entry.get("ph") == "X" and entry.get("cat") in _CATEGORIES])
    except OSError as error:
        raise CourseError(f"cannot read the trace {file}: {error.strerror or error}; check its path") from error
    except (EOFError, zlib.error, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as e:
        raise CourseError(f"{file} is not a whole trace of torch's profiler ({type(e).__name__}); take it again") from e


def _assemble(entries: list[dict[str, Any]]) -> Trace:
    """Chrome's events (microseconds) as ours; raises whatever a malformed one makes Python raise."""
    if not entries:
        raise ValueError("no event of torch's profiler")
    first_s: dict[Row, float] = {}
    stepping, found = set(), []
    for entry in entries:
        category, name, row = _CATEGORIES[entry["cat"]], entry["name"], (str(entry["pid"]), str(entry["tid"]))
        start_s, duration_s = float(entry["ts"]) * 1e-6, float(entry["dur"]) * 1e-6
        if not (abs(start_s) + duration_s < _MOST_S and duration_s >= 0):
            raise ValueError(f"{name} has no proper time")
        name = name.encode("utf-8", "replace").decode()  # JSON may hold half of a character, a page may not
        if category == "range" and (name == STEP or name.startswith("ProfilerStep#")):
            name = STEP
            stepping.add(row)
        first_s[row] = min(start_s, first_s.get(row, math.inf))
        found.append((Event(name, category, start_s, duration_s, 0), row))
    devices = {row for event, row in found if event.category in ON_DEVICE}
    # In the order of reading: the thread that steps first, the other threads, the devices' streams.
    order = sorted(first_s, key=lambda row: (row in devices, row not in stepping, first_s[row]))
    rows = [
        TraceRow(f"GPU {row[0]} stream {row[1]}", int(row[0])) if row in devices else TraceRow(f"thread {number}")
        for number, row in enumerate(order, 1)
    ]
    return Trace.of([event._replace(row=order.index(row)) for event, row in found], rows)
