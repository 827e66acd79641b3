"""Named ranges of code for the PyTorch profiler.

Input: a name for a block of code.
Output: a range in the trace with this name, if ranges are switched on. Otherwise nothing happens, and the range costs
one look at a context variable.

Ranges are switched on for a *context*, not for a process. A thread starts with ranges off, unless it gets the context
by ``Thread(target=contextvars.copy_context().run, args=(work,))``. The body of a generator runs in the context of its
caller. Inside a function that ``torch.compile`` compiles there are no ranges, and they do not break its graph.

Source: docs.pytorch.org, torch.profiler.record_function.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import TracebackType

import torch
from torch.compiler import is_compiling

# Makes the range of a name. None means that ranges are switched off.
_MAKE: ContextVar[Callable[[str], AbstractContextManager] | None] = ContextVar("dltutorial_ranges", default=None)


class annotate:
    """``with annotate("forward"):`` names a block of code in a trace. The block must not contain ``yield``."""

    __slots__ = ("_name", "_range")

    def __init__(self, name: str) -> None:
        self._name = name
        self._range: AbstractContextManager | None = None

    def __enter__(self) -> None:
        make = None if is_compiling() else _MAKE.get()
        if make is not None:
            self._range = make(self._name)
            self._range.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._range is not None:  # an open range is closed, even if ranges were switched off inside the block
            self._range.__exit__(kind, error, trace)
            self._range = None


@contextmanager
def enabled() -> Iterator[None]:
    """Switch ranges on inside the ``with`` block, for this thread and for threads that get its context."""
    token = _MAKE.set(torch.profiler.record_function)
    try:
        yield
    finally:
        _MAKE.reset(token)
