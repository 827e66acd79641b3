"""A data set on disk, in the layout of NERSC's public ERA5 tutorial data, so that either can stand in for the other.

    <folder>/train/sim_0001.h5 …   one file a year, its name ends in four digits; ``valid/`` and ``test/`` likewise
             dataset ``fields``: (time, channel, lat, lon) float32, one sample a chunk, not compressed;
             or another layout of ``formats``, which ``convert`` writes
    <folder>/stats/global_means.npy, global_stds.npy: (1, C, 1, 1); time_means.npy: (1, C, H, W); of the training years
    <folder>/dataset.json          ours only: channels, units, geometry, seconds between snapshots; ERA5 has none

In: a folder. Out: a ``Split`` that says where what is, checked; or one clear ``DataError`` that names the file.

Legend: T snapshots, C channels, H rows (latitude), W columns (longitude).
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from dltutorial.data import formats
from dltutorial.errors import DataError

SPLITS = ("train", "valid", "test")
STATISTICS = ("global_means", "global_stds", "time_means")
_YEAR = re.compile(r".*\d{4}")


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a data set, opened and checked.

    Attributes:
        folder: of the whole data set.
        name: train, valid or test.
        files: one a year, in the order of their names.
        snapshots: number of samples in each file.
        shape: (C, H, W) of a sample, as it is read.
        grid: (H, W) in the files; a sample is cropped to the first rows and columns of it.
        channel_names, channel_units: "channel 0" … and "" where the folder does not say.
        geometry: "beta-plane" or "sphere".
        snapshot_s: seconds between neighbouring snapshots; None where the folder does not say.
        means_1C11, stds_1C11, time_means_1CHW: statistics of the training years, float32.
    """

    folder: Path
    name: str
    files: tuple[Path, ...]
    snapshots: tuple[int, ...]
    shape: tuple[int, int, int]
    grid: tuple[int, int]
    channel_names: tuple[str, ...]
    channel_units: tuple[str, ...]
    geometry: str
    snapshot_s: float | None
    means_1C11: np.ndarray
    stds_1C11: np.ndarray
    time_means_1CHW: np.ndarray

    @property
    def n_samples(self) -> int:
        """Snapshots in all years."""
        return sum(self.snapshots)

    @property
    def sample_bytes(self) -> int:
        """Size of one sample."""
        return 4 * int(np.prod(self.shape))

    def open_year(self, number: int) -> formats.Year:
        """One of its years; errors as of ``formats.open_year``."""
        return formats.open_year(self.files[number], self.shape[1:])


def open_split(folder: Path, split: str = "train", crop: tuple[int, int] | None = None) -> Split:
    """Open one part of a data set; looks at every file's header, and for NaN at a few samples only.

    Args:
        folder: of the whole data set.
        split: train, valid or test.
        crop: take at most so many rows and columns, the first ones (ERA5 has 721 rows, which no patch divides).

    Raises:
        DataError: the folder or a file is missing, empty, truncated, of another layout, or holds NaN.
    """
    folder, files = Path(folder), year_files(folder, split)
    shapes = {file: file_shape(file) for file in files}
    C, H, W = shapes[files[0]][1:]
    for file, shape in shapes.items():
        if shape[1:] != (C, H, W):
            raise DataError(f"{file} has samples {shape[1:]}, but {files[0]} has {(C, H, W)}; remove one of them")
    for file in files[:: -(-len(files) // 8)]:
        for index in (0, shapes[file][0] - 1):
            read_sample(file, index)
    said, (rows, columns) = about(folder, C), crop or (H, W)
    return Split(
        folder=folder,
        name=split,
        files=files,
        snapshots=tuple(shape[0] for shape in shapes.values()),
        shape=(C, min(H, rows), min(W, columns)),
        grid=(H, W),
        channel_names=tuple(said.get("channels") or (f"channel {i}" for i in range(C))),
        channel_units=tuple(said.get("units") or [""] * C),
        geometry=said.get("geometry", "sphere"),
        snapshot_s=said.get("snapshot_s"),
        means_1C11=_stats(folder, "global_means", (1, C, 1, 1)),
        stds_1C11=_stats(folder, "global_stds", (1, C, 1, 1)),
        time_means_1CHW=_stats(folder, "time_means", (1, C, H, W))[..., :rows, :columns],
    )


def validate(folder: Path, progress: bool = False) -> str:
    """Read every sample of every split, with a bar if that takes long; returns one line that sums up what is there.

    Raises:
        DataError: as ``open_split``, for any sample.
    """
    splits = [open_split(folder, name) for name in SPLITS if name != "test" or (Path(folder) / name).exists()]
    samples = []
    for split in splits:
        if split.shape != splits[0].shape:
            raise DataError(f"{folder}: {split.name} has samples {split.shape}, train {splits[0].shape}; remove one")
        for file, snapshots in zip(split.files, split.snapshots, strict=True):
            samples += [(file, index) for index in range(snapshots)]
    for file, index in tqdm(samples, desc="reading", unit="sample", delay=2, disable=not progress):
        read_sample(file, index)
    counts = ", ".join(f"{split.name} {split.n_samples}" for split in splits)
    C, H, W = splits[0].shape
    return f"{folder}: {counts} samples of {C} × {H} × {W}; every value is finite"


def year_files(folder: Path, split: str) -> tuple[Path, ...]:
    """The files of one split, in the order of their names.

    Raises:
        DataError: no folder, no files, files of two layouts, or a name that does not end in four digits.
    """
    place, hint = Path(folder) / split, "make data with: dltutorial data weather --out DIR"
    if not place.is_dir():
        what = f"{folder} has no folder {split}" if Path(folder).is_dir() else f"no data folder {folder}"
        raise DataError(f"{what}; {hint}")
    files = tuple(sorted(file for suffix in formats.SUFFIXES for file in place.glob(f"[!.]*{suffix}")))
    if not files:
        raise DataError(f"{place} holds no .h5 file, nor .npy nor .zarr; {hint}")
    for file in files:
        if file.suffix != files[0].suffix:
            raise DataError(f"{files[0]} and {file.name} are of two layouts; remove one of them")
        if not _YEAR.fullmatch(file.stem):
            raise DataError(f"{file}: a year's name must end in four digits, as in sim_0001.h5; rename or remove it")
    return files


def file_shape(file: Path) -> tuple[int, int, int, int]:
    """Shape (T, C, H, W) of a year, from its header; a DataError if it is none."""
    with formats.open_year(file) as year:
        return len(year), *year.shape


def read_sample(file: Path, index: int) -> np.ndarray:
    """One sample (C, H, W); a DataError if it cannot be read, or holds NaN or infinity."""
    with formats.open_year(file) as year:
        x_CHW = year.snapshots(index, 1)[0]
    if not np.isfinite(x_CHW).all():
        raise DataError(f"{file}, snapshot {index}, holds NaN or infinity; remove the file, or make it anew")
    return x_CHW


def about(folder: Path, n_channels: int | None = None) -> dict[str, Any]:
    """What ``dataset.json`` says, empty where there is none; with ``n_channels`` of the files, what is said must fit.

    Raises:
        DataError: it is no JSON object, or does not fit.
    """
    file = Path(folder) / "dataset.json"
    said = read_json(file) or {}
    if n_channels is None:
        return said
    names = [said.get(key, [""] * n_channels) for key in ("channels", "units")]
    if not all(isinstance(n, list) and len(n) == n_channels and all(isinstance(x, str) for x in n) for n in names):
        raise DataError(f"{file}: channels and units must be {n_channels} texts each, as the files have; correct it")
    geometry, snapshot_s = said.get("geometry", "sphere"), said.get("snapshot_s", 1.0)
    if geometry not in ("sphere", "beta-plane") or not isinstance(snapshot_s, (int, float)):
        raise DataError(
            f"{file}: geometry {geometry!r} (sphere or beta-plane) or snapshot_s {snapshot_s!r}: correct it"
        )
    return said


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file, None where there is no file; a DataError if it is damaged or no object."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        why = formats.first_line(error)
        raise DataError(f"{file} is not readable JSON ({why}); delete it or make it anew") from error
    if not isinstance(found, dict):
        raise DataError(f"{file} is no JSON object; delete it or make it anew")
    return found


def _stats(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """One array of statistics, float32, checked."""
    file = folder / "stats" / f"{name}.npy"
    with formats.blaming(file):
        x = np.load(file, allow_pickle=False)
    if getattr(x, "shape", None) != shape or x.dtype.kind != "f":
        raise DataError(f"{file} is {x.dtype} {x.shape}, but the files need floats {shape}; make or fetch it anew")
    if not np.isfinite(x).all() or (name == "global_stds" and not (x > 0).all()):
        raise DataError(f"{file} holds NaN, infinity, or a deviation of 0; make or fetch it anew")
    return x.astype(np.float32)
