"""What a loader should cost: count the bytes it moves and inflates, divide by measured rates.

In: a year in some layout, the knobs of a loader. Out: seconds for one pair. Three figures of this machine are
measured, each of a single operation: open a file, inflate a chunk, copy. None is of a loader. So where the prediction
is right, the loader is understood; where it is not, something else costs time.

Legend: 2 states (now, next), C channels, H × W grid points. A value is a float32 on disk.
"""

import math
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from dltutorial.data import formats
from dltutorial.data.ladder import Feed

# Bytes read + written for each value. Naive: to float64, minus mean, by deviation, shifted, back to float32.
NAIVE = (4 + 8) + (8 + 8) + (8 + 8) + (8 + 8) + (8 + 4)
LEAN = (4 + 4) + (4 + 4)  # minus mean, to its place; by deviation, in place
COPY = 4 + 4


@dataclass(frozen=True)
class Costs:
    """Figures of this machine.

    Attributes:
        open_s: to open an HDF5 file and its dataset, and close it.
        inflate_bytes_per_s: gzip, counted in bytes that come out.
        moved_bytes_per_s: a copy out of the page cache, counted in bytes read plus bytes written.
    """

    open_s: float
    inflate_bytes_per_s: float
    moved_bytes_per_s: float

    def pair_s(self, year: formats.Year, feed: Feed, compressed: bool) -> float:
        """Seconds that one pair should take, from the page cache to the batch, in one thread."""
        values = 2 * math.prod(year.shape)
        touched = formats.read_amplification(year, 2)
        mapped = year.path.suffix == ".npy"
        moved = 0.0 if mapped else COPY * (touched + 1)  # chunks to the library, the part asked for to the array
        moved += COPY if feed.on_device else LEAN if feed.lean else NAIVE
        moved += 0 if feed.buffered else COPY  # stacked to a batch
        seconds = values * moved / self.moved_bytes_per_s
        seconds += values * 4 * touched / self.inflate_bytes_per_s if compressed else 0.0
        return seconds + (0.0 if feed.keep_open or mapped else self.open_s)


def measure(gzipped: Path, mapped: Path, repeats: int = 7) -> Costs:
    """Measure the figures on a year compressed with gzip, in HDF5, and on one as an npy file.

    Raises:
        DataError: they cannot be read.
    """
    year = formats.open_year(mapped)
    targets = [np.empty((2, *year.shape), np.float32) for _ in range(8)]
    firsts = np.random.default_rng(0).integers(0, len(year) - 1, len(targets)).tolist()
    with formats.blaming(gzipped), h5py.File(gzipped, "r") as h5:
        _, deflated = h5["fields"].id.read_direct_chunk((0, 0, 0, 0))
        chunk_bytes = 4 * math.prod(h5["fields"].chunks)

    def copy() -> None:
        for first, target in zip(firsts, targets, strict=True):
            year.read_into(first, target)

    moved_bytes = 2 * sum(target.nbytes for target in targets)
    return Costs(
        open_s=_median_s(lambda: formats.open_year(gzipped).close(), repeats),
        inflate_bytes_per_s=chunk_bytes / _median_s(lambda: zlib.decompress(deflated), repeats),
        moved_bytes_per_s=moved_bytes / _median_s(copy, repeats),
    )


def _median_s(run: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call."""
    run()
    found = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        run()
        found.append(time.perf_counter() - began_s)
    return statistics.median(found)
