"""Load the next batch while this one is used: one thread, a short queue.

In: an iterator. Out: the same items in the same order. Loading overlaps with the step as far as both let go of
Python's lock: reading files and large array operations do.
"""

import atexit
import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

_POLL_S = 0.1


def prefetched(items: Iterator, depth: int = 2) -> Iterator:
    """Yield what ``items`` yields, made by a thread that is up to ``depth`` items ahead.

    An error of ``items`` is raised here, in its place in the order. When the consumer stops early (closes the
    generator, or drops it), the thread ends before its next item and closes ``items``. At any time at most
    ``depth + 2`` items exist: one in use, ``depth`` in the queue, one in the making.
    """
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=depth)
    stop = threading.Event()
    thread = threading.Thread(target=_work, args=(items, ready, stop), daemon=True, name="prefetch")
    thread.start()

    def end() -> None:
        stop.set()
        thread.join(5)  # it looks at ``stop`` ten times a second, unless it is in the middle of an item

    # A program may end without closing this; a thread in the middle of a library must not meet a dying interpreter.
    atexit.register(end)
    try:
        while True:
            kind, item = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise item
            yield item
            del item  # so that it does not live on while the next one is waited for
    finally:
        atexit.unregister(end)
        end()


def _work(items: Iterator, ready: queue.Queue, stop: threading.Event) -> None:
    """Put item after item into the queue, then how it ended."""
    try:
        for item in items:
            if not _put(ready, ("item", item), stop):
                break
        _put(ready, ("end", None), stop)
    except BaseException as error:
        _put(ready, ("error", error), stop)
    finally:
        with contextlib.suppress(Exception):
            getattr(items, "close", lambda: None)()


def _put(ready: queue.Queue, entry: tuple[str, Any], stop: threading.Event) -> bool:
    """Wait for room in the queue; False if the consumer has gone."""
    while not stop.is_set():
        with contextlib.suppress(queue.Full):
            ready.put(entry, timeout=_POLL_S)
            return True
    return False
