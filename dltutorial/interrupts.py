"""Ctrl-C that Python dropped comes again; Ctrl-C that must not raise at any line is noted.

An interrupt is raised wherever the main thread happens to be. In a weak reference's callback or a ``__del__`` nobody
can catch it: Python reports it as ignored and goes on, and a run of hours that was to end does not.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

AGAIN_S = 0.05


@contextlib.contextmanager
def none_lost() -> Iterator[None]:
    """Inside ``with``, an interrupt that was raised where none can be caught is raised again, a moment later."""
    before = sys.unraisablehook

    def hook(unraisable: object) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            # A real signal: it also ends a call that waits, which _thread.interrupt_main would not.
            again = threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
            again.daemon = True
            again.start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def noted(note: Callable[[], None]) -> Iterator[None]:
    """Inside ``with``, Ctrl-C calls ``note()`` and raises nothing. Elsewhere than in the main thread none comes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: note())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
