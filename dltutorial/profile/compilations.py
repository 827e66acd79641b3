"""Watching the compiler: how often it ran, how long, why again, and where it had to give up.

In: code that calls functions of ``torch.compile``, or a function to be compiled. Out: counts, seconds, reasons.
``torch.compile`` follows a function's Python code and collects operators into a *graph*, from which it makes kernels.
At code that it cannot follow it breaks the graph: Python runs that line, a second graph takes the rest. Each graph
holds for the shapes and values it was made for; others need another compilation.

Source: docs.pytorch.org, "torch.compile troubleshooting".
"""

import logging
import time
from collections.abc import Callable
from types import TracebackType
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
        found = torch._dynamo.explain(fn)(*args).break_reasons
    finally:
        log.setLevel(level)
    return [_break(reason) for reason in found]


def _break(reason: Any) -> Break:
    frame = reason.user_stack[-1]
    why = reason.reason.strip().split("\n")[0]
    if why.startswith("generic_jump"):  # torch's name for it says little to who has not read its source
        why = "a branch that depends on a tensor's value"
    return Break(why, frame.lineno, (frame.line or "").strip())


def _guard(reason: str) -> str:
    """The condition that no longer held, without the number of the graph before it and the code behind it."""
    return reason.split("\n")[0].partition(": ")[2].split("  #")[0].strip()


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from torch._dynamo import callback, utils

        handler = callback.callback_handler
        for callbacks, own in ((handler.start_callbacks, self._start), (handler.end_callbacks, self._stop)):
            if own in callbacks:  # torch.compiler.reset() drops them all
                callbacks.remove(own)
        n_graphs, metrics = self._before
        self.graphs = utils.counters["stats"]["unique_graphs"] - n_graphs
        new = [one for one in utils.get_compilation_metrics() if not any(one is old for old in metrics)]
        reasons = (getattr(one, "recompile_reason", None) for one in new)  # torch 2.6 does not tell
        self.reasons = tuple(_guard(reason) for reason in reasons if reason)

    def _start(self, *about: Any) -> None:
        self._began_s = time.perf_counter()

    def _stop(self, *about: Any) -> None:
        self.seconds += time.perf_counter() - self._began_s
