"""Taking a trace (what ran when, on which thread or stream) and reading a kept one.

In: a function that makes one step, or a file in Chrome's trace format as torch's profiler exports it. Out: a frozen
:class:`~dltutorial.profile.events.Trace`. ``trace_summary`` adds it up, ``timeline`` draws it.

Source: "Trace Event Format" (Google, docs of Perfetto); docs.pytorch.org, torch.profiler.
"""

import gzip
import json
import math
import os
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import profiler

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.profile import ranges
from dltutorial.profile.events import ON_DEVICE, STEP, Event, Row, Trace

MAX_BYTES = 512 * 2**20  # of JSON: reading takes several times as much memory
# What the profiler calls an event → what the course calls it. Others (flow arrows, the profiler's own) are left out.
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


def take(
    run_step: Callable[[], object],
    steps: int = 5,
    warmup: int = 3,
    *,
    file: Path | None = None,
    shapes: bool = False,
) -> Trace:
    """Run ``warmup + steps`` steps and record the last ones, ranges switched on, CUDA included where it is.

    The recorder itself costs time: compare traces with each other, not with a stopwatch.

    Args:
        run_step: loads a batch, trains on it, …; no arguments.
        steps: recorded.
        warmup: run before, with the recorder already on, and left out.
        file: keep the trace, as ``….json`` or ``….json.gz`` (Perfetto and vizviewer open it too).
        shapes: also keep the shapes of operators' inputs in that file.

    Raises:
        CourseError: a number of steps that cannot be, or the file cannot be written.
    """
    if steps < 1 or warmup < 1:
        raise CourseError(f"cannot trace {steps} steps after {warmup} of warm-up; give at least 1 of each")
    if file is not None:
        _check_name(Path(file))
    on_cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory(prefix="dltutorial-trace-") as folder:
        made = Path(folder) / "trace.json"
        with _quiet():
            _profile(run_step, steps, warmup, shapes, on_cuda).export_chrome_trace(str(made))
        trace = read(made)  # first: what cannot be read back is not kept
        if file is not None:
            _keep(made, Path(file))
    if on_cuda and all(row.device is None for row in trace.rows):
        warnings.warn("the steps ran nothing on the GPU, or its profiling is not permitted here", stacklevel=2)
    return trace


def _profile(run_step: Callable[[], object], steps: int, warmup: int, shapes: bool, on_cuda: bool) -> Any:
    """A profiler that has recorded the last ``steps`` of the steps it ran."""
    activities = [profiler.ProfilerActivity.CPU, *[profiler.ProfilerActivity.CUDA] * on_cuda]
    plan = profiler.schedule(wait=0, warmup=warmup, active=steps, repeat=1)
    with ranges.enabled(), profiler.profile(activities=activities, schedule=plan, record_shapes=shapes) as recorder:
        for _ in range(warmup + steps):
            run_step()
            recorder.step()
    return recorder


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch 2.13's recorder writes lines to the error stream when all is well; a level that is set already stays."""
    name = "KINETO_LOG_LEVEL"
    given = os.environ.get(name)
    os.environ[name] = given or "99"
    try:
        yield
    finally:
        if given is None:
            del os.environ[name]


def read(file: Path, max_bytes: int = MAX_BYTES) -> Trace:
    """Read ``.json`` or ``.json.gz`` as torch's profiler writes it.

    Every ``ProfilerStep#…`` becomes the range ``step``.

    Args:
        file: to read.
        max_bytes: a trace of more JSON than this is refused.

    Raises:
        CourseError: no such file, too big, cut short, or not a trace of torch's profiler.
    """
    file = Path(file)
    try:
        found = json.loads(_content(file, max_bytes))
    except (ValueError, RecursionError) as error:
        raise CourseError(f"{file} is not a whole trace (not JSON); take it again") from error
    listed = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(listed, list):
        raise CourseError(f"{file} is not a trace (no list of traceEvents); give a file made by torch's profiler")
    kept = [event for event in listed if _is_kept(event)]
    if not kept:
        raise CourseError(f"{file} holds no event of torch's profiler; give a file that trace.take has kept")
    try:
        return _assemble(kept)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CourseError(f"{file} holds an event without a proper name, time or thread; take it again") from error


def _content(file: Path, max_bytes: int) -> bytes:
    """The JSON text, unpacked, never more than ``max_bytes`` of it in memory."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CourseError(f"{file} is not a whole gzip file; take the trace again") from error
    except OSError as error:
        raise CourseError(f"cannot read the trace {file}: {error.strerror or error}; check its path") from error
    if len(content) > max_bytes:
        raise CourseError(f"{file} holds more than {max_bytes / 2**20:.0f} MiB of trace; take fewer steps")
    return content


def _is_kept(event: Any) -> bool:
    if not isinstance(event, dict) or event.get("ph") != "X":
        return False
    category = event.get("cat")
    return isinstance(category, str) and category in _CATEGORIES


def _assemble(kept: list[dict]) -> Trace:
    """Chrome's events (microseconds) as ours; raises whatever a malformed one makes Python raise."""
    places: dict[tuple[str, str], int] = {}
    events, devices = [], {}
    for entry in kept:
        category, name = _CATEGORIES[entry["cat"]], entry["name"]
        start_s, duration_s = float(entry["ts"]) * 1e-6, float(entry["dur"]) * 1e-6
        if not isinstance(name, str) or not math.isfinite(start_s + duration_s) or duration_s < 0:
            raise ValueError(name)
        name = name.encode("utf-8", "replace").decode()  # JSON may hold half of a character, a page may not
        row = places.setdefault((str(entry["pid"]), str(entry["tid"])), len(places))
        if category in ON_DEVICE:
            devices[row] = (int(entry["pid"]), str(entry["tid"]))
        name = STEP if category == "range" and name.startswith("ProfilerStep#") else name
        events.append(Event(name, category, start_s, duration_s, row))
    return Trace.of(*in_order(events, len(places), devices))


def in_order(events: list[Event], n_rows: int, devices: dict[int, tuple[int, str]]) -> tuple[list[Event], list[Row]]:
    """Rows in the order of reading: the thread that steps first, the other threads, the devices' streams."""
    stepping = {event.row for event in events if event.name == STEP and event.category == "range"}
    first_s: dict[int, float] = {}
    for event in events:
        first_s[event.row] = min(event.start_s, first_s.get(event.row, math.inf))
    order = sorted(range(n_rows), key=lambda row: (row in devices, row not in stepping, first_s[row]))
    place = {row: index for index, row in enumerate(order)}
    rows = [
        Row(f"GPU {devices[row][0]} stream {devices[row][1]}", devices[row][0])
        if row in devices
        else Row(f"thread {place[row] + 1}")
        for row in order
    ]
    return [event._replace(row=place[event.row]) for event in events], rows


def _check_name(file: Path) -> None:
    if not file.name.endswith((".json", ".json.gz")):
        raise CourseError(f"a trace is kept as ….json or ….json.gz, not {file.name}; choose such a name")


def _keep(made: Path, file: Path) -> None:
    """Copy the trace, packed if the name says so; whole or not at all.

    Raises:
        CourseError: it cannot be written.
    """
    pack = gzip.open if file.suffix == ".gz" else open
    try:
        with paths.atomic(file) as partial, made.open("rb") as source, pack(partial, "wb") as target:
            shutil.copyfileobj(source, target)
    except OSError as error:
        raise CourseError(f"cannot write {file}: {error.strerror or error}; make room, then run again") from error
