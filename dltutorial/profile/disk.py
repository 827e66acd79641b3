"""How fast a file in a folder is read: in order or at random, from the disk or from the page cache.

In: a folder, seconds to spend. Out: a ``Figure`` in bytes/s for each of ``DISK_READS``, None for what cannot be
measured here. The file has no name, so that nothing is left of it even after a kill.
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
SAMPLE_BYTES = 5 * 64 * 128 * 4  # one sample of the smoke preset: channels × latitudes × longitudes × float32
DISK_READS = {  # bytes of a block
    "cold_sequential": 8 * _MIB,
    "cold_random_sample": SAMPLE_BYTES,
    "cold_random_4k": 4096,
    "warm_sequential": 8 * _MIB,
}


def read_bytes_per_s(folder: Path, seconds: float, most_bytes: int = 256 * _MIB) -> dict[str, Figure | None]:
    """Rates of reading a file in ``folder``, for each of ``DISK_READS``; None for what cannot be measured.

    The file is at most ``most_bytes`` and a quarter of the free space. Cold reads drop it from the page cache of this
    system first; a cache below (of the disk, of a virtual machine's host) cannot be dropped and may still help.
    """
    found: dict[str, Figure | None] = dict.fromkeys(DISK_READS)
    with contextlib.suppress(OSError):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            n_bytes = min(most_bytes, (machine.disk_free_bytes(folder) or 0) // 4)
            n_bytes = _fill(file.fileno(), n_bytes, seconds / 3)
            if n_bytes >= 8 * _MIB:
                for name in DISK_READS:
                    found[name] = _read_rate(file.fileno(), name, n_bytes, seconds / 6)
    return found


def _fill(fd: int, n_bytes: int, seconds: float) -> int:
    """Write ``n_bytes`` random bytes through to the disk, fewer (16 MiB at least) if time is up; returns how many."""
    block = random.Random(0).randbytes(16 * _MIB)  # zeros would be compressed away by some file systems
    done, end = 0, time.perf_counter() + seconds
    while done + len(block) <= n_bytes and (done == 0 or time.perf_counter() < end):
        done += os.write(fd, block)
        os.fsync(fd)
    return done


def _read_rate(fd: int, name: str, n_bytes: int, seconds: float) -> Figure | None:
    """Rate of one kind of read; None if it should be cold and the page cache cannot be dropped."""
    cold, scattered, block = name.startswith("cold"), "random" in name, DISK_READS[name]
    offsets = list(range(0, n_bytes - block + 1, block))
    if scattered:
        random.Random(0).shuffle(offsets)
    if not cold:
        _read(fd, block, offsets, seconds)  # now all of it is in the page cache
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while len(rates) < 3 or (time.perf_counter() < end and len(rates) < 20):
        if cold and not _drop_cache(fd, n_bytes, scattered):
            return None
        rates.append(_read(fd, block, offsets, seconds / 3))
    order, where = "at random" if scattered else "in order", "dropped from" if cold else "in"
    how = f"{block >> 10} KiB blocks {order}, {n_bytes // _MIB} MiB file {where} the page cache"
    return Figure.of(rates, "bytes/s", how)


def _read(fd: int, block: int, offsets: list[int], seconds: float) -> float:
    """Read one block at each offset until the time is up; bytes per second."""
    buffer = bytearray(block)
    done, start_s = 0, time.perf_counter()
    for offset in offsets:
        done += os.preadv(fd, [buffer], offset)
        passed_s = time.perf_counter() - start_s
        if passed_s > seconds:
            break
    return done / passed_s


def _drop_cache(fd: int, n_bytes: int, scattered: bool) -> bool:
    """Drop the file from the page cache; False where that cannot be done (files in memory) or cannot be checked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM if scattered else os.POSIX_FADV_NORMAL)  # no reading ahead
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return _cached_part(fd, n_bytes) < 0.05


def _cached_part(fd: int, n_bytes: int) -> float:
    """Which part of the file's pages is in the page cache, by the system call mincore."""
    n_pages = -(-n_bytes // mmap.PAGESIZE)
    resident = (ctypes.c_ubyte * n_pages)()
    with mmap.mmap(fd, n_bytes) as view:
        first = ctypes.c_char.from_buffer(view)
        failed = ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(n_bytes), resident)
        del first  # a mapping in use cannot be closed
    return 1.0 if failed else bytes(resident).count(1) / n_pages
