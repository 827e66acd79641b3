"""Load the next batch while this one is used: one thread, a short queue.

In: an iterator. Out: the same items in the same order. Loading overlaps with the step as far as both let go of
Python's lock: reading files and large array operations do.
"""

import atexit
import contextlib
import queue
import threading
from collections.abc import Iterator


def prefetched(items: Iterator, depth: int = 2) -> Iterator:
    """Yield what ``items`` yields, made by a thread that is up to ``depth`` items ahead.

    An error of ``items`` is raised here, in its place in the order. When the consumer stops early (closes the
    generator, or drops it), the thread ends before its next item and closes ``items``. At any time at most
    ``depth + 2`` items exist: one in use, ``depth`` in the queue, one in the making.
    """
    ready: queue.Queue = queue.Queue(maxsize=depth)  # ("item", it), ("error", it) or ("end", None)
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

    def put(kind: str, item: object) -> bool:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                ready.put((kind, item), timeout=0.1)
                return True
        return False  # the consumer has gone

    try:
        if all(put("item", item) for item in items):
            put("end", None)
    except BaseException as error:
        put("error", error)
    finally:
        with contextlib.suppress(Exception):
            getattr(items, "close", lambda: None)()
