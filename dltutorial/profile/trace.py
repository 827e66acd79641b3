"""Take a trace of training steps (what ran when, on which thread or stream), and read a trace from a file.

Input: a function that makes one step, or a file in Chrome's trace format, as the PyTorch profiler exports it.
Output: a frozen :class:`~dltutorial.profile.events.Trace`. ``trace_summary`` adds up its times, ``timeline`` draws it.

Source: "Trace Event Format" (Google, documentation of Perfetto); docs.pytorch.org, torch.profiler.
"""

import gzip
import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.profiler

from dltutorial.profile.events import ON_DEVICE, STEP, Event, Trace

Place = tuple[str, str]  # where the file says that an event ran: process and thread, or device and stream

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
}
_WARM_UP_STEPS = 3  # before the recorded steps; the profiler already runs, but their events are left out


def take(run_step: Callable[[], object], steps: int = 5) -> Trace:
    """Run three steps as a warm-up, then record steps on the CPU and on CUDA.

    Recording takes time. Therefore compare traces with each other, not with a measurement without a profiler.

    Args:
        run_step: Runs one step, such as loading a batch and training on it.
        steps: The number of recorded steps.

    Returns:
        The trace.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    schedule = torch.profiler.schedule(wait=0, warmup=_WARM_UP_STEPS, active=steps, repeat=1)
    # The profiler of torch 2.13 writes to stderr even without an error. A level that the user has set stays.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with torch.profiler.profile(activities=activities, schedule=schedule) as profiler:
        for _ in range(_WARM_UP_STEPS + steps):
            run_step()
            profiler.step()
    with tempfile.TemporaryDirectory(prefix="dltutorial-trace-") as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        trace = read(file)
    if torch.cuda.is_available() and not trace.of_category("kernel", "copy"):
        warnings.warn("the steps ran nothing on the GPU, or its profiling is not permitted here", stacklevel=2)
    return trace


def read(file: Path) -> Trace:
    """Read a trace of the PyTorch profiler.

    Args:
        file: Its name ends in ``.json`` or ``.json.gz``.

    Returns:
        The trace. Every ``ProfilerStep#…`` becomes the range ``step``.
    """
    open_file = gzip.open if file.suffix == ".gz" else open
    with open_file(file, "rb") as stream:
        entries = json.load(stream)["traceEvents"]
    entries = [entry for entry in entries if entry["ph"] == "X" and entry.get("cat") in _CATEGORIES]
    events = [_convert(entry) for entry in entries]
    places = [(str(entry["pid"]), str(entry["tid"])) for entry in entries]
    rows = _rows_by_place(events, places)
    index_of = {place: index for index, place in enumerate(rows)}
    placed = [event._replace(row=index_of[place]) for event, place in zip(events, places, strict=True)]
    return Trace.of(placed, rows.values())


def _rows_by_place(events: list[Event], places: list[Place]) -> dict[Place, str]:
    """Name the rows and put them in order: the thread that runs the steps, the other threads, the streams."""
    first_s: dict[Place, float] = {}
    device_places = set()
    step_places = set()
    for event, place in zip(events, places, strict=True):
        first_s[place] = min(event.start_s, first_s.get(place, math.inf))
        if event.category in ON_DEVICE:
            device_places.add(place)
        if event.category == "range" and event.name == STEP:
            step_places.add(place)
    order = sorted(first_s, key=lambda place: (place in device_places, place not in step_places, first_s[place]))
    rows = {}
    for number, place in enumerate(order, 1):
        rows[place] = f"thread {number}"
        if place in device_places:
            device, stream = place
            rows[place] = f"GPU {device} stream {stream}"
    return rows


def _convert(entry: dict[str, Any]) -> Event:
    """Make an event, whose row is not known yet, from an entry of the file, which counts in microseconds."""
    category = _CATEGORIES[entry["cat"]]
    name = entry["name"]
    if category == "range" and name.startswith("ProfilerStep#"):
        name = STEP
    return Event(name, category, 1e-6 * float(entry["ts"]), 1e-6 * float(entry["dur"]), row=0)
