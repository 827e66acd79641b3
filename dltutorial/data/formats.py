"""One year of snapshots on disk, behind one small interface, whatever its layout.

    *.h5    HDF5, dataset ``fields``; in chunks or in one piece, compressed or not
    *.npy   one array, read through a memory map: the page cache is the only copy between disk and you
    *.zarr  a folder with a Zarr array, one file a chunk

In: a path. Out: a ``Year``: its length, the shape of a snapshot, and snapshots as float32; or one ``DataError`` that
names the file.

Legend: T snapshots in the year, N snapshots asked for, C channels, H rows (latitude), W columns (longitude).
"""

import contextlib
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from dltutorial.errors import DataError

SUFFIXES = (".h5", ".npy", ".zarr")
_FOREIGN = "it is of another layout, remove it"


class Year:
    """Snapshots (T, C, H, W) in one file, float32. Subclasses say how to read; use ``open_year``.

    Attributes:
        path: the file.
        shape: (C, H, W) of a snapshot.
        chunk_TCHW: the piece that is stored, and so read and decompressed, as one; None where any byte can be read.
        compressed: whether chunks are.
    """

    compressed = False

    def __init__(
        self, path: Path, shape_TCHW: tuple[int, ...] | None, dtype: np.dtype, chunk_TCHW: tuple[int, ...] | None
    ):
        shape_TCHW = shape_TCHW or ()  # HDF5 has data sets without any
        if len(shape_TCHW) != 4 or dtype != np.float32 or 0 in shape_TCHW:
            raise DataError(f"{path} holds {dtype} {shape_TCHW}, not float32 (time, channel, lat, lon); convert it")
        self.path, self.chunk_TCHW = path, chunk_TCHW
        self._n, self.shape = int(shape_TCHW[0]), tuple(int(n) for n in shape_TCHW[1:])

    def __len__(self) -> int:
        """Snapshots in the year."""
        return self._n

    def __enter__(self) -> "Year":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read(self, index: int) -> np.ndarray:
        """Snapshot ``index`` as a new array (C, H, W).

        Raises:
            IndexError: there is none of that number.
            DataError: it cannot be read.
        """
        out_1CHW = np.empty((1, *self.shape), np.float32)
        self.read_into(index, out_1CHW)
        return out_1CHW[0]

    def read_into(self, first: int, out_NCHW: np.ndarray) -> None:
        """Fill ``out_NCHW`` with the snapshots from ``first`` on, in one go.

        Raises:
            IndexError: the year ends before.
            DataError: they cannot be read.
        """
        if not 0 <= first <= first + len(out_NCHW) <= self._n:
            raise IndexError(f"snapshots {first} to {first + len(out_NCHW) - 1} of {self._n} in {self.path}")
        try:
            self._read(first, out_NCHW)
        except Exception as error:
            raise blamed(self.path, error) from error

    def snapshots(self, first: int, count: int) -> np.ndarray:
        """Snapshots (N, C, H, W) to look at, not to write to: a new array, or the mapped file itself.

        Raises:
            IndexError: the year ends before.
            DataError: they cannot be read.
        """
        out_NCHW = np.empty((count, *self.shape), np.float32)
        self.read_into(first, out_NCHW)
        return out_NCHW

    def close(self) -> None:
        """Give the file back."""

    def _read(self, first: int, out_NCHW: np.ndarray) -> None:
        raise NotImplementedError


class Hdf5Year(Year):
    """A year in HDF5."""

    def __init__(self, path: Path):
        with blaming(path):
            self._file = h5py.File(path, "r")
        fields = self._file.get("fields")
        if not isinstance(fields, h5py.Dataset):
            raise DataError(f"{path} has no dataset 'fields' but {sorted(self._file)}; {_FOREIGN}")
        self._fields, self.compressed = fields, fields.compression is not None
        super().__init__(path, fields.shape, fields.dtype, fields.chunks)

    def _read(self, first: int, out_NCHW: np.ndarray) -> None:
        part = np.s_[first : first + len(out_NCHW)]
        if out_NCHW.flags.c_contiguous:
            self._fields.read_direct(out_NCHW, part)
        else:
            out_NCHW[...] = self._fields[part]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class NpyYear(Year):
    """A year in a NumPy file, mapped into memory. Do not shorten a file that is mapped: the kernel ends the reader."""

    def __init__(self, path: Path):
        with blaming(path):
            mapped = np.load(path, mmap_mode="c", allow_pickle=False)  # as "r", but torch takes it without a warning
        if not isinstance(mapped, np.ndarray):
            raise DataError(f"{path} holds several arrays; {_FOREIGN}")
        self._fields = mapped.view(np.ndarray)  # slices of a np.memmap are slow to make
        super().__init__(path, mapped.shape, mapped.dtype, None)

    def _read(self, first: int, out_NCHW: np.ndarray) -> None:
        np.copyto(out_NCHW, self._fields[first : first + len(out_NCHW)])

    def snapshots(self, first: int, count: int) -> np.ndarray:
        """A part of the map: nothing is copied."""
        if not 0 <= first <= first + count <= len(self):
            raise IndexError(f"snapshots {first} to {first + count - 1} of {len(self)} in {self.path}")
        return self._fields[first : first + count]


class ZarrYear(Year):
    """A year in Zarr. A chunk that is missing would read as its fill value; so their number is checked first."""

    def __init__(self, path: Path):
        import zarr

        with blaming(path):
            self._fields = zarr.open_array(path, mode="r")
            missing = self._fields.nchunks - self._fields.nchunks_initialized
        if missing:
            raise DataError(f"{path} lacks {missing} of its {self._fields.nchunks} chunks; delete it and make it anew")
        self.compressed = bool(self._fields.compressors)
        super().__init__(path, self._fields.shape, self._fields.dtype, self._fields.chunks)

    def _read(self, first: int, out_NCHW: np.ndarray) -> None:
        out_NCHW[...] = self._fields[first : first + len(out_NCHW)]


def open_year(path: Path) -> Year:
    """Open one year; only its header is read.

    Raises:
        DataError: it is missing, truncated, of another layout, or holds something else than snapshots.
    """
    kinds = {".h5": Hdf5Year, ".npy": NpyYear, ".zarr": ZarrYear}
    path = Path(path)
    if path.suffix not in kinds:
        raise DataError(f"{path} is none of {', '.join('*' + suffix for suffix in SUFFIXES)}; convert it, or remove it")
    return kinds[path.suffix](path)


@contextlib.contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Whatever a library says about a bad file, as one line that names the file.

    Raises:
        DataError: instead of any error.
    """
    try:
        yield
    except Exception as error:
        raise blamed(path, error) from error


def blamed(path: Path, error: Exception) -> DataError:
    """The error to raise instead: h5py, NumPy, Zarr and its codecs have no common word for damage."""
    if isinstance(error, DataError):
        return error
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path} is missing; make or fetch it anew")
    cut = any(words in str(error) for words in ("truncated", "mmap length", "cannot reshape", "read all data"))
    if any(
        words in str(error) for words in ("allow_pickle", "Python objects")
    ):  # NumPy's advice, to trust the file, is none
        return DataError(f"{path} is no array of numbers; delete it and make or fetch it anew")
    why = "truncated" if cut else f"not readable as {path.suffix.lstrip('.') or 'data'} ({first_line(error)})"
    return DataError(f"{path} is {why}; delete it and make or fetch it anew")


def first_line(error: Exception) -> str:
    """What an error says, short enough for one line."""
    return str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__


def read_amplification(year: Year, count: int = 1) -> float:
    """Bytes stored in the chunks that are touched, per byte asked for, to read ``count`` snapshots at a random place.

    All of a chunk is read and decompressed, however little of it was asked for.
    """
    if year.chunk_TCHW is None:
        return 1.0
    depth = year.chunk_TCHW[0]
    planes = math.prod(-(-n // part) * part for n, part in zip(year.shape, year.chunk_TCHW[1:], strict=True))
    firsts = range(len(year) - count + 1)
    touched = sum((first + count - 1) // depth - first // depth + 1 for first in firsts) * depth / len(firsts)
    return touched * planes / (count * math.prod(year.shape))


def stored_bytes(path: Path) -> int:
    """What a year takes on disk: a file, or all the files of a folder."""
    files = [path] if path.is_file() else [part for part in path.rglob("*") if part.is_file()]
    return sum(file.stat().st_size for file in files)


def same_kind(files: tuple[Path, ...]) -> None:
    """A split is of one layout.

    Raises:
        DataError: it is of several.
    """
    for one, other in itertools.pairwise(files):
        if one.suffix != other.suffix:
            raise DataError(f"{one} and {other.name} are of two layouts; remove one of them")
