"""Statistics of the training years, with which samples are normalised.

In: the training years. Out: the files of ``stats/``: mean and standard deviation of each channel, and the mean of each
grid point.

Legend: C channels, H rows (latitude), W columns (longitude).
"""

from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from dltutorial import paths
from dltutorial.data import store
from dltutorial.errors import DataError


class Sums:
    """Sums over samples in float64, from which the statistics follow.

    The first sample's corner is subtracted from each channel before the sums. Otherwise, a channel with a large mean
    and a small deviation would lose digits in the sum of the squares.
    """

    def __init__(self) -> None:
        self.count = 0
        self.offset_C11 = np.zeros(())
        self.sum_CHW = np.zeros(())
        self.sum_of_squares_C = np.zeros(())

    def add(self, x_CHW: np.ndarray) -> None:
        """Add one sample."""
        if self.count == 0:
            self.offset_C11 = x_CHW[:, :1, :1].astype(np.float64)
        difference_CHW = x_CHW - self.offset_C11
        self.sum_CHW = self.sum_CHW + difference_CHW
        self.sum_of_squares_C = self.sum_of_squares_C + np.einsum("chw,chw->c", difference_CHW, difference_CHW)
        self.count += 1

    def statistics(self) -> dict[str, np.ndarray]:
        """The arrays of ``stats/`` by name, float32.

        Raises:
            DataError: A channel has the same value everywhere, so it cannot be normalised.
        """
        time_means_CHW = self.sum_CHW / self.count
        means_C11 = time_means_CHW.mean((1, 2), keepdims=True)
        n_points = self.count * time_means_CHW[0].size
        variances_C = self.sum_of_squares_C / n_points - means_C11.ravel() ** 2
        if variances_C.min() <= 0:
            raise DataError(f"channel {variances_C.argmin()} has one value in all training years; leave it out")
        statistics = {
            "global_means": means_C11 + self.offset_C11,
            "global_stds": np.sqrt(variances_C)[:, None, None],
            "time_means": time_means_CHW + self.offset_C11,
        }
        return {name: values[None].astype(np.float32) for name, values in statistics.items()}


def compute(folder: Path) -> dict[str, np.ndarray]:
    """The statistics of a data set's training years, by name.

    Args:
        folder: of the complete data set.

    Raises:
        DataError: The training years cannot be read, or a channel has the same value everywhere.
    """
    shapes = store.year_shapes(folder, "train")
    total = sum(shape[0] for shape in shapes.values())
    sums = Sums()
    with tqdm(desc="statistics", unit="sample", total=total, delay=2) as bar:
        for file in shapes:
            for x_CHW in store.samples(file):
                sums.add(x_CHW)
                bar.update()
    return sums.statistics()


def write(folder: Path, statistics: dict[str, np.ndarray]) -> None:
    """Write arrays to ``stats/``.

    Raises:
        CourseError: They cannot be written, for example because the disk is full.
    """
    for name, values in statistics.items():
        with paths.atomic(folder / "stats" / f"{name}.npy") as temporary, open(temporary, "wb") as file:
            np.save(file, values)
