"""Checks of chapter 03's first exercise: a loader that prefetches in a thread.

The check calls the answer in a thread of its own. Therefore an answer that waits forever is reported within seconds.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect

TIMEOUT_S = 10.0  # on a busy machine a thread may wait for seconds
_HANGS = "It waits for ever. Does the thread always put a last pair, and does the consumer stop after this pair?"


class _Source:
    """Yields items and counts them. It raises an error after ``fails_after`` items, unless this is None."""

    def __init__(self, items: list, fails_after: int | None = None):
        self.items, self.fails_after, self.made = items, fails_after, 0
        self.error = OSError("the disk is gone")

    def __iter__(self) -> Iterator:
        for number, item in enumerate(self.items):
            if number == self.fails_after:
                raise self.error
            self.made += 1
            yield item
        if self.fails_after == len(self.items):
            raise self.error


def _within(run: Callable[[], Any], hint: str = _HANGS) -> Any:
    """Return what ``run`` returns, or raise its error. Raise ``Wrong`` if it takes too long."""
    box: list = []

    def work() -> None:
        try:
            box.append((run(), None))
        except BaseException as error:
            box.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    if not box:
        raise Wrong("an answer", f"none within {TIMEOUT_S:g} s", hint)
    value, error = box[0]
    if error is not None:
        raise error
    return value


def _taken(items: Any, most: int = 2000) -> tuple[list, BaseException | None]:
    """Return all items of an iterator, and the error with which it ends, or None."""
    taken: list = []
    try:
        for item in items:
            taken.append(item)
            if len(taken) >= most:
                break
    except Exception as error:
        return taken, error
    return taken, None


def _soon(holds: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true before the timeout."""
    end = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _same_items(fn: Callable) -> None:
    """All items arrive, in their order, whatever they are"""
    wanted = list(range(20))
    got, error = _within(lambda: _taken(fn(iter(wanted), 3)))
    if error is not None:
        raise error
    hint = "The items arrive in another order. One thread and a first-in-first-out queue keep the order."
    expect(
        got,
        wanted,
        hint if sorted(got, key=repr) == sorted(wanted, key=repr) else "Items are missing or too many.",
    )
    odd = [0, None, "", False, 7]
    got, _ = _within(lambda: _taken(fn(iter(odd), 2)))
    expect(got, odd, "An item may be None or 0. Mark the end with a value that cannot be an item.")


def _reads_ahead(fn: Callable) -> None:
    """While the consumer works on one item, the next items are loaded"""
    source = _Source(list(range(50)))
    items = iter(fn(source, 3))
    _within(lambda: next(items))
    if not _soon(lambda: source.made >= 4):
        hint = "While the consumer had the first item, nothing was loaded. A thread must go through the source."
        raise Wrong("at least 4 items loaded", source.made, hint)


def _is_bounded(fn: Callable) -> None:
    """It does not load the whole source ahead"""
    source = _Source(list(range(1000)))
    items = iter(fn(source, 3))
    _within(lambda: next(items))
    time.sleep(0.3)
    if 5 < source.made < 10:
        hint = "A little too many. Is the queue larger than depth, or does the thread hold more than one item?"
        raise Wrong("at most 5 items: one in use, 3 in the queue, one in the thread", source.made, hint)
    if source.made > 5:
        hint = "With large data this fills the memory. Give the queue a maxsize, then put() waits for room."
        raise Wrong("at most 5 items: one in use, 3 in the queue, one in the thread", source.made, hint)


def _needs_a_depth(fn: Callable) -> None:
    """A depth below 1 raises a ValueError"""
    for depth in (0, -1):
        hint = "For queue.Queue, a maxsize of 0 or less means no bound at all. Then the whole source is loaded ahead."
        got, error = _within(lambda depth=depth: _taken(iter(fn(iter(range(5)), depth))), hint)
        if not isinstance(error, ValueError):
            raise Wrong(f"ValueError for depth={depth}", error or f"{len(got)} items", hint)


def _passes_errors_on(fn: Callable) -> None:
    """An error of the source reaches the consumer, after the items before it"""
    for fails_after in (3, 0):
        source = _Source(list(range(10)), fails_after)
        hint = "The source failed, the thread ended, and the consumer waits for ever. Catch the error and put it."
        got, error = _within(lambda source=source: _taken(fn(source, 2)), hint)
        if source.error in got:
            raise Wrong("the error is raised", "the error is yielded as an item", "Raise it instead of yielding it.")
        if error is None:
            hint = "The source failed, but your loader ended as if all was well. The rest of the epoch is lost."
            raise Wrong(source.error, f"no error after {len(got)} items", hint)
        if error is not source.error:
            raise Wrong(
                source.error,
                error,
                "Raise the same error object: its type says what went wrong.",
            )
        expect(got, list(range(fails_after)), "The items that were loaded before the error must be yielded first.")


def _ends_early(fn: Callable) -> None:
    """When the consumer stops early, the thread ends"""
    before = set(threading.enumerate())
    items = iter(fn(_Source(list(range(1000))), 2))

    def leave() -> None:
        next(items), next(items)
        time.sleep(0.2)  # enough time to fill the queue, so that the thread waits for room
        getattr(items, "close", lambda: None)()

    _within(leave, "Closing the generator never returns. Do not wait for a thread that waits for room in the queue.")
    if not _soon(lambda: not [thread for thread in threading.enumerate() if thread not in before]):
        hint = (
            "The thread still waits for room in the queue. Set the event stop in a finally clause, "
            "and call put() with a timeout, so that the thread can check the event."
        )
        raise Wrong("no thread is left after close()", "a thread is still alive", hint)


def _two_at_once(fn: Callable) -> None:
    """Two loaders do not disturb each other"""
    one, two = (_Source([f"{name}{number}" for number in range(6)]) for name in "ab")
    first, second = iter(fn(one, 2)), iter(fn(two, 2))
    got = _within(lambda: [(next(first), next(second)) for _ in range(6)])
    wanted = list(zip(one.items, two.items, strict=True))
    expect(got, wanted, "Items of one loader came out of the other. Create the queue inside the function.")


_HINTS = (
    "You need three parts: a queue with a maxsize, a thread that puts pairs, and a loop that gets them.",
    "Put pairs (kind, value) into the queue, for an item, for the end, and for an error.",
    "The code in a finally clause also runs when the consumer closes the generator.",
)
EXERCISE = Exercise(
    name="prefetch",
    chapter="03",
    cases=(_same_items, _reads_ahead, _is_bounded, _needs_a_depth, _passes_errors_on, _ends_early, _two_at_once),
    hints=_HINTS,
    deadline_s=120.0,
)
