"""The rungs of chapter 03's ladder, the data they are climbed on, and how fast each is.

In: a preset, layouts, loaders. Out: a split for each layout; samples per second of each loader, taken in turns.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dltutorial.config import Preset
from dltutorial.data import convert, ladder, store, weather
from dltutorial.data.feed import Feed
from dltutorial.data.store import Split


@dataclass(frozen=True)
class Rung:
    """One step of the ladder: what changed, the layout on disk, the loader."""

    cause: str
    layout: str
    feed: str


RUNGS = (
    Rung("naive: gzip, 16 samples a chunk", "hdf5-chunk16-gzip4", "naive"),
    Rung("one sample a chunk", "hdf5-chunk1-gzip4", "naive"),
    Rung("no compression", "hdf5-chunk1", "naive"),
    Rung("files kept open", "hdf5-chunk1", "open"),
    Rung("memory map", "npy", "open"),
    Rung("float32, in place", "npy", "lean"),
    Rung("one buffer a batch", "npy", "batched"),
    Rung("augment on the device", "npy", "device"),
    Rung("a thread reads ahead", "npy", "best"),
)


# Those of the rungs, and others to compare them with.
LAYOUTS = (
    *dict.fromkeys(rung.layout for rung in RUNGS),
    *("hdf5-auto-gzip4", "hdf5-chunk1-lzf", "hdf5-contiguous", "zarr-chunk1", "zarr-chunk1-zstd"),
)


def sizes(preset: Preset) -> Preset:
    """Two years of few snapshots, each large enough that moving bytes, not calling functions, takes the time."""
    finer = dataclasses.replace(preset, n_lat=max(128, preset.n_lat), n_lon=max(256, preset.n_lon))
    return dataclasses.replace(finer, years=(2, 0, 0), snapshots=24)


def prepare(preset: Preset, layouts: Sequence[str] = LAYOUTS, progress: bool = True) -> dict[str, Split]:
    """The training split of the ladder's data in each layout; made where missing.

    Raises:
        DataError: they cannot be written.
    """
    source = weather.ensure(sizes(preset), progress=progress)
    found = {}
    for name in layouts:
        folder = convert.convert(source, name, splits=("train",), progress=progress)
        found[name] = store.open_split(folder)
    return found


def host_loader(split: Split, batch_size: int, feed: Feed | str, seed: int = 0) -> Callable[[], Iterator]:
    """A function that starts the host's part of a loader, with shifts: what ``rates`` takes."""
    return lambda: ladder.host_batches(split, batch_size, feed, seed=seed, roll=True)


def rates(
    variants: Mapping[str, Callable[[], Iterator]], batch_size: int, *, rounds: int = 3, phase_s: float = 0.2
) -> dict[str, tuple[float, ...]]:
    """Samples per second of several loaders, in turns; each starts anew for every turn and ends after it.

    The first batches of a turn do not count: they fill queues, and touch memory for the first time.
    """
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, start in variants.items():
            found[name].append(batch_size / _batch_s(start(), phase_s))
    return {name: tuple(values) for name, values in found.items()}


def _batch_s(batches: Iterator, phase_s: float, lead: int = 5) -> float:
    """Mean seconds of a batch. A slow loader, which has no queue that pays, is led in by one batch only."""
    try:
        began_s = time.perf_counter()
        for _ in range(lead):
            next(batches)
            if time.perf_counter() - began_s > phase_s:
                break
        began_s, count = time.perf_counter(), 0
        while time.perf_counter() - began_s < phase_s:
            next(batches)
            count += 1
        return (time.perf_counter() - began_s) / count
    finally:
        batches.close()
