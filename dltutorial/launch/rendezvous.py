"""Where ranks meet: what one of them does first, and how that ends when it was told a wrong address.

In: an address and a port. Out: how it ended, after how long, and what torch had to say, which it says in C++ and at
length on standard error. Source: https://docs.pytorch.org/docs/stable/distributed.html, "Distributed Key-Value Store"
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import BinaryIO


@dataclass(frozen=True)
class Attempt:
    """One rank's attempt to join: ``ended`` is joined or the name of the exception, ``said`` torch's first line."""

    ended: str
    after_s: float
    said: str


def join(address: str, port: int, patience_s: float) -> Attempt:
    """Connect to the store that rank 0 is to hold there, as every rank does first."""
    import torch.distributed as dist

    begun_s = time.perf_counter()
    with _standard_error() as said:
        try:
            dist.TCPStore(address, port, 2, False, timedelta(seconds=patience_s))
            ended = "joined"
        except RuntimeError as error:  # torch 2.6: DistNetworkError and DistStoreError are kinds of it
            ended = type(error).__name__
        after_s = time.perf_counter() - begun_s
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
    return Attempt(ended, after_s, lines[0] if lines else "")


@contextlib.contextmanager
def _standard_error() -> Iterator[BinaryIO]:
    """What this process's C++ code writes to standard error, in a file instead."""
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(before, 2)
            os.close(before)
