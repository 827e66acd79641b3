"""A data set on disk, in the layout of NERSC's public ERA5 tutorial data, so that either can stand in for the other.

    <folder>/train/sim_0001.h5 …   one file a year, its name ends in four digits; ``valid/`` and ``test/`` likewise
             dataset ``fields``: (time, channel, lat, lon) float32, one sample a chunk, not compressed;
             or another layout of ``formats``, which ``convert`` writes
    <folder>/stats/global_means.npy, global_stds.npy: (1, C, 1, 1); time_means.npy: (1, C, H, W); of the training years.
             The last is for the anomaly correlation alone, and may be missing
    <folder>/dataset.json          ours only: channels, units, geometry, seconds between snapshots; ERA5 has none

In: a folder. Out: a ``Split`` that says where what is, checked; or one clear ``DataError`` that names the file.

Legend: T snapshots, C channels, H rows (latitude), W columns (longitude).
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from dltutorial.data import formats
from dltutorial.errors import DataError

SPLITS = ("train", "valid", "test")
STATISTICS = ("global_means", "global_stds", "time_means")
_LIKE_YEARS = {*formats.SUFFIXES, ".hdf5", ".hdf", ".he5", ".nc", ".nc4", ".npz"}  # in capitals too
_YEAR = re.compile(r".*\d{4}")
_FAR = 1e3  # deviations from the mean: no data of these statistics
# What stands for "no value" in other formats.
_FILLS = np.array([-999, -9999, -99999, -32767, -32768, 1e15, 1e20, 9.999e20, -1e20], np.float32)
_MOST = 1e30  # so does what is larger: 9.97e36 is netCDF's


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
        means_1C11, stds_1C11, time_means_1CHW: statistics of the training years, float32; the last may be None.
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
    time_means_1CHW: np.ndarray | None

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
        DataError: the folder or a file is missing, empty, truncated, of another layout, or holds NaN; the statistics
            are of two data sets.
    """
    folder, shapes = Path(folder), year_shapes(folder, split)
    files = tuple(shapes)
    C, H, W = shapes[files[0]][1:]
    if split != "train" and (folder / "train").is_dir():  # before the statistics, which are the training years'
        require_alike({**shapes, (first := year_files(folder, "train")[0]): file_shape(first)})
    for file, index in looked_at({file: shape[0] for file, shape in shapes.items()}):
        read_sample(file, index)
    said, (rows, columns) = about(folder, C), crop or (H, W)
    means, stds = (_stats(folder, name, (1, C, 1, 1)) for name in STATISTICS[:2])
    refuse_coarse(folder / "stats", "a channel of the years", *(means + n * stds.astype(float) for n in (-2, 2)))
    climate = _stats(folder, STATISTICS[2], (1, C, H, W)) if (folder / "stats" / "time_means.npy").exists() else None
    off_C = 0 if climate is None else np.median(np.abs(climate[0] - means[0].astype(float)), (1, 2))
    if not (off_C < 2 * stds.ravel().astype(float)).all():
        raise _far_off(folder)  # at most points
    return Split(
        folder=folder, name=split, files=files, snapshots=tuple(shape[0] for shape in shapes.values()),
        shape=(C, min(H, rows), min(W, columns)), grid=(H, W),
        channel_names=tuple(said.get("channels") or (f"channel {i}" for i in range(C))),
        channel_units=tuple(said.get("units") or [""] * C), geometry=said.get("geometry", "sphere"),
        snapshot_s=said.get("snapshot_s"), means_1C11=means, stds_1C11=stds,
        time_means_1CHW=None if climate is None else climate[..., :rows, :columns],
    )  # fmt: skip


def looked_at(snapshots: Mapping[Path, int], most: int = 0) -> list[tuple[Path, int]]:
    """The first, a middle and the last sample of up to eight years, (file, index) each; all if they are ``most``."""
    if sum(snapshots.values()) <= most:
        return [(file, index) for file, n in snapshots.items() for index in range(n)]
    some = list(snapshots.items())[:: -(-len(snapshots) // 8)]
    return [(file, index) for file, n in some for index in sorted({0, n // 2, n - 1})]


def validate(folder: Path, progress: bool = False) -> str:
    """Read every sample of every split, with a bar if that takes long.

    Returns one line that sums up what is there, and one for each thing that may be meant or not: years left out or
    there twice, fields of one value.

    Raises:
        DataError: as ``open_split``, for any sample; or a split, or the statistics, cannot serve to train.
    """
    folder = Path(folder)
    splits = [open_split(folder, name) for name in SPLITS if name != "test" or (folder / name).exists()]
    for split in splits:
        if split.n_samples == len(split.files):
            raise DataError(f"{folder / split.name} has no two snapshots in a row to forecast; put longer years there")
    files, flat, torn = [file for split in splits for file in split.files], [], []
    total = sum(split.n_samples for split in splits)
    means_C, stds_C = (x.ravel().astype(np.float64) for x in (splits[0].means_1C11, splits[0].stds_1C11))
    if (climate_1CHW := splits[0].time_means_1CHW) is not None:
        with np.errstate(over="ignore"):
            off_CHW = (climate_1CHW[0] - means_C[:, None, None]) / stds_C[:, None, None]
        if not (np.abs(off_CHW).max() < _FAR and np.abs(off_CHW.mean((1, 2))).max() < 1):
            raise _far_off(folder)
    low_C, high_C = np.full((2, len(means_C)), [[np.inf], [-np.inf]])
    spread_C = np.zeros(len(means_C))  # mean square distance from the means, in squares of what stats/ says
    first_with: dict[int, Path] = {}  # a year's number, or the hash of what tells a snapshot from all others
    twice: dict[tuple[Path, Path], bool] = {}  # two files, and whether they are of two splits
    sums_F3C = {file: np.zeros((3, len(means_C))) for file in files}  # of ones, means and squares, in deviations
    stuck, before = dict.fromkeys(files, 0), 0  # snapshots that are the one before once more
    with tqdm(desc="reading", unit="sample", total=total, delay=2, disable=not progress) as bar:
        for file in files:
            for index, x_CHW in enumerate(samples(file)):
                ends_2C = np.stack([x_CHW.min((1, 2)), x_CHW.max((1, 2))])
                far_2C = np.abs(ends_2C - means_C) / stds_C
                odd_2C = ~(far_2C < _FAR) | no_value(ends_2C)
                for at in map(tuple, np.argwhere(odd_2C)):
                    what = f"holds {ends_2C[at]:g}, {far_2C[at]:.0e} deviations from the mean"
                    why = f"{file}, snapshot {index}, channel {at[1]}, {what}: if that means a missing value, fill it"
                    raise DataError(f"{why}; or {folder / 'stats'} is of other data: {_again(folder)}")
                low_C, high_C = np.minimum(low_C, ends_2C[0]), np.maximum(high_C, ends_2C[1])
                off_CHW = (x_CHW - means_C[:, None, None]) / stds_C[:, None, None]
                squares_C = np.square(off_CHW).mean((1, 2))
                sums_F3C[file] += np.stack([np.ones_like(squares_C), off_CHW.mean((1, 2)), squares_C])
                if file.parent.name == "train":
                    spread_C += squares_C / splits[0].n_samples
                told = hash(ends_2C.tobytes() + x_CHW[:, x_CHW.shape[1] // 2].tobytes())
                stuck[file] += told == before
                before = told
                for key in (int(file.stem[-4:]), told):
                    if (first := first_with.setdefault(key, file)) != file:
                        twice[first, file] = first.parent != file.parent
                torn += [f"{file}, snapshot {index}"] * int((x_CHW.max(2) == x_CHW.min(2)).all(0).mean() > 0.25)
                flat += [f"{file}, snapshot {index}, channel {c}" for c in np.flatnonzero(ends_2C[0] == ends_2C[1])]
                bar.update()
    if not ((low_C <= means_C) & (means_C <= high_C)).all():
        why = "global_means.npy is beyond all values of a channel"
        raise DataError(f"{folder / 'stats'} is of other data: {why}; {_again(folder)}")
    odd_C = (low_C < high_C) & ((spread_C < 0.25) | (spread_C > 4))
    if odd_C.any():
        why = f"the spread of channel {odd_C.argmax()} is {spread_C[odd_C.argmax()] ** 0.5:.2g} × global_stds.npy"
        raise DataError(f"{folder / 'stats'} is of other data: {why}; {_again(folder)}")
    notes = [f"note: {len(flat)} fields hold one value only, first {flat[0]}"] if flat else []
    notes += [f"note: {len(torn)} snapshots have many rows of one value, first {torn[0]}"] if torn else []
    notes += [f"note: {n} snapshots of {file} are the one before once more" for file, n in stuck.items() if n][:1]
    notes += _odd_years(sums_F3C)
    for (one, other), leaks in sorted(twice.items(), key=lambda item: not item[1])[:1]:
        what = f"note: {len(twice)} years are there twice, or in part, first {one} and {other}"
        notes.append(f"{what}: a leak, {other.parent.name} scores what {one.parent.name} shows" if leaks else what)
    there = sorted(int(file.stem[-4:]) for file in files)
    if gap := sorted(set(range(there[0], there[-1])) - set(there)):
        notes.append(f"note: {len(gap)} years from {there[0]} to {there[-1]} are in no split, the first is {gap[0]}")
    plan = about(folder).get("plan")
    years = plan.get("years") if isinstance(plan, dict) else None
    if isinstance(years, list) and all(type(n) is int for n in years) and sum(years) > len(files):
        notes.append(f"note: dataset.json tells of {sum(years)} years, but {len(files)} are there")
    counts = ", ".join(f"{split.name} {split.n_samples}" for split in splits)
    C, H, W = splits[0].shape
    notes += ["note: channels come last, it seems; write (time, channel, lat, lon)"] if min(C, H) > 2 * W else []
    return "\n".join([f"{folder}: {counts} samples of {C} × {H} × {W}; every value is finite", *notes])


def refuse_coarse(file: Path, what: str, low: np.ndarray, high: np.ndarray) -> None:
    """Raises: DataError: some of the ranges from ``low`` to ``high`` are less than 1,000 steps of float32."""
    low, high = np.asarray(low, np.float64).ravel(), np.asarray(high, np.float64).ravel()
    with np.errstate(all="ignore"):
        step = np.spacing(np.maximum(np.abs(low), np.abs(high)).astype(np.float32))
    for at in np.flatnonzero((low < high) & (high - low < 1000 * step))[:1]:
        why = f"{what} is within {low[at]:.10g} and {high[at]:.10g}, where float32 has steps of {step[at]:.2g}"
        raise DataError(f"{file}: {why}; write it less its mean, or in another unit")


def no_value(x: np.ndarray) -> np.ndarray:
    """Which numbers are what other formats write for none."""
    return (np.abs(x) > _MOST) | np.isin(x, _FILLS)


def _odd_years(sums_F3C: Mapping[Path, np.ndarray]) -> list[str]:
    """A note on the year that is most unlike the others: shifted, in other units, or with channels exchanged."""
    files, (ones, totals, squares) = list(sums_F3C), np.stack(list(sums_F3C.values()), 1)
    means_FC = totals / ones
    stds_FC = np.sqrt(np.maximum(squares / ones - means_FC**2, 0))
    usual_C = np.maximum(np.median(stds_FC, 0), 1e-12)
    off_FC = np.abs(means_FC - np.median(means_FC, 0)) / usual_C
    spread_FC = np.maximum(stds_FC, 1e-12) / usual_C
    odd_FC = np.where(usual_C > 1e-6, np.maximum(off_FC / 5, np.abs(np.log(spread_FC)) / np.log(4)), 0)
    at, c = np.unravel_index(odd_FC.argmax(), odd_FC.shape)
    if len(files) < 3 or odd_FC[at, c] < 1:
        return []
    how = f"its mean is {off_FC[at, c]:.1f} deviations off, its spread {spread_FC[at, c]:.2g} × theirs"
    return [f"note: {files[at]} is unlike the other years in channel {c}: {how}"]


def year_files(folder: Path, split: str) -> tuple[Path, ...]:
    """The files of one split, in the order of their names.

    Raises:
        DataError: no folder, no files, files of two layouts, or a name that does not end in four digits.
    """
    place, has_others = Path(folder) / split, split != "train" and (Path(folder) / "train").is_dir()
    hint = "move some years of train there" if has_others else "make data with: dltutorial data weather --out DIR"
    with formats.blaming(place):
        there = sorted(place.iterdir()) if place.is_dir() else None
    if there is None:
        what = f"{folder} has no folder {split}" if Path(folder).is_dir() else f"no data folder {folder}"
        raise DataError(f"{what}; {hint}")
    files = tuple(file for file in there if file.suffix.lower() in _LIKE_YEARS and not file.name.startswith("."))
    if not files:
        raise DataError(f"{place} holds no .h5 file, nor .npy nor .zarr; {hint}")
    for file in files:
        if file.suffix not in formats.SUFFIXES:
            raise DataError(f"{file} would be left out: name it *.h5, *.npy or *.zarr if it is such, else move it away")
        if file.suffix != files[0].suffix:
            raise DataError(f"{files[0]} and {file.name} are of two layouts; dltutorial data convert makes them alike")
        if not _YEAR.fullmatch(file.stem):
            raise DataError(f"{file}: a year's name must end in four digits, as in sim_0001.h5; rename it")
    return files


def year_shapes(folder: Path, split: str) -> dict[Path, tuple[int, int, int, int]]:
    """The files of one split and the shape of each; a DataError also if their samples differ in shape."""
    shapes = {file: file_shape(file) for file in year_files(folder, split)}
    require_alike(shapes)
    return shapes


def require_alike(shapes: Mapping[Path, tuple[int, ...]]) -> None:
    """Raises: DataError: two years have samples of different shapes; it names both."""
    first, wanted = next(iter(shapes.items()))
    for file, shape in shapes.items():
        if shape[1:] != wanted[1:]:
            sizes = f"{file} has samples {shape[1:]}, but {first} has {wanted[1:]}"
            raise DataError(f"{sizes}; all years of a data set must have the same shape, so move one elsewhere")


def file_shape(file: Path) -> tuple[int, int, int, int]:
    """Shape (T, C, H, W) of a year, from its header; a DataError if it is none."""
    with formats.open_year(file) as year:
        return len(year), *year.shape


def read_sample(file: Path, index: int) -> np.ndarray:
    """One sample (C, H, W); a DataError as of ``whole``, or if it cannot be read."""
    with formats.open_year(file) as year:
        return whole(file, index, year.snapshots(index, 1))[0]


def samples(file: Path) -> Iterator[np.ndarray]:
    """All samples (C, H, W) of a year in turn, read a chunk at a time; a DataError as of ``read_sample``."""
    with formats.open_year(file) as year:
        depth = min(16, (year.chunk_TCHW or (1,))[0])
        for first in range(0, len(year), depth):
            yield from whole(file, first, year.snapshots(first, min(depth, len(year) - first)))


def whole(file: Path, first: int, x_NCHW: np.ndarray) -> np.ndarray:
    """As given. DataError: a snapshot holds NaN, infinity, or no value as a channel's least or largest."""
    for index, x_CHW in enumerate(x_NCHW, first):
        ends_2C = np.stack([x_CHW.min((1, 2)), x_CHW.max((1, 2))])
        for channel in np.flatnonzero(~np.isfinite(ends_2C).all(0)):
            what = f"snapshot {index}, channel {channel}, holds NaN or infinity"
            raise DataError(f"{file}, {what}; fill these values, or write the data without this channel")
        for at in map(tuple, np.argwhere(no_value(ends_2C))):
            what = f"snapshot {index}, channel {at[1]}, holds {ends_2C[at]:g}, which stands for no value elsewhere"
            raise DataError(f"{file}, {what}; fill these values, or write the data without this channel")
    return x_NCHW


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
    numeric = isinstance(snapshot_s, (int, float)) and not isinstance(snapshot_s, bool)
    if geometry not in ("sphere", "beta-plane") or not numeric or not 0 < snapshot_s < np.inf:
        what = f"geometry {geometry!r} (sphere or beta-plane) or snapshot_s {snapshot_s!r}"
        raise DataError(f"{file}: {what}: correct it")
    return said


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file, None where there is no file; a DataError if it is damaged or no object."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}; correct that, and run again") from error
    except ValueError as error:
        why = formats.first_line(error)
        raise DataError(f"{file} is not readable JSON ({why}); correct it") from error
    if not isinstance(found, dict):
        raise DataError(f"{file} is no JSON object; correct it")
    return found


def _stats(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """One array of statistics, float32, checked."""
    file = folder / "stats" / f"{name}.npy"
    with formats.blaming(file):
        if not file.exists():
            raise DataError(f"{file} is missing; make it: dltutorial data statistics --source {folder}")
        stored = np.load(file, mmap_mode="r", allow_pickle=False)
    if getattr(stored, "shape", None) != shape or stored.dtype.kind != "f":
        is_now = f"{stored.dtype} {stored.shape}" if isinstance(stored, np.ndarray) else "several arrays"
        raise DataError(f"{file} is {is_now}, but the files need floats {shape}; {_again(folder)}")
    with np.errstate(over="ignore"):
        x = np.array(stored, np.float32)
    if not np.isfinite(x).all() or (name == "global_stds" and not (x > 0).all()):
        raise DataError(f"{file} holds, in float32, NaN, infinity, or a deviation of 0; {_again(folder)}")
    return x


def _far_off(folder: Path) -> DataError:
    why = "time_means.npy is far from global_means.npy"
    return DataError(f"{folder / 'stats'} is of other data: {why}; {_again(folder)}")


def _again(folder: Path) -> str:
    return f"compute them again: dltutorial data statistics --overwrite --source {folder}"
