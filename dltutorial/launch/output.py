"""What the ranks print, under the caller's cell or command: whole lines, each with its rank.

In: bytes as they come out of each rank's pipe. Out: ``[rank 1] …`` lines on the caller's standard output, as soon as
a line is whole.
"""

import sys


class Output:
    """Writes the lines of several ranks, never two of them mixed."""

    def __init__(self, world_size: int) -> None:
        self._rest = [b""] * world_size

    def feed(self, rank: int, data: bytes) -> None:
        """Take what a rank has written; print the lines that are now whole."""
        *lines, self._rest[rank] = (self._rest[rank] + data).split(b"\n")
        # A bar that rewrites its line with carriage returns comes out as it last looked.
        texts = [line.rstrip(b"\r").rsplit(b"\r")[-1].decode(errors="backslashreplace") for line in lines]
        sys.stdout.write("".join(f"[rank {rank}] {text}\n" for text in texts))
        sys.stdout.flush()

    def close(self) -> None:
        """Print what did not end with a newline."""
        for rank, rest in enumerate(self._rest):
            if rest:
                self.feed(rank, b"\n")
