"""Writing a data set in the layout of ``store``: years that are whole or not there, and statistics.

In: samples as they are simulated. Out: files. A year takes its name only when its last sample is on the disk; until
then it is a hidden ``.partial`` file that no reader looks at and the next run clears away.

Legend: B samples, T snapshots, C channels, H rows (latitude), W columns (longitude).
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import h5py
import numpy as np
from tqdm.auto import tqdm

from dltutorial import machine, paths
from dltutorial.data import store
from dltutorial.errors import CourseError, DataError


def check_space(folder: Path, bytes_needed: int) -> None:
    """Make sure that so much can be written, before anything is.

    Raises:
        DataError: the disk has less free.
    """
    free = machine.disk_free_bytes(folder)
    if free is not None and free < bytes_needed:
        raise DataError(
            f"{folder} has {_size(free)} free, but {_size(bytes_needed)} are needed; "
            "make room, or choose another folder (--out DIR or DLTUTORIAL_DATA)"
        )


def clear_partial(folder: Path) -> None:
    """Remove what an interrupted run left half written."""
    for place in (folder, *(folder / name for name in (*store.SPLITS, "stats"))):
        for left in place.glob(".*.partial"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path``; on success it takes that name, whole, and on any error it is removed.

    Raises:
        CourseError: the place cannot be written, or the name is taken.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}.partial"
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise CourseError(f"cannot write {path}: {error.strerror}; choose a folder that you may write to") from error
    try:
        yield temporary
        try:
            temporary.rename(path)
        except OSError as error:
            raise CourseError(f"cannot write {path}: {error.strerror}; choose another name") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path, progress: bool, deadline_s: float = -1) -> Iterator[None]:
    """Hold the folder alone; say so if that takes waiting, for ``deadline_s`` at most (default: without end).

    Raises:
        DataError: the folder cannot be written, or another process holds it for too long.
    """
    lock = filelock.FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=1)
        except filelock.Timeout:
            if progress:
                print(f"another process is making {folder}; waiting for it", file=sys.stderr)
            lock.acquire(timeout=deadline_s)
    except filelock.Timeout as error:
        raise DataError(
            f"another process has held {folder} for {deadline_s:g} s; see whether it is alive, then run again"
        ) from error
    except (OSError, NotImplementedError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot write {folder}: {why}; choose a folder that you may write to (--out DIR or DLTUTORIAL_DATA)"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def year_writer(
    file: Path, snapshots: int, shape: tuple[int, int, int], **attributes: str | float
) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that appends samples (B, C, H, W) or (C, H, W) to a year; the file appears when it is whole.

    Raises:
        DataError: a value is not finite, samples are missing at the end, or the disk refuses.
    """
    written = 0
    try:
        with paths.atomic(file) as temporary:
            with h5py.File(temporary, "w") as h5:
                h5.attrs.update(attributes)
                fields = h5.create_dataset("fields", (snapshots, *shape), np.float32, chunks=(1, *shape))

                def append(x: np.ndarray) -> None:
                    nonlocal written
                    x_BCHW = x.reshape(-1, *shape)
                    if not np.isfinite(x_BCHW).all():
                        raise DataError(f"{file}: snapshot {written} blew up to NaN or infinity; take a smaller step")
                    fields[written : written + len(x_BCHW)] = x_BCHW
                    written += len(x_BCHW)

                yield append
            if written != snapshots:
                raise DataError(f"{file} got {written} of {snapshots} snapshots and is not kept; run again")
    except DataError:
        raise
    except CourseError as error:
        raise DataError(str(error)) from error
    except (OSError, RuntimeError) as error:
        raise DataError(f"cannot write {file}: {error}; make room or choose another folder") from error


def write_stats(folder: Path, progress: bool = False) -> None:
    """Means and deviations of each channel, and the mean of each grid point, over the training years.

    Raises:
        DataError: the training years cannot be read, or the statistics not be written.
    """
    count, sums_CHW, squares_C = 0, 0.0, 0.0
    files = store.year_files(folder, "train")
    for file in tqdm(files, desc="statistics", unit="year", delay=2, disable=not progress):
        for index in range(store.file_shape(file)[0]):
            x_CHW = store.read_sample(file, index)
            sums_CHW = sums_CHW + x_CHW.astype(np.float64)
            squares_C = squares_C + np.einsum("chw,chw->c", x_CHW, x_CHW, dtype=np.float64)
            count += 1
    time_means_CHW = sums_CHW / count
    means_C = time_means_CHW.mean((1, 2))
    stds_C = np.sqrt(np.maximum(squares_C / (count * sums_CHW[0].size) - means_C**2, 0))
    _save(folder / "stats" / "global_means.npy", means_C[None, :, None, None])
    _save(folder / "stats" / "global_stds.npy", stds_C[None, :, None, None])
    _save(folder / "stats" / "time_means.npy", time_means_CHW[None])


def _save(file: Path, x: np.ndarray) -> None:
    try:
        with paths.atomic(file) as temporary, open(temporary, "wb") as out:
            np.save(out, x.astype(np.float32))
    except (OSError, CourseError) as error:
        raise DataError(f"cannot write {file}: {error}; make room or choose another folder") from error


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"
