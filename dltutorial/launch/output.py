"""What the ranks print, under the caller's cell or command: whole lines, each with its rank; and one bar.

In: bytes as they come out of each rank's pipe. Out: ``[rank 1] …`` lines on the caller's standard output, as soon as
a line is whole. The bar is tqdm's: a widget in a notebook, text in a terminal.
"""

import sys
from typing import Any


class Output:
    """Writes the lines of several ranks, never two of them mixed."""

    def __init__(self, world_size: int) -> None:
        self._rest = [b""] * world_size
        self._bar: Any = None

    def feed(self, rank: int, data: bytes) -> None:
        """Take what a rank has written; print the lines that are now whole."""
        *lines, self._rest[rank] = (self._rest[rank] + data).split(b"\n")
        # A bar that rewrites its line with carriage returns comes out as it last looked.
        texts = [line.rstrip(b"\r").rsplit(b"\r")[-1].decode(errors="backslashreplace") for line in lines]
        text = "".join(f"[rank {rank}] {text}\n" for text in texts)
        if self._bar is not None:
            self._bar.write(text, file=sys.stdout, end="")
        else:
            sys.stdout.write(text)
        sys.stdout.flush()

    def progress(self, done: float, total: float) -> None:
        """Move the bar to ``done`` of ``total``."""
        if self._bar is None:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, mininterval=0.1)
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Print what did not end with a newline, and leave the bar as it is."""
        for rank, rest in enumerate(self._rest):
            if rest:
                self.feed(rank, b"\n")
        if self._bar is not None:
            self._bar.close()
