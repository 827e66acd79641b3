"""How fast a file in a folder is read: in order or at random, from the disk or from the page cache.

Input: a folder, and seconds to spend.
Output: for each kind in ``DISK_READS`` a ``Figure`` in bytes/s, or None where it cannot be measured.

The file has no name in the folder. Therefore nothing remains of it, even if the process is killed.

Source: the manual pages posix_fadvise(2) and mincore(2).
"""

import contextlib
import ctypes
import mmap
import os
import random
import tempfile
import time
from pathlib import Path

from dltutorial import machine
from dltutorial.profile.probes import Figure

_MIB = 1 << 20
_MIN_READS, _MAX_READS = 3, 20
_MAX_CACHED_SHARE = 0.05  # of the pages of a file that counts as dropped from the page cache
SAMPLE_BYTES = 5 * 64 * 128 * 4  # one sample of the preset smoke: channels × latitudes × longitudes × float32
DISK_READS = {  # kind of read: bytes of a block
    "cold_sequential": 8 * _MIB,
    "cold_random_sample": SAMPLE_BYTES,
    "cold_random_4k": 4096,
    "warm_sequential": 8 * _MIB,
}


def read_bytes_per_s(folder: Path, seconds: float, most_bytes: int = 256 * _MIB) -> dict[str, Figure | None]:
    """Measure how fast a file in ``folder`` is read.

    A cold read first drops the file from the page cache of this system. Caches below it, such as that of the disk or of
    the host of a virtual machine, cannot be dropped and may still help.

    Args:
        folder: The folder. It is made if it does not exist.
        seconds: How long to measure.
        most_bytes: The largest size of the file. The file takes at most a quarter of the free space.

    Returns:
        The rate for each of ``DISK_READS``, or None where it cannot be measured.
    """
    rates: dict[str, Figure | None] = dict.fromkeys(DISK_READS)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            free_bytes = machine.disk_free_bytes(folder) or 0
            n_bytes = _fill(file.fileno(), min(most_bytes, free_bytes // 4), seconds / 3)
            if n_bytes >= 8 * _MIB:
                for kind in DISK_READS:
                    rates[kind] = _read_rate(file.fileno(), kind, n_bytes, seconds / 6)
    return rates


def _fill(fd: int, n_bytes: int, seconds: float) -> int:
    """Write up to ``n_bytes`` random bytes to the disk, 16 MiB at a time, until the time is up. Return their number."""
    block = random.Random(0).randbytes(16 * _MIB)  # some file systems compress zeros
    written = 0
    end = time.perf_counter() + seconds
    while written + len(block) <= n_bytes and (written == 0 or time.perf_counter() < end):
        written += os.write(fd, block)
        os.fsync(fd)
    return written


def _read_rate(fd: int, kind: str, n_bytes: int, seconds: float) -> Figure | None:
    """Measure one kind of read. The result is None if a cold read is asked for and the page cache cannot be dropped."""
    is_cold = kind.startswith("cold")
    is_random = "random" in kind
    block_bytes = DISK_READS[kind]
    offsets = list(range(0, n_bytes - block_bytes + 1, block_bytes))
    if is_random:
        random.Random(0).shuffle(offsets)
    if not is_cold:
        _read(fd, block_bytes, offsets, seconds)  # afterwards the whole file is in the page cache
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while len(rates) < _MIN_READS or (time.perf_counter() < end and len(rates) < _MAX_READS):
        if is_cold and not _drop_cache(fd, n_bytes, is_random):
            return None
        rates.append(_read(fd, block_bytes, offsets, seconds / 3))
    order = "at random" if is_random else "in order"
    place = "dropped from" if is_cold else "in"
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


def _drop_cache(fd: int, n_bytes: int, is_random: bool) -> bool:
    """Drop the file from the page cache. Return whether that worked; it does not for files in memory."""
    if not hasattr(os, "posix_fadvise"):
        return False
    read_ahead = os.POSIX_FADV_RANDOM if is_random else os.POSIX_FADV_NORMAL
    os.posix_fadvise(fd, 0, 0, read_ahead)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return _cached_share(fd, n_bytes) < _MAX_CACHED_SHARE


def _cached_share(fd: int, n_bytes: int) -> float:
    """Which share of the file's pages is in the page cache, by the system call mincore."""
    n_pages = -(-n_bytes // mmap.PAGESIZE)
    is_resident = (ctypes.c_ubyte * n_pages)()
    with mmap.mmap(fd, n_bytes) as mapping:
        first_byte = ctypes.c_char.from_buffer(mapping)
        failed = ctypes.CDLL(None).mincore(ctypes.byref(first_byte), ctypes.c_size_t(n_bytes), is_resident)
        del first_byte  # a mapping that is in use cannot be closed
    if failed:
        return 1.0
    return bytes(is_resident).count(1) / n_pages
