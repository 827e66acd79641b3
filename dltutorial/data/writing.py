"""Write a data set: in a temporary folder, which takes its final name when the data set is complete.

In: samples as they are simulated or read. Out: a folder in the layout of ``store``, with one file per year in one of
the layouts of ``formats``.

The final name exists only if the data set is complete. Therefore a reader needs no lock, and an interrupted run leaves
nothing that must be repaired.

Legend: B samples, T snapshots, C channels, H rows (latitude), W columns (longitude).
"""

import contextlib
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np

from dltutorial import node
from dltutorial.data import formats
from dltutorial.data.formats import Layout
from dltutorial.errors import DataError, first_line

#: ``put(first, x_BCHW)`` writes the snapshots from number ``first`` on.
Put = Callable[[int, np.ndarray], object]
CHUNK_1 = formats.LAYOUTS["hdf5-chunk1"]


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``folder``, and rename it to ``folder`` when the ``with`` block ends.

    After an exception or Ctrl-C the temporary folder is removed. After a SIGKILL it stays, under a name that no reader
    looks at. If another process has built the same data set in the meantime, this copy is discarded.

    Args:
        folder: the final name, which must not exist.

    Raises:
        CourseError: This is a login node.
        DataError: The data set cannot be written, for example because the disk is full.
    """
    node.refuse_on_login(f"making the data {folder.name}")
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        _sync_and_rename(temporary, folder)
    except OSError as error:
        why = error.strerror or first_line(error)
        todo = "make room, or choose another folder (--out DIR or DLTUTORIAL_DATA)"
        raise DataError(f"cannot write {folder}: {why}; {todo}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync_and_rename(temporary: Path, folder: Path) -> None:
    """Sync all files to the disk, so that they are complete before the final name exists; then rename the folder."""
    for file in temporary.rglob("*"):
        if file.is_file():
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
    try:
        temporary.rename(folder)
    except OSError:
        was_built_meanwhile = folder.is_dir()
        if not was_built_meanwhile:
            raise


@contextlib.contextmanager
def year_writer(
    file: Path, snapshots: int, shape: tuple[int, int, int], layout: Layout = CHUNK_1
) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that appends samples (B, C, H, W) or one sample (C, H, W) to a year.

    Args:
        file: its suffix is that of the layout.
        snapshots: T, the number of samples in the year.
        shape: (C, H, W) of a sample.
        layout: how the year lies on disk.

    Raises:
        DataError: A value is NaN or infinity.
    """
    create = {"hdf5": _create_hdf5, "npy": _create_npy, "zarr": _create_zarr}[layout.kind]
    file.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with create(file, (snapshots, *shape), layout) as put:

        def append(x: np.ndarray) -> None:
            nonlocal written
            x_BCHW = x.reshape(-1, *shape)
            if not np.isfinite(x_BCHW).all():
                raise DataError(f"{file}, snapshot {written}: the source has NaN or infinity here; correct the source")
            put(written, x_BCHW)
            written += len(x_BCHW)

        yield append


@contextlib.contextmanager
def _create_hdf5(file: Path, shape_TCHW: tuple[int, ...], layout: Layout) -> Iterator[Put]:
    with hdf5(file, 4 * math.prod(shape_TCHW)) as h5:
        fields = h5.create_dataset(
            "fields",
            shape_TCHW,
            np.float32,
            chunks=layout.chunks(shape_TCHW),
            compression=layout.compression,
        )

        def put(first: int, x_BCHW: np.ndarray) -> None:
            fields[first : first + len(x_BCHW)] = x_BCHW

        yield put


@contextlib.contextmanager
def hdf5(file: Path, n_bytes: int) -> Iterator[h5py.File]:
    """Create an HDF5 file, for which disk space is allocated before HDF5 writes to it.

    If HDF5 meets a full disk, its error leaves data in memory that HDF5 writes again when the program ends, and then
    the program dies of a segmentation fault. If the space is allocated first, a full disk is an ordinary ``OSError``.

    Args:
        file: the new file. It is opened without a lock, because some shared file systems cannot lock files.
        n_bytes: size of the values without compression.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
    """
    with h5py.File(file, "w", locking=False) as h5:
        if hasattr(os, "posix_fallocate"):  # on Linux
            header_bytes = 2**20 + n_bytes // 50
            with open(file, "r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, header_bytes + n_bytes)
        yield h5
        h5.flush()
        used_bytes = h5.id.get_filesize()
    os.truncate(file, used_bytes)


@contextlib.contextmanager
def _create_npy(file: Path, shape_TCHW: tuple[int, ...], layout: Layout) -> Iterator[Put]:
    """Write a stream, not a memory map: with a map, a full disk would end the process with SIGBUS."""
    header = {"descr": "<f4", "fortran_order": False, "shape": shape_TCHW}
    with open(file, "wb") as opened:
        np.lib.format.write_array_header_2_0(opened, header)

        def put(first: int, x_BCHW: np.ndarray) -> None:
            opened.write(np.ascontiguousarray(x_BCHW, "<f4").data)

        yield put


@contextlib.contextmanager
def _create_zarr(file: Path, shape_TCHW: tuple[int, ...], layout: Layout) -> Iterator[Put]:
    import zarr
    from zarr.codecs import ZstdCodec

    compressor = None
    if layout.compression == "zstd":
        compressor = ZstdCodec()
    chunks = layout.chunks(shape_TCHW)
    fields = zarr.create_array(file, shape=shape_TCHW, dtype="float32", chunks=chunks, compressors=compressor)

    def put(first: int, x_BCHW: np.ndarray) -> None:
        fields[first : first + len(x_BCHW)] = x_BCHW

    yield put
