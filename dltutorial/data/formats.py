"""How one year of snapshots lies on disk, and one small interface that reads it in any layout.

    *.h5    HDF5, dataset ``fields``; stored in chunks or contiguously, compressed or not
    *.npy   one NumPy array, read through a memory map, so that the page cache is the only copy
    *.zarr  a folder with a Zarr array, one file per chunk

In: a path. Out: a ``Year`` that reads snapshots as float32.

Legend: T snapshots in the year, N snapshots that are read, C channels, H rows (latitude), W columns (longitude).
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dltutorial.errors import DataError, first_line

SUFFIXES = {"hdf5": ".h5", "npy": ".npy", "zarr": ".zarr"}
_CONVERT = "write it in the layout of the course, as the script for ERA5 in book/training.md does"
# h5py's two errors on a file system that cannot lock files, and for a file that is open in the other locking mode.
_LOCK_ERRORS = ("unable to lock file", "file locking flag values don't match")


@dataclass(frozen=True)
class Layout:
    """How a year lies on disk.

    Attributes:
        kind: "hdf5", "npy" or "zarr".
        chunk: snapshots per chunk, "auto" if the library chooses the shape of a chunk, or None for no chunks.
        compression: "gzip" (of level 4, the default of h5py) or "lzf" for HDF5, "zstd" for Zarr, or None.
    """

    kind: str
    chunk: int | str | None = None
    compression: str | None = None

    @property
    def suffix(self) -> str:
        """The suffix of a year's file."""
        return SUFFIXES[self.kind]

    def chunks(self, shape_TCHW: tuple[int, ...]) -> Any:
        """The argument ``chunks`` of h5py and of Zarr: a shape, or True if the library chooses it, or None."""
        if isinstance(self.chunk, int):
            return (self.chunk, *shape_TCHW[1:])
        return True if self.chunk == "auto" else None


LAYOUTS = {
    "hdf5-chunk16-gzip4": Layout("hdf5", chunk=16, compression="gzip"),
    "hdf5-chunk1-gzip4": Layout("hdf5", chunk=1, compression="gzip"),
    "hdf5-chunk1": Layout("hdf5", chunk=1),
    "npy": Layout("npy"),
    "hdf5-auto-gzip4": Layout("hdf5", chunk="auto", compression="gzip"),
    "hdf5-chunk1-lzf": Layout("hdf5", chunk=1, compression="lzf"),
    "hdf5-contiguous": Layout("hdf5"),
    "zarr-chunk1": Layout("zarr", chunk=1),
    "zarr-chunk1-zstd": Layout("zarr", chunk=1, compression="zstd"),
}


class Year:
    """Snapshots (T, C, H, W) in one file, read as float32. ``open_year`` creates it.

    Attributes:
        path: the file.
        shape: (C, H, W) of a snapshot as it is read, after ``crop``.
        chunk_TCHW: the shape of a chunk, which is read and decompressed as a unit; None without chunks.
        close: closes the file.
    """

    def __init__(
        self,
        path: Path,
        fields: Any,
        chunk_TCHW: tuple[int, ...] | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        if len(fields.shape) != 4 or 0 in fields.shape or fields.dtype.kind != "f":
            what = f"{fields.dtype} {tuple(fields.shape)}"
            raise DataError(f"{path} holds {what}, not floats (time, channel, lat, lon); {_CONVERT}")
        self.path = path
        self.shape: tuple[int, int, int] = tuple(fields.shape[1:])
        self.chunk_TCHW = chunk_TCHW
        self.close = close
        self._fields = fields
        self._window: tuple[slice, ...] = ()

    def __len__(self) -> int:
        """Number of snapshots in the year."""
        return self._fields.shape[0]

    def __enter__(self) -> "Year":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def crop(self, rows: int, columns: int) -> None:
        """From now on, read the first ``rows`` and ``columns`` only; all of them if the field has fewer."""
        C, H, W = self.shape
        self.shape = C, min(rows, H), min(columns, W)
        self._window = ()
        if self.shape != (C, H, W):
            self._window = (slice(None), slice(rows), slice(columns))

    def read(self, first: int, count: int) -> np.ndarray:
        """Read snapshots (N, C, H, W).

        Args:
            first: number of the first snapshot.
            count: N.

        Returns:
            A new array, or for an npy file a part of the memory map. Do not write to it.
        """
        return np.asarray(self._fields[(slice(first, first + count), *self._window)], np.float32)


def open_year(path: Path, crop: tuple[int, int] | None = None) -> Year:
    """Open one year. This reads its header only.

    Args:
        path: a file of one of the layouts.
        crop: read the first so many rows and columns only.

    Raises:
        DataError: The file is missing, may not be read, is damaged, or holds something else than snapshots.
    """
    openers = {".h5": _open_hdf5, ".npy": _open_npy, ".zarr": _open_zarr}
    if path.suffix not in openers:
        raise DataError(f"{path} is neither *.h5 nor *.npy nor *.zarr; {_CONVERT}")
    with readable(path):
        year = openers[path.suffix](path)
    if crop is not None:
        year.crop(*crop)
    return year


def _open_hdf5(path: Path) -> Year:
    file = open_hdf5(path)
    fields = file.get("fields")
    if not isinstance(fields, h5py.Dataset):
        raise DataError(f"{path} has no dataset 'fields', it has {sorted(file)}; {_CONVERT}")
    return Year(path, fields, fields.chunks, file.close)


def open_hdf5(path: Path) -> h5py.File:
    """Open an HDF5 file for reading, with or without a lock.

    The course reads only files that are complete, so it needs no lock. Some NFS and Lustre file systems cannot lock
    files, and there h5py refuses to open a file with a lock. HDF5 also refuses to open a file twice in one process if
    one call locks it and the other does not. Therefore the lock is tried first, as in ``h5py.File(path)`` in a cell.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        return h5py.File(path, "r")
    except OSError as error:
        if not any(words in str(error) for words in _LOCK_ERRORS):
            raise
        return h5py.File(path, "r", locking=False)


def _open_npy(path: Path) -> Year:
    # "c" maps the file as "r" does, but torch accepts the array without a warning.
    mapped = np.load(path, mmap_mode="c", allow_pickle=False)
    return Year(path, mapped.view(np.ndarray))  # slices of an ndarray are faster to create than those of a np.memmap


def _open_zarr(path: Path) -> Year:
    import zarr

    fields = zarr.open_array(path, mode="r")
    return Year(path, fields, fields.chunks)


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn the error of a library that cannot open ``path`` into one line.

    Raises:
        DataError: The file is missing, may not be read, or is damaged.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; make it, or copy it from its source") from error
    except PermissionError as error:
        raise DataError(f"{path} cannot be read: permission denied; change the permissions of the file") from error
    except (OSError, ValueError, TypeError, EOFError, KeyError) as error:
        why = first_line(error)
        raise DataError(f"{path} is not readable ({why}); compare it with its source, it may be incomplete") from error


def read_amplification(year: Year, count: int) -> float:
    """Return how many bytes are read for each byte that is needed, to read ``count`` snapshots in a row.

    A chunk is always read and decompressed completely, even if one snapshot of it is needed.

    Returns:
        The mean over all possible first snapshots.
    """
    if year.chunk_TCHW is None:
        return 1.0
    depth, *chunk_CHW = year.chunk_TCHW
    values_of_a_snapshot = 1  # in all chunks that it touches
    for size, chunk_size in zip(year.shape, chunk_CHW, strict=True):
        values_of_a_snapshot *= math.ceil(size / chunk_size) * chunk_size
    n_chunks = [(first + count - 1) // depth - first // depth + 1 for first in range(len(year) - count + 1)]
    snapshots_read = depth * sum(n_chunks) / len(n_chunks)
    return snapshots_read * values_of_a_snapshot / (count * math.prod(year.shape))


def stored_bytes(path: Path) -> int:
    """Size of a year on disk: of its file, or of all files of its folder."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
