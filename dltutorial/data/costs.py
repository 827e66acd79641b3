"""What a loader should cost: count the bytes it moves and inflates, divide by measured rates.

In: a year in some layout, the knobs of a loader. Out: seconds for one pair. Three figures of this machine are
measured, each of a single operation: open a file, inflate a chunk, copy. None is of the loader that is predicted. So
where the prediction is right, the loader is understood; where it is not, something else costs time.

Legend: 2 states (now, next), C channels, H × W grid points. A value is a float32 on disk.
"""

import itertools
import math
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import h5py
import numpy as np

from dltutorial.data import formats, sampling
from dltutorial.data.feed import Feed
from dltutorial.data.loaders import Pairs
from dltutorial.data.store import Split

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

    def pair_s(self, year: formats.Year, feed: Feed) -> float:
        """Seconds that one pair should take, from the page cache to the batch, in one thread."""
        values = 2 * math.prod(year.shape)
        touched = formats.read_amplification(year, 2)
        mapped = year.path.suffix == ".npy"
        moved = 0.0 if mapped else COPY * (touched + 1)  # chunks to the library, the part asked for to the array
        moved += COPY if feed.on_device else LEAN if feed.lean else NAIVE
        moved += 0 if feed.buffered else COPY  # stacked to a batch
        seconds = values * moved / self.moved_bytes_per_s
        seconds += values * 4 * touched / self.inflate_bytes_per_s if year.compressed else 0.0
        return seconds + (0.0 if feed.keep_open or mapped else self.open_s)


def measure(gzipped: Split, mapped: Split, batch_size: int, repeats: int = 5) -> Costs:
    """Measure the figures on one data set in two layouts: HDF5 with gzip, and npy.

    Raises:
        DataError: they cannot be read.
    """
    file = gzipped.files[0]
    with formats.blaming(file), h5py.File(file, "r") as h5:
        _, deflated = h5["fields"].id.read_direct_chunk((0, 0, 0, 0))
        chunk_bytes = 4 * math.prod(h5["fields"].chunks)
    batches = copies(mapped, batch_size)
    n_batches = -(-len(Pairs(mapped)) // batch_size)  # an epoch: more than fits the caches, if the data set is

    def epoch() -> None:
        for _ in range(n_batches):
            next(batches)

    moved_bytes = 2 * n_batches * batch_size * 2 * mapped.sample_bytes
    return Costs(
        open_s=_median_s(lambda: formats.open_year(file).close(), repeats),
        inflate_bytes_per_s=chunk_bytes / _median_s(lambda: zlib.decompress(deflated), repeats),
        moved_bytes_per_s=moved_bytes / _median_s(epoch, repeats),
    )


def copies(split: Split, batch_size: int, seed: int = 0) -> Iterator[np.ndarray]:
    """The yardstick: batches of the same bytes, in the same order, copied out of a map into two blocks in turn.

    Nothing that reads files, whatever its form, can be quicker in one thread.
    """
    pairs = Pairs(split)
    blocks = [np.empty((2, batch_size, *split.shape), np.float32) for _ in range(2)]
    years = [np.load(file, mmap_mode="r").view(np.ndarray) for file in split.files]
    draws = sampling.endless(len(pairs), batch_size, seed=seed)
    for block_2BCHW, (indices, _) in zip(itertools.cycle(blocks), draws, strict=False):
        for place, index in enumerate(indices):
            year, first = pairs.where(index)
            np.copyto(block_2BCHW[:, place], years[year][first : first + 2])
        yield block_2BCHW


def _median_s(run: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call."""
    run()
    found = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        run()
        found.append(time.perf_counter() - began_s)
    return statistics.median(found)
