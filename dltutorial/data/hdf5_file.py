"""A new HDF5 file that a full disk, or Ctrl-C, can end without harm.

In: a path. Out: an open ``h5py.File``, and a function that raises what went wrong since.

HDF5 takes a write that failed badly: closing the file fails as well, and what it still holds in memory then ends the
process. And an interrupt that arrives while HDF5 works may be raised in one of h5py's callbacks, where Python drops it.
So HDF5 writes into a sink that keeps a failure to itself, and an interrupt waits for the next call of the function.
"""

import contextlib
import io
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py


@contextlib.contextmanager
def created(file: Path) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """Yield the file and ``check``: call it after every block, so that nobody waits long for what went wrong.

    Raises:
        OSError: at the next check, or at the end: the disk refused.
        KeyboardInterrupt: likewise.
    """
    with _held_interrupts() as interrupts, _Sink(file, "w+") as sink:

        def check() -> None:
            if interrupts:
                raise KeyboardInterrupt
            if sink.failure:
                raise sink.failure

        with h5py.File(sink, "w") as h5:
            yield h5, check
        check()


class _Sink(io.FileIO):
    """Where HDF5 writes. After a failure it takes everything and writes nothing."""

    failure: OSError | None = None

    def write(self, data: memoryview) -> int:
        """All of it, or none any more."""
        left = memoryview(data).cast("B")
        try:
            while left and self.failure is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.failure = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        """HDF5 sets the file's length as it closes it."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = error
            return size or 0


@contextlib.contextmanager
def _held_interrupts() -> Iterator[list[int]]:
    """Inside, Ctrl-C only adds to the list. Elsewhere than in Python's usual state nothing is changed."""
    seen: list[int] = []
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield seen
        return
    try:
        signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    except ValueError:  # not the main thread, which is the one that gets interrupts
        yield seen
        return
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
