"""How fast a file in a folder is read: in order or at random, from the disk or from the page cache.

Input: a folder, and seconds to spend.
Output: for each kind in ``DISK_READS`` a ``Figure`` in bytes/s, or None where it cannot be measured.

The file has no name in the folder. Therefore nothing remains of it, even if the process is killed.

Source: the manual page posix_fadvise(2).
"""

import contextlib
import os
import random
import tempfile
import time
from pathlib import Path

import psutil

from dltutorial.profile.probes import Figure

_MIB = 1 << 20
_MAX_FILE_BYTES = 256 * _MIB
_WRITE_BYTES = 16 * _MIB
_REPEATS = 3
DISK_READS = {  # kind of read: bytes of a block, cold or warm, the order of the blocks
    "cold_sequential": (8 * _MIB, "cold", "in order"),
    "cold_random_4k": (4096, "cold", "at random"),
    "warm_sequential": (8 * _MIB, "warm", "in order"),
}


def read_bytes_per_s(folder: Path, seconds: float) -> dict[str, Figure | None]:
    """Measure how fast a file in ``folder`` is read.

    A cold read first drops the file from the page cache of this system. Caches below it, such as that of the disk or of
    the host of a virtual machine, cannot be dropped and may still help.

    Args:
        folder: The folder. It is made if it does not exist.
        seconds: How long to measure.

    Returns:
        The rate for each of ``DISK_READS``, or None where it cannot be measured.
    """
    rates: dict[str, Figure | None] = dict.fromkeys(DISK_READS)
    with contextlib.suppress(OSError):  # the folder cannot be written, or the disk is full
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            n_bytes = _fill(file.fileno(), seconds / 3)
            for kind, (_, temperature, _) in DISK_READS.items():
                if temperature == "warm" or _can_drop_cache(folder):
                    rates[kind] = _read_rate(file.fileno(), kind, n_bytes, seconds / 5)
    return rates


def _fill(fd: int, seconds: float) -> int:
    """Write random bytes to the disk, at most 256 MiB, until the time is up. Return their number."""
    block = random.Random(0).randbytes(_WRITE_BYTES)  # some file systems compress zeros
    n_bytes = 0
    end = time.perf_counter() + seconds
    while n_bytes == 0 or (n_bytes < _MAX_FILE_BYTES and time.perf_counter() < end):
        n_bytes += os.write(fd, block)
        os.fsync(fd)
    return n_bytes


def _can_drop_cache(folder: Path) -> bool:
    """Whether a file of this folder can be dropped from the page cache. A file system in memory keeps its files."""
    if not hasattr(os, "posix_fadvise"):
        return False
    in_memory = {disk.mountpoint for disk in psutil.disk_partitions(all=True) if disk.fstype in ("tmpfs", "ramfs")}
    places = [folder.absolute(), *folder.absolute().parents]
    mount = next(place for place in places if place.is_mount())
    return str(mount) not in in_memory


def _read_rate(fd: int, kind: str, n_bytes: int, seconds: float) -> Figure:
    """Measure one kind of read."""
    block_bytes, temperature, order = DISK_READS[kind]
    offsets = list(range(0, n_bytes - block_bytes + 1, block_bytes))
    if order == "at random":
        random.Random(0).shuffle(offsets)
    if temperature == "warm":
        place = "in"
        _read(fd, block_bytes, offsets, seconds)  # afterwards the whole file is in the page cache
    else:
        place = "dropped from"
    rates = []
    for _ in range(_REPEATS):
        if temperature == "cold":
            read_ahead = os.POSIX_FADV_RANDOM if order == "at random" else os.POSIX_FADV_NORMAL
            os.posix_fadvise(fd, 0, 0, read_ahead)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        rates.append(_read(fd, block_bytes, offsets, seconds / _REPEATS))
    how = f"{block_bytes >> 10} KiB blocks {order}, {n_bytes // _MIB} MiB file {place} the page cache"
    return Figure.of(rates, "bytes/s", how)


def _read(fd: int, block_bytes: int, offsets: list[int], seconds: float) -> float:
    """Read a block at each offset until the time is up. Return bytes per second."""
    buffer = bytearray(block_bytes)
    n_bytes = 0
    elapsed_s = 0.0
    start_s = time.perf_counter()
    for offset in offsets:
        n_bytes += os.preadv(fd, [buffer], offset)
        elapsed_s = time.perf_counter() - start_s
        if elapsed_s > seconds:
            break
    return n_bytes / elapsed_s
