"""The measurements of chapter 03: its loaders, the data that they read, what each should cost, and how fast each is.

In: a preset, layouts, loaders. Out: a split for each layout; samples per second of each loader, predicted and measured.
The prediction counts the bytes that a loader moves and decompresses, and divides them by rates of this machine. Each
rate is of a single operation, not of a loader: open a file, decompress a chunk, copy. Therefore, if the prediction is
right, the count explains the loader; otherwise something else costs time.

Legend: 2 states (now, next), B pairs in a batch, C channels, H × W grid points. A value is a float32 on disk.
"""

import contextlib
import dataclasses
import itertools
import math
import statistics
import time
import timeit
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dltutorial.config import Preset
from dltutorial.data import convert, formats, loader_variants, sampling, store, weather
from dltutorial.data.loader_variants import LoaderConfig
from dltutorial.data.loaders import Pairs
from dltutorial.data.store import Split

# Bytes that are read and written for each value.
# Naive: to float64, minus mean, by deviation, shifted, back to float32.
NAIVE_BYTES = (4 + 8) + (8 + 8) + (8 + 8) + (8 + 8) + (8 + 4)
# In float32: minus mean, to the final place; by deviation, in place.
FLOAT32_BYTES = (4 + 4) + (4 + 4)
COPY_BYTES = 4 + 4
# On the device: minus mean; by deviation; the shift, which also reads an index of 8 bytes.
DEVICE_BYTES = (4 + 4) + (4 + 4) + (8 + 4 + 4)


class LoaderRung(NamedTuple):
    """One step from the newcomer's loader to the best one: what changed, the layout, the name of the loader."""

    cause: str
    layout: str
    loader: str


RUNGS = (
    LoaderRung("naive: gzip, 16 samples a chunk", "hdf5-chunk16-gzip4", "naive"),
    LoaderRung("one sample a chunk", "hdf5-chunk1-gzip4", "naive"),
    LoaderRung("no compression", "hdf5-chunk1", "naive"),
    LoaderRung("files kept open", "hdf5-chunk1", "open"),
    LoaderRung("memory map", "npy", "open"),
    LoaderRung("float32, in place", "npy", "float32"),
    LoaderRung("one buffer a batch", "npy", "batched"),
    LoaderRung("augment on the device", "npy", "device"),
    LoaderRung("a thread reads ahead", "npy", "best"),
)
# The layouts of these steps, and others to compare them with.
LAYOUTS = (
    *dict.fromkeys(rung.layout for rung in RUNGS),
    *("hdf5-auto-gzip4", "hdf5-chunk1-lzf", "hdf5-contiguous", "zarr-chunk1", "zarr-chunk1-zstd"),
)


def rungs(device: str) -> tuple[LoaderRung, ...]:
    """The steps for a device, "cuda" or "cpu". On a CPU the thread is added to what was faster without the device."""
    if device == "cuda":
        return RUNGS
    return (*RUNGS[:-1], RUNGS[-1]._replace(loader="prefetch"))


def sizes(preset: Preset) -> Preset:
    """Two years of few snapshots, each so large that moving bytes takes the time, and not calling functions."""
    return dataclasses.replace(
        preset,
        n_lat=max(128, preset.n_lat),
        n_lon=max(256, preset.n_lon),
        years=(2, 0, 0),
        snapshots=24,
    )


def prepare(preset: Preset, layouts: Sequence[str] = LAYOUTS, progress: bool = True) -> dict[str, Split]:
    """The training split of the measurements in each layout; built if it is missing."""
    source = weather.ensure(sizes(preset), progress=progress)
    splits = {}
    for name in layouts:
        folder = convert.convert(source, name, splits=("train",), progress=progress)
        splits[name] = store.open_split(folder)
    return splits


def whole_loader(split: Split, batch_size: int, name: str, device: str) -> Callable[[], Iterator]:
    """Return a function that starts a loader of normalised and shifted batches, as ``rates`` needs it."""
    return lambda: loader_variants.make_loader(split, batch_size, name, roll=True, device=device)


def rates(
    variants: Mapping[str, Callable[[], Iterator]], batch_size: int, *, rounds: int = 3, phase_s: float = 0.2
) -> dict[str, tuple[float, ...]]:
    """Samples per second of several loaders, measured in turns.

    Args:
        variants: for each name, a function that starts the loader. It is started again in each round.
        batch_size: samples per batch.
        rounds: number of measurements of each loader.
        phase_s: time of one measurement. A quarter of it before the measurement does not count, because the first
            batches fill queues, and use memory for the first time.

    Returns:
        For each name, the rate of each round.
    """
    measured: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, start in variants.items():
            with contextlib.closing(start()) as batches:  # type: ignore[type-var]
                _mean_batch_s(batches, phase_s / 4)
                measured[name].append(batch_size / _mean_batch_s(batches, phase_s))
    return {name: tuple(values) for name, values in measured.items()}


def _mean_batch_s(batches: Iterator, phase_s: float) -> float:
    """Mean seconds per batch, over at least ``phase_s`` and one batch."""
    start_s = time.perf_counter()
    duration_s = 0.0
    count = 0
    while duration_s < phase_s:
        next(batches)
        count += 1
        duration_s = time.perf_counter() - start_s
    return duration_s / count


@dataclass(frozen=True)
class Costs:
    """Rates of this machine.

    Attributes:
        open_s: time to open an HDF5 file and its dataset, and to close it.
        inflate_bytes_per_s: of gzip, in bytes after decompression.
        moved_bytes_per_s: of a copy out of the page cache, in bytes read plus bytes written.
    """

    open_s: float
    inflate_bytes_per_s: float
    moved_bytes_per_s: float

    def pair_s(self, year: formats.Year, config: LoaderConfig, device: str = "cpu") -> float:
        """Predicted seconds for one pair, from the page cache to the batch, in one thread."""
        values = 2 * math.prod(year.shape)
        amplification = formats.read_amplification(year, 2)
        is_mapped = year.path.suffix == ".npy"
        seconds = values * self.moved_bytes(config, is_mapped, amplification, device) / self.moved_bytes_per_s
        if year.compressed:
            seconds += values * 4 * amplification / self.inflate_bytes_per_s
        if not config.files_stay_open and not is_mapped:
            seconds += self.open_s
        return seconds

    @staticmethod
    def moved_bytes(config: LoaderConfig, is_mapped: bool, amplification: float, device: str) -> float:
        """Bytes that are read and written in memory for one value of a pair."""
        moved = 0.0
        if not is_mapped:
            moved += COPY_BYTES * amplification  # complete chunks to the library
            moved += COPY_BYTES  # the values that are needed, to the array
        if config.augment_on_device:
            moved += COPY_BYTES
            moved += DEVICE_BYTES if device == "cpu" else 0
        elif config.float32_in_place:
            moved += FLOAT32_BYTES
        else:
            moved += NAIVE_BYTES
        if not config.one_buffer:
            moved += COPY_BYTES  # stacked to a batch
        return moved


def measure_costs(gzipped: Split, mapped: Split, batch_size: int, repeats: int = 5) -> Costs:
    """Measure the rates on one data set in two layouts: HDF5 with gzip, and npy."""
    file = gzipped.files[0]
    with formats.open_hdf5(file) as h5:
        _, compressed = h5["fields"].id.read_direct_chunk((0, 0, 0, 0))
        chunk_bytes = 4 * math.prod(h5["fields"].chunks)
    batches = copies(mapped, batch_size)
    n_batches = math.ceil(len(Pairs(mapped)) / batch_size)  # an epoch, so that large data do not fit the caches
    moved_bytes = 2 * n_batches * batch_size * 2 * mapped.sample_bytes
    return Costs(
        open_s=_median_s(lambda: formats.open_year(file).close(), repeats),
        inflate_bytes_per_s=chunk_bytes / _median_s(lambda: zlib.decompress(compressed), repeats),
        moved_bytes_per_s=moved_bytes / _median_s(lambda: list(itertools.islice(batches, n_batches)), repeats),
    )


def copies(split: Split, batch_size: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Batches (2, B, C, H, W) of the same bytes in the same order, copied from a memory map into two blocks in turn.

    This is the upper limit, because a loader in one thread cannot read files faster than it can copy their bytes.
    """
    pairs = Pairs(split)
    blocks = [np.empty((2, batch_size, *split.shape), np.float32) for _ in range(2)]
    years = [np.load(file, mmap_mode="r").view(np.ndarray) for file in split.files]
    draws = sampling.endless(len(pairs), batch_size, seed=seed)
    for block_2BCHW, (indices, _) in zip(itertools.cycle(blocks), draws, strict=False):
        for place, index in enumerate(indices):
            number, first = pairs.where(index)
            np.copyto(block_2BCHW[:, place], years[number][first : first + 2])
        yield block_2BCHW


def _median_s(run: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call."""
    run()
    return statistics.median(timeit.repeat(run, number=1, repeat=repeats))
