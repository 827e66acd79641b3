"""Check a user's own data once, before training: the header of every file, every value, and the statistics.

In: a folder in the layout of ``store``. Out: one line for each problem, which says what is wrong, why, and what to do.
The files are only read. The statistics are written if the user asks for that.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from dltutorial.data import statistics, store
from dltutorial.data.statistics import Sums
from dltutorial.errors import DataError


@dataclass
class DataReport:
    """What a check has found.

    Attributes:
        shapes: (T, C, H, W) of each file that can be opened.
        problems: one line for each thing that prevents training.
        notes: one line for each thing that may be intended.
    """

    shapes: dict[Path, tuple[int, int, int, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(folder: Path, write_statistics: bool = False, progress: bool = False) -> DataReport:
    """Read a data set completely.

    Args:
        folder: of the complete data set.
        write_statistics: compute the statistics that are missing or do not fit, and write them.
        progress: show a progress bar.
    """
    folder = Path(folder)
    report = DataReport()
    for split in store.SPLITS:
        if split != "test" or (folder / split).is_dir():
            _check_headers(folder, split, report)
    sums = Sums()
    total = sum(shape[0] for shape in report.shapes.values())
    with tqdm(desc="reading", unit="sample", total=total, delay=2, disable=not progress) as bar:
        for file in report.shapes:
            _check_values(file, report, sums, bar)
    if not report.problems:
        _check_statistics(folder, sums, write_statistics, report)
    if not report.problems:
        report.notes.insert(0, f"{folder}: {_summary(report)}; every value is finite")
    return report


def _check_headers(folder: Path, split: str, report: DataReport) -> None:
    """Open the files of a split, and compare their shapes and lengths."""
    lengths = {}
    try:
        for file in store.year_files(folder, split):
            shape = store.file_shape(file)
            store.require_alike({**report.shapes, file: shape})
            report.shapes[file] = shape
            lengths[file] = shape[0]
    except DataError as error:
        report.problems.append(str(error))
        return
    shortest = min(lengths, key=lambda file: lengths[file])
    if lengths[shortest] < 2:
        report.problems.append(
            f"{shortest} has one snapshot, but a forecast needs two in a row; put longer years there"
        )
    if lengths[shortest] < max(lengths.values()):
        what = f"the years of {split} have {lengths[shortest]} to {max(lengths.values())} snapshots"
        report.notes.append(f"note: {what}; make sure that {shortest} is complete")


def _check_values(file: Path, report: DataReport, sums: Sums, bar: tqdm) -> None:
    """Look for NaN and infinity in a file. Add the samples of a training year to ``sums``."""
    for number, x_CHW in enumerate(store.samples(file)):
        bar.update()
        is_finite_C = np.isfinite(x_CHW).all((1, 2))
        if not is_finite_C.all():
            place = f"{file}, snapshot {number}, channel {is_finite_C.argmin()}"
            report.problems.append(f"{place}, holds NaN or infinity; fill these values, or leave the channel out")
            return
        if file.parent.name == "train":
            sums.add(x_CHW)


def _check_statistics(folder: Path, sums: Sums, write: bool, report: DataReport) -> None:
    """Compare ``stats/`` with the statistics of the training years. Write those that do not fit, if asked to."""
    try:
        computed = sums.statistics()
    except DataError as error:
        report.problems.append(f"{folder / 'train'}: {error}")
        return
    for name, values in computed.items():
        if name == "time_means" and not write and not (folder / "stats" / "time_means.npy").exists():
            continue  # training does not need them
        try:
            stored = store.read_statistics(folder, name, values.shape)
            _require_close(folder, name, stored, computed)
        except DataError as error:
            if write:
                statistics.write(folder, {name: values})
                report.notes.append(f"wrote {folder / 'stats' / name}.npy")
            else:
                report.problems.append(str(error))


def _require_close(folder: Path, name: str, stored: np.ndarray, computed: dict[str, np.ndarray]) -> None:
    """Compare statistics with those of the training years. They may be of more years, so a difference is allowed.

    Raises:
        DataError: A standard deviation differs by more than a factor of 2, or a mean by more than one deviation.
    """
    difference = np.abs(stored - computed[name]) / computed["global_stds"]
    if name == "global_stds":
        difference = np.abs(np.log2(stored / computed[name]))
    difference_C = np.median(difference, (0, 2, 3))
    if difference_C.max() > 1:
        what = f"{folder / 'stats' / name}.npy does not fit channel {difference_C.argmax()} of the training years"
        todo = f"compute it: dltutorial data check --write-statistics --source {folder}"
        raise DataError(f"{what}, so its samples would not be normalised; {todo}")


def _summary(report: DataReport) -> str:
    """Number and shape of the samples, for example "train 24, valid 4 samples of 5 × 16 × 32"."""
    counts: dict[str, int] = {}
    for file, shape in report.shapes.items():
        counts[file.parent.name] = counts.get(file.parent.name, 0) + shape[0]
    sizes = " × ".join(str(size) for size in shape[1:])
    return ", ".join(f"{split} {count}" for split, count in counts.items()) + f" samples of {sizes}"
