"""The ladder of chapter 03: its loaders and the data they read, what each should cost, and how fast each is.

In: a preset, layouts, loaders. Out: a split for each layout; samples per second of each loader, predicted and
measured. The prediction counts the bytes that a loader moves and inflates, and divides by rates of this machine, each
of a single operation: open a file, inflate a chunk, copy. None is of the loader that is predicted. So where the
prediction is right, the loader is understood; where it is not, something else costs time.

Legend: 2 states (now, next), C channels, H × W grid points. A value is a float32 on disk.
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
from dltutorial.data import convert, formats, loaders, sampling, store, weather
from dltutorial.data.loaders import LoaderConfig, Pairs
from dltutorial.data.store import Split

# Bytes read + written for each value. Naive: to float64, minus mean, by deviation, shifted, back to float32.
NAIVE = (4 + 8) + (8 + 8) + (8 + 8) + (8 + 8) + (8 + 4)
LEAN = (4 + 4) + (4 + 4)  # minus mean, to its place; by deviation, in place
COPY = 4 + 4
DEVICE = (4 + 4) + (4 + 4) + (8 + 4 + 4)  # minus mean, by deviation, gathered from its place: a whole batch at once


class LoaderRung(NamedTuple):
    """One step of the ladder: what changed, the layout on disk, the name of the loader."""

    cause: str
    layout: str
    loader: str


RUNGS = (
    LoaderRung("naive: gzip, 16 samples a chunk", "hdf5-chunk16-gzip4", "naive"),
    LoaderRung("one sample a chunk", "hdf5-chunk1-gzip4", "naive"),
    LoaderRung("no compression", "hdf5-chunk1", "naive"),
    LoaderRung("files kept open", "hdf5-chunk1", "open"),
    LoaderRung("memory map", "npy", "open"),
    LoaderRung("float32, in place", "npy", "lean"),
    LoaderRung("one buffer a batch", "npy", "batched"),
    LoaderRung("augment on the device", "npy", "device"),
    LoaderRung("a thread reads ahead", "npy", "best"),
)
# Those of the rungs, and others to compare them with.
LAYOUTS = (
    *dict.fromkeys(rung.layout for rung in RUNGS),
    *("hdf5-auto-gzip4", "hdf5-chunk1-lzf", "hdf5-contiguous", "zarr-chunk1", "zarr-chunk1-zstd"),
)


def rungs(device: str) -> tuple[LoaderRung, ...]:
    """Those for this kind of device, "cuda" or "cpu": at last the thread goes with what was better before."""
    return RUNGS if device == "cuda" else (*RUNGS[:-1], RUNGS[-1]._replace(loader="prefetch"))


def sizes(preset: Preset) -> Preset:
    """Two years of few snapshots, each large enough that moving bytes, not calling functions, takes the time."""
    finer = dataclasses.replace(preset, n_lat=max(128, preset.n_lat), n_lon=max(256, preset.n_lon))
    return dataclasses.replace(finer, years=(2, 0, 0), snapshots=24)


def prepare(preset: Preset, layouts: Sequence[str] = LAYOUTS, progress: bool = True) -> dict[str, Split]:
    """The training split of the ladder's data in each layout; made where missing."""
    source = weather.ensure(sizes(preset), progress=progress)
    folders = {name: convert.convert(source, name, splits=("train",), progress=progress) for name in layouts}
    return {name: store.open_split(folder) for name, folder in folders.items()}


def whole_loader(split: Split, batch_size: int, config: LoaderConfig | str, device: str) -> Callable[[], Iterator]:
    """A function that starts a loader, from the file to normalised and shifted batches: what ``rates`` takes."""
    return lambda: loaders.make_loader(split, batch_size, config, roll=True, device=device)


def rates(
    variants: Mapping[str, Callable[[], Iterator]], batch_size: int, *, rounds: int = 3, phase_s: float = 0.2
) -> dict[str, tuple[float, ...]]:
    """Samples per second of several loaders, in turns; each starts anew for every turn and ends after it.

    The first batches of a turn do not count: they fill queues, and touch memory for the first time.
    """
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, start in variants.items():
            with contextlib.closing(start()) as batches:  # type: ignore[type-var]
                _batch_s(batches, phase_s / 4)
                found[name].append(batch_size / _batch_s(batches, phase_s))
    return {name: tuple(values) for name, values in found.items()}


def _batch_s(batches: Iterator, phase_s: float) -> float:
    """Mean seconds of a batch over ``phase_s``, or of one that takes longer."""
    began_s, taken_s, count = time.perf_counter(), 0.0, 0
    while taken_s < phase_s:
        next(batches)
        taken_s, count = time.perf_counter() - began_s, count + 1
    return taken_s / count


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

    def pair_s(self, year: formats.Year, config: LoaderConfig, device: str = "cpu") -> float:
        """Seconds that one pair should take this machine's memory, from the page cache to the batch, in one thread."""
        values = 2 * math.prod(year.shape)
        touched, mapped = formats.read_amplification(year, 2), year.path.suffix == ".npy"
        moved = 0.0 if mapped else COPY * (touched + 1)  # chunks to the library, the part asked for to the array
        on_device = COPY + (DEVICE if device == "cpu" else 0)
        moved += on_device if config.way == "device" else LEAN if config.reaches("lean") else NAIVE
        moved += 0 if config.reaches("batched") else COPY  # stacked to a batch
        seconds = values * moved / self.moved_bytes_per_s
        seconds += values * 4 * touched / self.inflate_bytes_per_s if year.compressed else 0.0
        return seconds + (0.0 if config.reaches("open") or mapped else self.open_s)


def measure_costs(gzipped: Split, mapped: Split, batch_size: int, repeats: int = 5) -> Costs:
    """Measure the figures on one data set in two layouts: HDF5 with gzip, and npy."""
    file = gzipped.files[0]
    with formats.blaming(file), formats.open_hdf5(file) as h5:
        _, deflated = h5["fields"].id.read_direct_chunk((0, 0, 0, 0))
        chunk_bytes = 4 * math.prod(h5["fields"].chunks)
    batches = copies(mapped, batch_size)
    n_batches = -(-len(Pairs(mapped)) // batch_size)  # an epoch: more than fits the caches, if the data set is
    moved_bytes = 2 * n_batches * batch_size * 2 * mapped.sample_bytes
    return Costs(
        open_s=_median_s(lambda: formats.open_year(file).close(), repeats),
        inflate_bytes_per_s=chunk_bytes / _median_s(lambda: zlib.decompress(deflated), repeats),
        moved_bytes_per_s=moved_bytes / _median_s(lambda: list(itertools.islice(batches, n_batches)), repeats),
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
    return statistics.median(timeit.repeat(run, number=1, repeat=repeats))
