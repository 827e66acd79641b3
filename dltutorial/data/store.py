"""A data set on disk, in the layout of NERSC's public ERA5 tutorial data, so that either can replace the other.

    <folder>/train/sim_0001.h5 …   one file per year; ``valid/`` and ``test/`` likewise
             dataset ``fields``: (time, channel, lat, lon) float32, one sample per chunk, not compressed;
             or another layout of ``formats``, which ``convert`` writes
    <folder>/stats/global_means.npy, global_stds.npy: (1, C, 1, 1); time_means.npy: (1, C, H, W); of the training years.
             ``time_means.npy`` may be missing, because only the anomaly correlation needs it
    <folder>/dataset.json          of simulated data only: names and units of the channels

In: a folder. Out: a ``Split``, which knows the files, their shape and the statistics. ``check`` reads all the values.

Legend: T snapshots, C channels, H rows (latitude), W columns (longitude).
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dltutorial.data import formats
from dltutorial.errors import DataError

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a data set.

    Attributes:
        folder: of the complete data set.
        files: one per year, in the order of their names.
        snapshots: number of samples in each file.
        shape: (C, H, W) of a sample, as it is read. It may be smaller than in the files, see ``open_split``.
        channel_names, channel_units: "channel 0", … and "" if the folder has no ``dataset.json``.
        means_1C11, stds_1C11: statistics of the training years, float32.
    """

    folder: Path
    files: tuple[Path, ...]
    snapshots: tuple[int, ...]
    shape: tuple[int, int, int]
    channel_names: tuple[str, ...]
    channel_units: tuple[str, ...]
    means_1C11: np.ndarray
    stds_1C11: np.ndarray

    @property
    def sample_bytes(self) -> int:
        """Size of one sample."""
        return 4 * math.prod(self.shape)

    def open_year(self, number: int) -> formats.Year:
        """Open one of its years. It raises the same errors as ``formats.open_year``."""
        return formats.open_year(self.files[number], self.shape[1:])


def open_split(folder: Path | str, split: str = "train", crop: tuple[int, int] | None = None) -> Split:
    """Open one part of a data set. This reads headers and statistics, but no values.

    Args:
        folder: of the complete data set.
        split: train, valid or test.
        crop: take at most so many rows and columns, the first ones. (ERA5 has 721 rows, which no patch divides.)

    Raises:
        DataError: The folder or a file is missing or not readable, the years differ in shape, or the statistics are
            missing or do not fit.
    """
    folder = Path(folder)  # a path of a learner's own data may be a string
    shapes = year_shapes(folder, split)
    _, C, H, W = next(iter(shapes.values()))
    rows, columns = crop or (H, W)
    description = about(folder)
    return Split(
        folder=folder,
        files=tuple(shapes),
        snapshots=tuple(shape[0] for shape in shapes.values()),
        shape=(C, min(H, rows), min(W, columns)),
        channel_names=tuple(description.get("channels") or [f"channel {number}" for number in range(C)]),
        channel_units=tuple(description.get("units") or [""] * C),
        means_1C11=read_statistics(folder, "global_means", (1, C, 1, 1)),
        stds_1C11=read_statistics(folder, "global_stds", (1, C, 1, 1)),
    )


def year_files(folder: Path, split: str) -> tuple[Path, ...]:
    """The files of one split, in the order of their names.

    Raises:
        DataError: There is no such folder, or it holds no years.
    """
    place = folder / split
    if not folder.is_dir():
        raise DataError(f"no data folder {folder}; make one: dltutorial data weather --out {folder}")
    if not place.is_dir():
        raise DataError(f"{folder} has no folder {split}; move some of the years to {place}")
    files = sorted(file for file in place.glob("[!.]*") if file.suffix in formats.SUFFIXES.values())
    if not files:
        raise DataError(
            f"{place} holds no .h5, .npy or .zarr file; move some of the years there (book/training.md says how to "
            "convert ERA5)"
        )
    return tuple(files)


def year_shapes(folder: Path, split: str) -> dict[Path, tuple[int, int, int, int]]:
    """The shape (T, C, H, W) of each file of one split, from its header.

    Raises:
        DataError: A file cannot be opened, or its samples have another shape than those of the first file.
    """
    shapes: dict[Path, tuple[int, int, int, int]] = {}
    for file in year_files(folder, split):
        with formats.open_year(file) as year:
            shapes[file] = (len(year), *year.shape)
    require_same_shape(shapes)
    return shapes


def require_same_shape(shapes: Mapping[Path, tuple[int, ...]]) -> None:
    """Compare the shapes (C, H, W) of the samples in several files.

    Raises:
        DataError: Two files have samples of different shapes. The message names both files.
    """
    first = next(iter(shapes))
    for file, shape_TCHW in shapes.items():
        if shape_TCHW[1:] != shapes[first][1:]:
            sizes = f"{file} has samples {shape_TCHW[1:]}, but {first} has {shapes[first][1:]}"
            raise DataError(f"{sizes}; all years of a data set must have the same shape, so move one elsewhere")


def samples(file: Path) -> Iterator[np.ndarray]:
    """Yield all samples (C, H, W) of a year, in order. Each chunk is read once."""
    with formats.open_year(file) as year:
        depth = year.chunk_TCHW[0] if year.chunk_TCHW else 1
        for first in range(0, len(year), depth):
            yield from year.read(first, min(depth, len(year) - first))


def read_statistics(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Read one array of statistics, float32.

    Args:
        folder: of the complete data set.
        name: global_means, global_stds or time_means.
        shape: the shape that the array must have.

    Raises:
        DataError: The file is missing or not readable, or the array has another shape, NaN, or a deviation of 0.
    """
    file = folder / "stats" / f"{name}.npy"
    todo = f"compute it: dltutorial data check --write-statistics --source {folder}"
    if not file.exists():
        raise DataError(f"{file} is missing; {todo}")
    with formats.readable(file):
        x = np.load(file, allow_pickle=False).astype(np.float32)
    if x.shape != shape:
        raise DataError(f"{file} has shape {x.shape}, but the years need {shape}; {todo}")
    if not np.isfinite(x).all() or (name == "global_stds" and x.min() <= 0):
        raise DataError(f"{file} holds NaN, infinity, or a standard deviation of 0; {todo}")
    return x


def about(folder: Path) -> dict[str, Any]:
    """What ``dataset.json`` says about a data set; empty if the folder has no such file.

    Raises:
        DataError: The file is not readable as JSON.
    """
    file = folder / "dataset.json"
    if not file.is_file():
        return {}
    with formats.readable(file):
        return dict(json.loads(file.read_text(encoding="utf-8")))
