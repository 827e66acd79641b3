"""Ctrl-C that Python dropped comes again.

An interrupt is raised wherever the main thread happens to be. In a weak reference's callback or a ``__del__`` nobody
can catch it: Python reports it as ignored and goes on, and a run of hours that was to end does not.
"""

import _thread
import contextlib
import sys
import threading
from collections.abc import Iterator

AGAIN_S = 0.05


@contextlib.contextmanager
def none_lost() -> Iterator[None]:
    """Inside ``with``, an interrupt that was raised where none can be caught is raised again, a moment later."""
    before = sys.unraisablehook

    def hook(unraisable: object) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            again = threading.Timer(AGAIN_S, _thread.interrupt_main)
            again.daemon = True
            again.start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
