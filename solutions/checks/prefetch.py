"""Checks of chapter 03's exercise: a loader that reads ahead in a thread.

What the answer gives is taken in a thread of ours, so that an answer that waits for ever is told so within seconds.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect

PATIENCE_S = 10.0  # a busy machine may keep a thread waiting for seconds
_HANGS = "It waits for ever. Does the thread always say how it ended, and does the consumer ask only for what comes?"


class _Source:
    """Items one by one; counts them, and fails after ``fails_after`` if asked to."""

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
    """What ``run`` returns, or raises; ``Wrong`` if it takes too long."""
    box: list = []

    def work() -> None:
        try:
            box.append((run(), None))
        except BaseException as error:
            box.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if not box:
        raise Wrong("an answer", f"none within {PATIENCE_S:g} s", hint)
    value, error = box[0]
    if error is not None:
        raise error
    return value


def _taken(items: Any, most: int = 2000) -> tuple[list, BaseException | None]:
    """All that an iterator gives, and the error it ends with, if it does."""
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
    """Whether something comes true in time."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _same_items(fn: Callable) -> None:
    """All items come, in order, whatever they are"""
    wanted = list(range(20))
    got, error = _within(lambda: _taken(fn(iter(wanted), 3)))
    if error is not None:
        raise error
    hint = "The items come in another order. One thread and a first-in-first-out queue keep it."
    expect(got, wanted, hint if sorted(got, key=repr) == sorted(wanted, key=repr) else "Some items are lost or added.")
    odd = [0, None, "", False, 7]
    got, _ = _within(lambda: _taken(fn(iter(odd), 2)))
    expect(got, odd, "An item may be None or 0. Mark the end with something that no item can be.")


def _reads_ahead(fn: Callable) -> None:
    """While you work on one item, the next ones are loaded"""
    source = _Source(list(range(50)))
    items = iter(fn(source, 3))
    _within(lambda: next(items))
    if not _soon(lambda: source.made >= 4):
        hint = "While you held the first item, nothing was loaded. A thread has to go through the source."
        raise Wrong("at least 4 items loaded", source.made, hint)


def _is_bounded(fn: Callable) -> None:
    """It does not read the whole source ahead"""
    source = _Source(list(range(1000)))
    items = iter(fn(source, 3))
    _within(lambda: next(items))
    time.sleep(0.3)
    if 5 < source.made < 10:
        hint = "A little too many. Is the queue larger than depth, or does the thread hold more than one item?"
        raise Wrong("at most 5: one in use, 3 in the queue, one in the making", source.made, hint)
    if source.made > 5:
        hint = "With large data this fills the memory. Give the queue a size; then put() waits for room."
        raise Wrong("at most 5: one in use, 3 in the queue, one in the making", source.made, hint)


def _needs_a_depth(fn: Callable) -> None:
    """A depth below 1 is refused"""
    for depth in (0, -1):
        hint = "To queue.Queue a size of 0, or below, means no bound at all: the whole source is read ahead."
        got, error = _within(lambda depth=depth: _taken(iter(fn(iter(range(5)), depth))), hint)
        if not isinstance(error, ValueError):
            raise Wrong(f"ValueError for depth={depth}", error or f"{len(got)} items", hint)


def _passes_errors_on(fn: Callable) -> None:
    """An error of the source reaches the consumer, in its place"""
    for fails_after in (3, 0):
        source = _Source(list(range(10)), fails_after)
        hint = "The source failed, the thread died, and the consumer waits for ever. Catch the error and send it along."
        got, error = _within(lambda source=source: _taken(fn(source, 2)), hint)
        if source.error in got:
            raise Wrong("the error raised", "the error handed out as an item", "Raise it where the item would be.")
        if error is None:
            hint = "The source failed, but your loader ended as if all was well: half an epoch, and nobody knows."
            raise Wrong(source.error, f"no error after {len(got)} items", hint)
        if error is not source.error:
            raise Wrong(source.error, error, "Raise the very error of the source: its type tells what went wrong.")
        expect(got, list(range(fails_after)), "The items made before the error must come first: they are good.")


def _ends_early(fn: Callable) -> None:
    """When the consumer stops early, the thread ends"""
    before = set(threading.enumerate())
    items = iter(fn(_Source(list(range(1000))), 2))

    def leave() -> None:
        next(items), next(items)
        time.sleep(0.2)  # time enough for the queue to be full, and the thread to wait for room
        getattr(items, "close", lambda: None)()

    _within(leave, "Closing the generator never returns. Do not wait for a thread that waits for room in the queue.")
    if not _soon(lambda: not [thread for thread in threading.enumerate() if thread not in before]):
        hint = (
            "The thread still waits for room in the queue, and will for ever. In a finally, set a flag; "
            "let put() give up after a moment (timeout) to look at it."
        )
        raise Wrong("no thread left after close()", "one that is still alive", hint)


def _two_at_once(fn: Callable) -> None:
    """Two loaders do not disturb each other"""
    one, two = (_Source([f"{name}{number}" for number in range(6)]) for name in "ab")
    first, second = iter(fn(one, 2)), iter(fn(two, 2))
    got = _within(lambda: [(next(first), next(second)) for _ in range(6)])
    wanted = list(zip(one.items, two.items, strict=True))
    expect(got, wanted, "Items of one came out of the other. Make the queue inside the function.")


_HINTS = (
    "Three parts: a queue with a size, a thread that puts, and a loop that gets and yields.",
    "Put pairs (kind, value) into the queue: an item, the end, or an error.",
    "Code in a finally clause runs when the consumer closes the generator, too.",
)
EXERCISE = Exercise(
    name="prefetch",
    chapter="03",
    cases=(_same_items, _reads_ahead, _is_bounded, _needs_a_depth, _passes_errors_on, _ends_early, _two_at_once),
    hints=_HINTS,
    deadline_s=120.0,
)
