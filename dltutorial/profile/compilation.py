"""Watching the compiler: how often it ran, how long, why again, where it had to give up, and what it needs here.

In: code that calls functions of ``torch.compile``, or a function to be compiled. Out: counts, seconds, reasons.
``torch.compile`` follows a function's Python code and collects operators into a *graph*, from which it makes kernels.
At code that it cannot follow it breaks the graph: Python runs that line, a second graph takes the rest. Each graph
holds for the shapes and values it was made for; others need another compilation. Loads no torch by itself.

Source: docs.pytorch.org, "torch.compiler", "torch.compile troubleshooting".
"""

import importlib.util
import logging
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Break(NamedTuple):
    """A place where a function leaves its graph: why, and the line, by number and text."""

    reason: str
    line: int
    code: str


def breaks(fn: Callable[..., Any], *args: Any) -> list[Break]:
    """The graph breaks of a call, in order; none if one graph takes it all. The function runs once, uncompiled.

    Everything compiled so far in this process is forgotten, as ``torch.compiler.reset`` does.
    """
    import torch._dynamo

    log = logging.getLogger("torch._dynamo")
    level = log.level
    log.setLevel(logging.ERROR)  # it would warn of the very breaks we report
    try:
        reasons = torch._dynamo.explain(fn)(*args).break_reasons
    finally:
        log.setLevel(level)
    found = []
    for reason in reasons:
        frame, why = reason.user_stack[-1], reason.reason.strip().split("\n")[0]
        if why.startswith("generic_jump"):  # torch's name for it says little to who has not read its source
            why = "a branch that depends on a tensor's value"
        found.append(Break(why, frame.lineno, (frame.line or "").strip()))
    return found


class Compilations:
    """``with Compilations() as seen:`` then ``seen.graphs``, ``seen.seconds`` and ``seen.reasons``.

    Attributes:
        graphs: how many graphs were compiled; a break makes two of one, another shape makes them anew.
        seconds: of compiling, that of backward passes included.
        reasons: why an earlier graph would not do, one for each compilation that was not the first.
    """

    def __init__(self) -> None:
        self.graphs, self.seconds = 0, 0.0
        self.reasons: tuple[str, ...] = ()

    def __enter__(self) -> "Compilations":
        from torch._dynamo import callback, utils

        self._before = utils.counters["stats"]["unique_graphs"], utils.get_compilation_metrics()
        callback.callback_handler.register_start_callback(self._start)
        callback.callback_handler.register_end_callback(self._stop)
        return self

    def __exit__(self, *error: object) -> None:
        from torch._dynamo import callback, utils

        handler = callback.callback_handler
        for callbacks, own in ((handler.start_callbacks, self._start), (handler.end_callbacks, self._stop)):
            if own in callbacks:  # torch.compiler.reset() drops them all
                callbacks.remove(own)
        n_graphs, metrics = self._before
        self.graphs = utils.counters["stats"]["unique_graphs"] - n_graphs
        new = [one for one in utils.get_compilation_metrics() if not any(one is old for old in metrics)]
        reasons = (getattr(one, "recompile_reason", None) for one in new)  # torch 2.6 does not tell
        # The condition that no longer held, without the number of the graph before it and the code behind it.
        conditions = (reason.split("\n")[0].partition(": ")[2].split("  #")[0] for reason in reasons if reason)
        self.reasons = tuple(condition.strip() for condition in conditions)

    def _start(self, *about: Any) -> None:
        self._began_s = time.perf_counter()

    def _stop(self, *about: Any) -> None:
        self.seconds += time.perf_counter() - self._began_s


def missing(device: str) -> str | None:
    """What this machine lacks for compiling to kernels of ``device``, in a few words; None if it has everything.

    For a CPU torch writes C++, for a GPU Triton, whose launchers are C. Compilers go by the names that torch looks for.
    """
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    if device != "cpu":
        if importlib.util.find_spec("triton") is None:
            return "Triton, which comes with torch for CUDA"
        if not _any_command(os.environ.get("CC"), "gcc", "clang", "cc"):
            return "a C compiler (gcc)"
    elif not _any_command(os.environ.get("CXX") or default):
        return f"a C++ compiler ({default})"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "Python.h (of the package python3-dev)"
    return None


def _any_command(*names: str | None) -> bool:
    return any(name and shutil.which(name.split()[0]) for name in names)
