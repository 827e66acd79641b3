"""Writing a data set in the layout of ``store``: years that are whole or not there, and statistics.

In: samples as they are simulated or read. Out: files. A year takes its name only when its last sample is on the disk;
until then it is a hidden ``.partial`` file that no reader looks at and the next run clears away.

HDF5 takes a write that failed badly: closing the file fails as well, and what it still holds in memory then ends the
process. So room for all of a file is set aside before HDF5 writes to it.

Legend: B samples, T snapshots, C channels, H rows (latitude), W columns (longitude).
"""

import contextlib
import math
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
import h5py
import numpy as np
from tqdm.auto import tqdm

from dltutorial import machine, paths
from dltutorial.data import formats, store
from dltutorial.data.formats import Layout
from dltutorial.errors import CourseError, DataError

Put = Callable[[int, np.ndarray], object]
_PARTIAL = re.compile(r"\..+\.(h5|npy|zarr|json)\.[0-9a-f]{8}\.partial")  # of this process or another; nobody else's


def check_space(folder: Path, bytes_needed: int) -> None:
    """Make sure that so much can be written, before anything is. DataError: the disk has less free."""
    free = machine.disk_free_bytes(folder)
    if free is not None and free < bytes_needed:
        sizes = f"{free / 1e6:,.1f} MB free, but {bytes_needed / 1e6:,.1f} MB are needed"
        raise DataError(f"{folder} has {sizes}; make room, or choose another folder (--out DIR or DLTUTORIAL_DATA)")


def clear_partial(folder: Path) -> None:
    """Remove what an interrupted run left half written."""
    for place in (folder, *(folder / name for name in (*store.SPLITS, "stats"))):
        for left in (file for file in place.glob(".*.partial") if _PARTIAL.fullmatch(file.name)):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)


@contextlib.contextmanager
def refusals(target: Path) -> Iterator[None]:
    """What a disk, or a library on its behalf, says when it takes no more, as one line. DataError: instead."""
    try:
        yield
    except DataError:
        raise
    except CourseError as error:
        raise DataError(str(error)) from error
    except (OSError, RuntimeError, ValueError, NotImplementedError) as error:
        why = getattr(error, "strerror", None) or formats.first_line(error)
        where = "choose another folder (--out DIR or DLTUTORIAL_DATA), or make room, and run again"
        raise DataError(f"cannot write {target}: {why}; {where}") from error


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path``; on success it takes that name, whole, and on any error it is removed."""
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.partial"
    temporary.mkdir(parents=True)
    try:
        yield temporary
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path, progress: bool) -> Iterator[None]:
    """Hold the folder alone; say so if that takes waiting. DataError: it cannot be written."""
    with refusals(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / ".lock")
    with contextlib.suppress(OSError):  # some shared file systems have no locks
        try:
            lock.acquire(timeout=1)
        except filelock.Timeout:
            if progress:
                print(f"another process is making {folder}; waiting for it", file=sys.stderr, flush=True)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def year_writer(
    file: Path, snapshots: int, shape: tuple[int, int, int], attributes: Mapping[str, str] | None = None,
    layout: Layout = Layout.of("hdf5-chunk1"),  # noqa: B008 (frozen)
) -> Iterator[Callable[[np.ndarray], None]]:  # fmt: skip
    """Yield a function that appends samples (B, C, H, W) or (C, H, W) to a year; the file appears when it is whole.

    DataError: a value is not finite, samples are missing at the end, or the disk refuses.

    Args:
        file: its name ends as the layout wants.
        snapshots, shape: T and (C, H, W).
        attributes: texts that an HDF5 file carries about itself.
        layout: on disk.
    """
    written = 0
    atomic = atomic_folder if layout.kind == "zarr" else paths.atomic
    create = {"hdf5": _create_hdf5, "npy": _create_npy, "zarr": _create_zarr}[layout.kind]
    with refusals(file), atomic(file) as temporary:
        with create(temporary, (snapshots, *shape), layout, attributes or {}) as put:

            def append(x: np.ndarray) -> None:
                nonlocal written
                x_BCHW = x.reshape(-1, *shape)
                if not np.isfinite(x_BCHW).all():
                    raise DataError(f"{file}: snapshot {written} is NaN or infinity: its source is damaged or blew up")
                put(written, x_BCHW)
                written += len(x_BCHW)

            yield append
        if written != snapshots:
            raise DataError(f"{file} got {written} of {snapshots} snapshots and is not kept; run again")


@contextlib.contextmanager
def _create_hdf5(file: Path, shape_TCHW: tuple[int, ...], layout: Layout, attributes: Mapping) -> Iterator[Put]:
    chunks: Any = (layout.chunk, *shape_TCHW[1:]) if isinstance(layout.chunk, int) else layout.chunk == "auto" or None
    codec = {"compression": layout.compression, "compression_opts": layout.level}
    with hdf5(file, 4 * math.prod(shape_TCHW)) as h5:
        h5.attrs.update(attributes)
        fields = h5.create_dataset("fields", shape_TCHW, np.float32, chunks=chunks, **codec)
        yield lambda first, x_BCHW: fields.__setitem__(slice(first, first + len(x_BCHW)), x_BCHW)


@contextlib.contextmanager
def hdf5(file: Path, n_bytes: int) -> Iterator[h5py.File]:
    """A new HDF5 file for so much, under a name that goes if it stays half written. OSError: no room for it."""
    with h5py.File(file, "w", locking=False) as h5:  # nobody else sees it, and some shared file systems have no locks
        if hasattr(os, "posix_fallocate"):  # on Linux
            with open(file, "r+b") as out:
                os.posix_fallocate(out.fileno(), 0, 2**20 + int(1.02 * n_bytes))
        yield h5
        h5.flush()
        size = h5.id.get_filesize()
    os.truncate(file, size)


@contextlib.contextmanager
def _create_npy(file: Path, shape_TCHW: tuple[int, ...], layout: Layout, attributes: Mapping) -> Iterator[Put]:
    """Written as a stream, not through a map: a full disk is then an error, and not the end of the process."""
    with open(file, "wb") as out:
        np.lib.format.write_array_header_2_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape_TCHW})
        yield lambda first, x_BCHW: out.write(np.ascontiguousarray(x_BCHW, "<f4").data)


@contextlib.contextmanager
def _create_zarr(file: Path, shape_TCHW: tuple[int, ...], layout: Layout, attributes: Mapping) -> Iterator[Put]:
    import zarr
    from zarr.codecs import GzipCodec, ZstdCodec

    gzip = GzipCodec(level=5 if layout.level is None else layout.level)
    codec = {"gzip": gzip, "zstd": ZstdCodec(), None: None}[layout.compression]
    chunks: Any = "auto" if layout.chunk == "auto" else (layout.chunk, *shape_TCHW[1:])
    options = {"chunks": chunks, "compressors": codec, "fill_value": float("nan"), "overwrite": True}
    fields = zarr.create_array(file, shape=shape_TCHW, dtype="float32", **options)
    yield lambda first, x_BCHW: fields.__setitem__(slice(first, first + len(x_BCHW)), x_BCHW)


def write_stats(folder: Path, progress: bool = False, overwrite: bool = True) -> list[Path]:
    """Means and deviations of each channel, and the mean of each grid point, over the training years, in float64.

    Without ``overwrite`` only those that are missing are written. Returns the files. DataError: the training years
    cannot be read, or a channel never changes; the statistics cannot be written, or are all there.
    """
    files = {name: folder / "stats" / f"{name}.npy" for name in store.STATISTICS}
    wanted = {name: file for name, file in files.items() if overwrite or not file.exists()}
    if not wanted:
        raise DataError(f"{folder / 'stats'} has all statistics already; add --overwrite to replace them")
    shapes = store.year_shapes(folder, "train")
    count, sums_CHW, squares_C = sum(shape[0] for shape in shapes.values()), np.zeros(()), np.zeros(())
    near_C11 = store.read_sample(next(iter(shapes)), 0)[:, :1, :1].astype(np.float64)  # large means cost no digits
    with tqdm(desc="statistics", unit="sample", total=count, delay=2, disable=not progress) as bar:
        for file in shapes:
            for x_CHW in store.samples(file):
                x_CHW = x_CHW - near_C11
                sums_CHW = sums_CHW + x_CHW
                squares_C = squares_C + np.einsum("chw,chw->c", x_CHW, x_CHW)
                bar.update()
    time_means_CHW = sums_CHW / count
    means_C11 = time_means_CHW.mean((1, 2), keepdims=True)
    stds_C = np.sqrt(np.maximum(squares_C / (count * sums_CHW[0].size) - means_C11.ravel() ** 2, 0))
    if not (stds_C > 0).all():
        channel = np.flatnonzero(stds_C <= 0)[0]
        raise DataError(f"{folder}: channel {channel} has one value in all training years; write the data without it")
    found = dict(zip(files, (means_C11 + near_C11, stds_C[:, None, None], time_means_CHW + near_C11), strict=True))
    with refusals(folder / "stats"):
        for name, file in wanted.items():
            with paths.atomic(file) as temporary, open(temporary, "wb") as out:
                np.save(out, found[name][None].astype(np.float32))
    return list(wanted.values())
