"""How one year of snapshots lies on disk, and reading it through one small interface, whatever its layout.

    *.h5    HDF5, dataset ``fields``; in chunks or in one piece, compressed or not
    *.npy   one array, read through a memory map: the page cache is the only copy between disk and you
    *.zarr  a folder with a Zarr array, one file a chunk

In: a path, or the name of a ``Layout`` such as ``hdf5-chunk16-gzip4``. Out: a ``Year``, whose snapshots come as
float32; or one ``DataError`` that names the file.

Legend: T snapshots in the year, N snapshots asked for, C channels, H rows (latitude), W columns (longitude).
"""

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dltutorial.errors import DataError, RecipeError

SUFFIXES = (".h5", ".npy", ".zarr")
LAYOUTS = "npy, or hdf5 or zarr with -auto, -contiguous (hdf5) or -chunkN, then -gzipL, -lzf (hdf5) or -zstd (zarr)"
_CHUNKED = r"-(auto|chunk[1-9]\d*)"
_LAYOUT = re.compile(rf"npy|hdf5-contiguous|hdf5{_CHUNKED}(-gzip\d?|-lzf)?|zarr{_CHUNKED}(-gzip\d?|-zstd)?")
_CHUNK = re.compile(r"(c\.)?\d+(\.\d+)*")  # the name of a file of Zarr's
_ERRNO = re.compile(r"errno = ([1-9]\d*)")  # so HDF5 quotes the system
_COPY_AGAIN = "copy it again from its source"
_LOCK_ERRORS = ("unable to lock file", "file locking flag values don't match")
_MOST_CHUNKS = 10**7  # to count more takes HDF5 minutes
# From this size on a snapshot is read by h5py's ``read_direct``, straight to its place. It takes three times as long as
# a slice to set up; a slice costs a new array and a copy. So slices take 0.4 × the time at 160 KiB, and 2 × at 20 MiB.
READ_DIRECT_BYTES = 2**20


@dataclass(frozen=True)
class Layout:
    """How a year lies on disk, by its name: ``npy``, ``hdf5-contiguous``, ``hdf5-chunk16-gzip4``, ``zarr-auto-zstd``.

    A chunk is so many snapshots deep and as wide as the field; "auto" leaves its shape to the library, None stores
    everything in one piece. Level None is the library's own.
    """

    name: str
    kind: str
    chunk: int | str | None
    compression: str | None
    level: int | None

    @classmethod
    def of(cls, name: str) -> "Layout":
        """The layout of that name. RecipeError: there is no such layout."""
        if not _LAYOUT.fullmatch(name):
            raise RecipeError(f"no layout {name!r}; choose {LAYOUTS}")
        kind, chunk, codec = [*name.split("-"), "", ""][:3]
        depth = int(chunk[5:]) if chunk.startswith("chunk") else "auto" if chunk == "auto" else None
        level = int(codec[4:]) if re.fullmatch(r"gzip\d", codec) else None
        return cls(name, kind, depth, codec.rstrip("0123456789") or None, level)

    @property
    def suffix(self) -> str:
        """Of a year's file."""
        return {"hdf5": ".h5", "npy": ".npy", "zarr": ".zarr"}[self.kind]


class Year:
    """Snapshots (T, C, H, W) in one file, read as float32; ``open_year`` makes one.

    Attributes:
        path: the file.
        shape: (C, H, W) of a snapshot as it is read, after ``crop``.
        chunk_TCHW: the piece that is stored, and so read and decompressed, as one; None where any byte can be read.
        compressed: whether chunks are.
        close: gives the file back.
        no_value: what stands for "no value" by the file's own word, as NetCDF's ``_FillValue``; NaN without one.
    """

    no_value = math.nan

    def __init__(self, path: Path, fields: Any, chunk_TCHW: tuple[int, ...] | None = None, compressed: bool = False,
                 close: Callable[[], None] = lambda: None) -> None:  # fmt: skip
        shape_TCHW = tuple(fields.shape or ())  # HDF5 has data sets without any
        holds = f"{path} holds {fields.dtype} {shape_TCHW}"
        if len(shape_TCHW) != 4 or fields.dtype.kind != "f":
            raise DataError(f"{holds}, not floats (time, channel, lat, lon); write it as such")
        if 0 in shape_TCHW:
            raise DataError(f"{holds}, so it has no values; {_COPY_AGAIN}")
        self.path, self.chunk_TCHW, self.compressed, self.close = path, chunk_TCHW, compressed, close
        self._fields, self._n = fields, shape_TCHW[0]
        self.shape: tuple[int, int, int] = shape_TCHW[1:]
        self._window: tuple[slice, ...] = ()

    def __len__(self) -> int:
        """Snapshots in the year."""
        return self._n

    def __enter__(self) -> "Year":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def crop(self, rows: int, columns: int) -> None:
        """From now on read the first so many rows and columns only; all of them where there are fewer."""
        C, H, W = self.shape
        self.shape = C, min(rows, H), min(columns, W)
        self._window = (slice(None), slice(rows), slice(columns)) if self.shape != (C, H, W) else ()

    def snapshots(self, first: int, count: int) -> np.ndarray:
        """Snapshots (N, C, H, W) to look at, not to write to: a new array, or of an npy file the map itself.

        Raises: IndexError: the year ends before; DataError: they cannot be read.
        """
        self._require(first, count)
        with blaming(self.path), np.errstate(over="ignore"):  # what becomes infinite is noticed as such
            x_NCHW = np.asarray(self._fields[(slice(first, first + count), *self._window)], np.float32)
        return self._with_values(first, x_NCHW)

    def _with_values(self, first: int, x_NCHW: np.ndarray) -> np.ndarray:
        """As given. DataError: what stands for no value is among them, or one snapshot has one value a field."""
        for index, x_CHW in enumerate(x_NCHW, first):
            one, other = x_CHW[0, 0, 0], x_CHW[0, 0, -1]  # where they differ, as they do mostly, no more is looked at
            are_equal = not (one < other or one > other) and x_CHW[0].size > 1
            if are_equal and not (x_CHW.max((1, 2)) > x_CHW.min((1, 2))).any():
                kind = "NaN or infinity" if not np.isfinite(x_CHW).all() else "one value a field"
                why = "as if a part of the file was never written"
                raise DataError(f"{self.path}, snapshot {index}, holds {kind}, {why}; {_COPY_AGAIN}")
        if not math.isnan(self.no_value) and (x_NCHW == self.no_value).any():
            raise DataError(f"{self.path} holds {self.no_value:g}, its own sign for a missing value; fill these values")
        return x_NCHW

    def read_into(self, first: int, out_NCHW: np.ndarray) -> None:
        """Fill ``out_NCHW`` with the snapshots from ``first`` on; errors as of ``snapshots``."""
        large = isinstance(self._fields, h5py.Dataset) and out_NCHW[0].nbytes >= READ_DIRECT_BYTES
        if not large or (self.chunk_TCHW or (1,))[0] > 1:  # a deep chunk is read once for all its snapshots
            np.copyto(out_NCHW, self.snapshots(first, len(out_NCHW)))
            return
        self._require(first, len(out_NCHW))
        with blaming(self.path):
            for index, out_CHW in enumerate(out_NCHW, first):
                self._fields.read_direct(out_CHW, (index, *self._window))
        self._with_values(first, out_NCHW)

    def _require(self, first: int, count: int) -> None:
        """Raises: IndexError: the year lacks some of these snapshots."""
        if not 0 <= first <= first + count <= self._n:
            raise IndexError(f"snapshots {first} to {first + count - 1} of {self._n} in {self.path}")


def open_year(path: Path, crop: tuple[int, int] | None = None) -> Year:
    """Open one year, or its first so many rows and columns; only its header and the list of its chunks are read.

    DataError: it is missing, truncated, of another layout, holds something else than snapshots, or lacks chunks.
    """
    path = Path(path)
    kinds = {".h5": _open_hdf5, ".npy": _open_npy, ".zarr": _open_zarr}
    if path.suffix not in kinds:
        raise DataError(f"{path} is none of {', '.join('*' + suffix for suffix in SUFFIXES)}; convert it to one")
    with blaming(path), np.errstate(over="ignore"):  # a fill value of a file in float64 may be any
        year = kinds[path.suffix](path)
    if crop is not None:
        year.crop(*crop)
    return year


def _open_hdf5(path: Path) -> Year:
    file = open_hdf5(path)
    fields = dataset(path, file, "fields")
    year = Year(path, fields, fields.chunks, fields.compression is not None, file.close)
    has_fill = fields.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    year.no_value = own_no_value(path, fields.attrs, fields.fillvalue if has_fill else None)
    return year


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


def dataset(path: Path, file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset of an HDF5 file, all of whose values lie in that file, and as they are.

    DataError: there is none of that name; or its values are elsewhere, packed, or not all written.
    """
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        instead = "a group of that name" if found else sorted(file)
        raise DataError(f"{path} has no dataset {name!r} but {instead}; write its values into a dataset {name!r}")
    if found.is_virtual or found.external:
        raise DataError(f"{path} keeps its values in other files; copy them into one file")
    _refuse_packed(path, found.attrs)
    packing = found.id.get_create_plist()
    for code, _, _, name in map(packing.get_filter, range(packing.get_nfilters())):
        if not h5py.h5z.filter_avail(code):
            what = f"{path} is packed with filter {code} ({os.fsdecode(name)[:40]}), whose plugin is not here"
            raise DataError(f"{what}; it may well be whole: unpack it where the plugin is, as with h5repack")
    if found.size:
        count = found.id.get_num_chunks if found.chunks else lambda: int(found.id.get_storage_size() >= found.nbytes)
        _refuse_holes(path, found.shape, found.chunks or found.shape, count)
    return found


def _refuse_packed(path: Path, attributes: Any) -> None:
    """DataError: by these attributes the values are not what is stored."""
    packing = {"scale_factor": 1, "add_offset": 0}
    if any(np.any(np.ravel(attributes.get(name, none)) != none) for name, none in packing.items()):
        raise DataError(f"{path} has packed values, to be read with scale_factor and add_offset; write them unpacked")


def _open_npy(path: Path) -> Year:
    """Mapped into memory. Do not shorten a file that is mapped: the kernel ends the reader."""
    mapped = np.load(path, mmap_mode="c", allow_pickle=False)  # as "r", but torch takes it without a warning
    if not isinstance(mapped, np.ndarray):
        raise DataError(f"{path} holds several arrays; write one array (time, channel, lat, lon)")
    return Year(path, mapped.view(np.ndarray))  # slices of a np.memmap are slow to make


def _open_zarr(path: Path) -> Year:
    import zarr

    n_files = _files_of_chunks(path)  # looked at before Zarr opens any
    fields = zarr.open(path, mode="r")
    if not isinstance(fields, zarr.Array):
        raise DataError(f"{path} is a Zarr group, as xarray writes it, and may well be whole; write it as an array")
    _refuse_packed(path, fields.attrs)
    year = Year(path, fields, fields.chunks, bool(fields.compressors))
    is_version_2 = fields.metadata.zarr_format == 2  # later ones fill with it what was never written, and no more
    year.no_value = own_no_value(path, fields.attrs, fields.fill_value if is_version_2 else None)
    _refuse_holes(path, fields.shape, fields.shards or fields.chunks, lambda: n_files)
    return year


def own_no_value(path: Path, attributes: Any, fill: Any = None) -> float:
    """What stands for no value by an attribute, else ``fill`` unless it is 0, else NaN. DataError: it is no number."""
    said = attributes.get("_FillValue", attributes.get("missing_value", fill or math.nan))  # 0 is the libraries' own
    try:
        return float(np.float32(np.ravel(said)[0]))
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(f"{path}: _FillValue or missing_value is no number; correct this attribute") from error


def _files_of_chunks(path: Path) -> int:
    """Return the number of files that hold values of a Zarr array; the names tell which do."""
    return sum(bool(_CHUNK.fullmatch(name)) for _, _, names in os.walk(path) for name in names)


def _refuse_holes(path: Path, shape: tuple[int, ...], chunk: tuple[int, ...], count: Callable[[], int]) -> None:
    """What was never written would read as a fill value, and nobody would notice.

    (HDF5 can also set chunks aside as it creates a file. Those look written; ``store.whole`` notices what they hold.)
    DataError: there are fewer chunks than the header says; or it says what no file holds.
    """
    chunks = math.prod(-(-n // part) for n, part in zip(shape, chunk, strict=True))
    if chunks > _MOST_CHUNKS:
        raise DataError(f"{path} claims {shape[0]:,} samples in {chunks:,} chunks, too many; {_COPY_AGAIN}")
    if missing := chunks - count():
        raise DataError(f"{path} lacks {missing:,} of its {chunks:,} chunks; {_COPY_AGAIN}")


@contextlib.contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Whatever a library says about a bad file, as one line that names the file. DataError: instead of any error.

    h5py, NumPy, Zarr and its codecs have no common word for damage, so any error is taken.
    """
    try:
        yield
    except (DataError, ImportError):
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; make it, or copy it from its source") from error
    except Exception as error:
        if isinstance(error, AttributeError) and str(error).startswith("module "):
            raise  # a library that was not loaded whole
        number = getattr(error, "errno", None) or next(map(int, _ERRNO.findall(str(error))), None)
        if number or isinstance(error, MemoryError):
            why = os.strerror(number) if number else "not enough memory"
            raise DataError(f"{path} cannot be read: {why}; correct that, for the file may be good") from error
        why = f"is not readable as {path.suffix.lstrip('.') or 'data'} ({first_line(error)})"
        if any(words in str(error) for words in ("truncated", "mmap length", "cannot reshape", "read all data")):
            raise DataError(f"{path} is truncated; {_COPY_AGAIN}") from error
        if any(words in str(error) for words in ("allow_pickle", "Python objects")):
            why = "is no array of numbers"  # NumPy's own advice, to trust the file, is none
        raise DataError(f"{path} {why}: it is damaged or of another format; compare it with its source") from error


def first_line(error: BaseException) -> str:
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
    return sum(part.stat().st_size for part in (path, *path.rglob("*")) if part.is_file())
