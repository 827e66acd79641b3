"""Named ranges of code, for torch's profiler.

In: a name around a piece of code. Out: nothing, unless ranges are switched on around it; then the range shows in the
trace with its name. Off, a range costs a look at one context variable.

Switched on is a *context*, not a process: a thread starts with ranges off, unless it is given the context,
``Thread(target=contextvars.copy_context().run, args=(work,))``. A generator's body follows whoever asks it for the
next item. Inside what ``torch.compile`` compiles there are no ranges, and they break no graph.

Source: docs.pytorch.org, torch.profiler.record_function.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import TracebackType

import torch
from torch.compiler import is_compiling

# Makes an unopened range of a name; None: off.
_MAKE: ContextVar[Callable[[str], AbstractContextManager] | None] = ContextVar("dltutorial_ranges", default=None)


class annotate:
    """``with annotate("forward"):`` name this piece of code in a trace. No ``yield`` belongs inside."""

    __slots__ = ("_name", "_opened")

    def __init__(self, name: str) -> None:
        self._name = name
        self._opened: AbstractContextManager | None = None

    def __enter__(self) -> None:
        make = None if is_compiling() else _MAKE.get()
        if make is not None:
            self._opened = make(self._name)
            self._opened.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:  # what was opened is closed, even if ranges were switched off in between
            self._opened.__exit__(kind, error, trace)
            self._opened = None


@contextmanager
def enabled() -> Iterator[None]:
    """Switch ranges on inside the block, for this thread and what inherits its context."""
    token = _MAKE.set(torch.profiler.record_function)
    try:
        yield
    finally:
        _MAKE.reset(token)
