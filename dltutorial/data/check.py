"""Check your own data once, before training: the header of every file, every value, and the statistics.

In: a folder in the layout of ``store``. Out: one line for each problem, which says what is wrong, why, and what to do.
The files are only read. The statistics are written if the user asks for that.

Legend: T snapshots, C channels, H rows (latitude), W columns (longitude).
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from dltutorial.data import statistics, store
from dltutorial.errors import DataError


@dataclass
class DataReport:
    """The result of a check.

    Attributes:
        problems: one line for each thing that prevents training.
        notes: one line for each thing that may be intended.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(folder: Path, write_statistics: bool = False) -> DataReport:
    """Read a data set completely.

    Args:
        folder: of the complete data set.
        write_statistics: compute the statistics that are missing or do not fit, and write them.

    Returns:
        The problems and the notes. If a file cannot be opened, no values are read.
    """
    report = DataReport()
    try:
        files = _check_headers(folder, report)
        sums = _check_values(files, report)
        if not report.problems:
            _check_statistics(folder, sums.statistics(), write_statistics, report)
    except DataError as error:
        report.problems.append(str(error))
    if not report.problems:
        report.notes[0] += "; every value is finite"
    return report


def _check_headers(folder: Path, report: DataReport) -> list[Path]:
    """Compare the shapes of all files, and note how many samples each split has.

    Returns:
        The files of all splits. The split ``test`` is optional.

    Raises:
        DataError: A file cannot be opened, or its samples have another shape than those of the first file.
    """
    shapes: dict[Path, tuple[int, int, int, int]] = {}
    counts = []
    for split in store.SPLITS:
        if split == "test" and not (folder / split).is_dir():
            continue
        shapes_of_split = store.year_shapes(folder, split)
        n_samples = sum(shape_TCHW[0] for shape_TCHW in shapes_of_split.values())
        counts.append(f"{split} {n_samples}")
        shapes |= shapes_of_split
        store.require_same_shape(shapes)
    _, C, H, W = next(iter(shapes.values()))
    report.notes.append(f"{folder}: {', '.join(counts)} samples of {C} × {H} × {W}")
    return list(shapes)


def _check_values(files: list[Path], report: DataReport) -> statistics.Sums:
    """Look for NaN and infinity, and report the first of each file.

    Returns:
        The sums over the training years, from which the statistics follow.
    """
    sums = statistics.Sums()
    for file in tqdm(files, desc="reading", unit="year", delay=2):
        for number, x_CHW in enumerate(store.samples(file)):
            is_finite_C = np.isfinite(x_CHW).all((1, 2))
            if not is_finite_C.all():
                place = f"{file}, snapshot {number}, channel {is_finite_C.argmin()}"
                report.problems.append(f"{place}, holds NaN or infinity; fill these values, or leave the channel out")
                break
            if file.parent.name == "train":
                sums.add(x_CHW)
    return sums


def _check_statistics(folder: Path, computed: dict[str, np.ndarray], write: bool, report: DataReport) -> None:
    """Compare ``stats/`` with the statistics of the training years. Write those that do not fit, if asked to."""
    for name, values in computed.items():
        file = folder / "stats" / f"{name}.npy"
        if name == "time_means" and not file.exists() and not write:
            continue  # training does not need them
        try:
            stored = store.read_statistics(folder, name, values.shape)
            _require_close(file, stored, computed)
        except DataError as error:
            if write:
                statistics.write(folder, {name: values})
                report.notes.append(f"wrote {file}")
            else:
                report.problems.append(str(error))


def _require_close(file: Path, stored: np.ndarray, computed: dict[str, np.ndarray]) -> None:
    """Compare stored statistics with those of the training years. They may be of more years, so they may differ a bit.

    Raises:
        DataError: A standard deviation differs by more than a factor of 2, or a mean by more than one deviation.
    """
    values = computed[file.stem]
    if file.stem == "global_stds":
        difference = np.abs(np.log2(stored / values))
    else:
        difference = np.abs(stored - values) / computed["global_stds"]
    difference_C = np.median(difference, axis=(0, 2, 3))
    if difference_C.max() > 1:
        raise DataError(
            f"{file} does not fit channel {difference_C.argmax()} of the training years, so samples would not be "
            f"normalised; compute it: dltutorial data check --write-statistics --source {file.parent.parent}"
        )
