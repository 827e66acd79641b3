"""From files to batches: pairs (state now, next state), normalised, shuffled anew in every epoch.

``endless_batches`` is the plain loader that chapter 01 trains with. ``make_loader`` makes those of chapter 03: from
what a newcomer writes to what keeps a GPU busy, one cause changed at a time. All give the same batches for the same
seed, in the same order and with the same augmentation: so a run ends with the same loss, only sooner.

    file → read → [normalise, shift] → batch → [ahead of time, by a thread] → device → [normalise, shift] → step

Legend: B samples, 2 states (now, next), C channels, H × W grid points. Everything that comes out is float32.
"""

import bisect
import dataclasses
import itertools
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_convert, get_worker_info

from dltutorial.data import formats, sampling
from dltutorial.data.augment import device_augment, lean_augment, naive_augment
from dltutorial.data.sampling import Draws
from dltutorial.data.store import Split
from dltutorial.data.workers import worker_batches
from dltutorial.errors import RecipeError


class Pairs(Dataset):
    """Neighbouring snapshots of the same year, normalised with the statistics of the training years.

    Sample ``i`` is ``(x_CHW, y_CHW)``. A year of T snapshots gives T − 1 pairs; none spans two years.
    """

    def __init__(self, split: Split) -> None:
        self.split = split
        self._starts = [0, *itertools.accumulate(n - 1 for n in split.snapshots)]
        self._open: dict[tuple[int, int], formats.Year] = {}

    def __len__(self) -> int:
        """Pairs in all years."""
        return self._starts[-1]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Read and normalise a pair; a DataError if the file was damaged after the split was opened."""
        means_1C11, stds_1C11 = _statistics(self.split)
        both_2CHW = (self.raw(index) - means_1C11).div_(stds_1C11)
        return both_2CHW[0], both_2CHW[1]

    def raw(self, index: int) -> Tensor:
        """Two snapshots (2, C, H, W), read in one go, as they lie on disk: to look at, not to write to."""
        year, first = self.where(index)
        return torch.from_numpy(self.year(year).snapshots(first, 2))

    def where(self, index: int) -> tuple[int, int]:
        """The number of the year that holds a pair, and the pair's first snapshot in it; IndexError: no such pair."""
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        year = bisect.bisect_right(self._starts, index) - 1
        return year, index - self._starts[year]

    def year(self, year: int) -> formats.Year:
        """Open a year when it is first read: HDF5's state does not survive a fork, so each process opens its own."""
        key = os.getpid(), year
        if key not in self._open:
            self._open[key] = self.split.open_year(year)
        return self._open[key]

    def __getstate__(self) -> dict:
        """File handles do not travel to another process."""
        return self.__dict__ | {"_open": {}}


def endless_batches(
    pairs: Dataset, global_batch_size: int, *, roll: bool = False, workers: int = 0, **place: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (x_BCHW, y_BCHW) for ever; every epoch takes each pair at most once, in a new order.

    The same seed gives the same batches, whatever the number of workers. The rest of an epoch that does not fill a
    batch is left out.

    Args:
        pairs: samples (x_CHW, y_CHW).
        global_batch_size: B over all ranks; each rank gets its share.
        roll: shift each pair along longitude by a random number of grid points: the simulated planet looks the
            same from every longitude.
        workers: processes that load beside this one.
        place: seed, rank, world_size and skip, see ``sampling.endless``.

    Raises:
        DataError: fewer pairs than one batch takes.
    """
    n: int = len(pairs)  # type: ignore[arg-type]
    width = pairs[0][0].shape[-1] if roll and n else 0
    draws = sampling.endless(n, global_batch_size, width=width, **place)
    keys = (list(zip(indices, shifts, strict=True)) for indices, shifts in draws)
    for both_2BCHW in worker_batches(_Batches(pairs), keys, workers, default_convert):
        yield both_2BCHW[0], both_2BCHW[1]


class _Batches(Dataset):
    """Whole batches (2, B, C, H, W) of keys (index, shift): each pair is written once, shifted, to its place."""

    def __init__(self, pairs: Dataset) -> None:
        self.pairs = pairs

    def __getitems__(self, keys: list[tuple[int, int]]) -> Tensor:
        """A batch in memory of its own; torch's ``DataLoader`` asks for it in the process that loads."""
        both_2BCHW = torch.empty(0)
        own = type(self.pairs) is Pairs  # a subclass may give other samples, normalised already
        statistics = _statistics(self.pairs.split) if own else (torch.zeros(()), torch.ones(()))  # type: ignore[attr-defined]
        for place, (index, shift) in enumerate(keys):
            raw_2CHW = self.pairs.raw(index) if own else torch.stack(self.pairs[index])  # type: ignore[attr-defined]
            if not place:
                size = 2, len(keys), *raw_2CHW.shape[1:]
                both_2BCHW = raw_2CHW.new_empty(size if get_worker_info() is None else 0)
                if get_worker_info() is not None:  # shared while empty, as by torch's own collate: later is a copy more
                    n_bytes = math.prod(size) * raw_2CHW.element_size()
                    both_2BCHW.set_(torch.UntypedStorage._new_shared(n_bytes), 0, size)  # type: ignore[call-overload]
            lean_augment(raw_2CHW, shift, *statistics, both_2BCHW[:, place])
        return both_2BCHW


WAYS = ("naive", "open", "lean", "batched", "device")


@dataclass(frozen=True)
class LoaderConfig:
    """One loader.

    Attributes:
        way: from file to batch. Each has what those before it have:
            naive: opens the file for every sample; float64, a new array for every operation; samples are stacked;
            open: files stay open; lean: normalises and shifts in float32, in place;
            batched: reads into one block of memory that is used again (pinned for a GPU), in the order of the file;
            device: normalises and shifts a whole batch on the device.
        workers: processes that load beside the training process; from ``batched`` on there are none.
        prefetch: batches that a thread loads ahead.
    """

    way: str = "naive"
    workers: int = 0
    prefetch: int = 0

    def __post_init__(self) -> None:
        """Refuse, as a RecipeError, what does not fit together."""
        if self.way not in WAYS or self.workers < 0 or self.prefetch < 0:
            raise RecipeError(f"{self}: choose one of {', '.join(WAYS)}, and no negative number")
        if self.reaches("batched") and self.workers:
            raise RecipeError(f"a {self.way} loader reads in one thread; set workers=0, or take the lean one")

    def reaches(self, way: str) -> bool:
        """Whether it has what this way has."""
        return WAYS.index(self.way) >= WAYS.index(way)


LOADERS: Mapping[str, LoaderConfig] = MappingProxyType({
    **{way: LoaderConfig(way) for way in WAYS},
    "prefetch": LoaderConfig("batched", prefetch=2),
    "best": LoaderConfig("device", prefetch=2),
})  # fmt: skip


def loader_config(name: LoaderConfig | str) -> LoaderConfig:
    """The loader of that name. RecipeError: there is none."""
    if isinstance(name, LoaderConfig):
        return name
    if name not in LOADERS:
        raise RecipeError(f"no loader {name!r}; choose one of {', '.join(LOADERS)}")
    return LOADERS[name]


def make_loader(
    split: Split, batch_size: int, config: LoaderConfig | str = "best",
    *, roll: bool = False, device: str | torch.device = "cpu", **place: int,
) -> Iterator[tuple[Tensor, Tensor]]:  # fmt: skip
    """Batches (x_BCHW, y_BCHW) on ``device``, for ever; the same for every config.

    From ``batched`` on memory is used again: a batch is valid until the next one is asked for. ``close`` the iterator
    to end its thread or processes at once; dropping it does so too.

    Args:
        split: in any layout.
        batch_size: B over all ranks; each rank gets its share.
        config: the knobs, or a name in ``LOADERS``.
        roll, place: as for ``endless_batches``.
        device: where the batches are wanted.

    Raises:
        DataError: too few pairs; later also: damaged data, or a dead worker.
        RecipeError: a config, rank or size that cannot be.
    """
    device = torch.device(device)
    host = host_batches(split, batch_size, config, roll=roll, pin=device.type == "cuda", **place)
    return _delivered(host, split, loader_config(config), device)


@dataclass
class HostBatch:
    """A batch in this machine's memory.

    Attributes:
        both_2BCHW: both states of every pair; raw if the device is to normalise and shift them.
        shift_B: by how much each raw pair is to be shifted; None: not at all.
        uploaded: when a copy of it to a GPU is done; None on a CPU.
    """

    both_2BCHW: Tensor
    shift_B: Tensor | None = None
    uploaded: "torch.cuda.Event | None" = None


def host_batches(
    split: Split, batch_size: int, config: LoaderConfig | str, *, roll: bool = False, pin: bool = False, **place: int
) -> Iterator[HostBatch]:
    """The part of a loader that runs on the host: all but the way to the device and the work there.

    Arguments and errors as for ``make_loader``; with ``pin`` blocks are in pinned memory, which a GPU copies by itself.
    """
    config, pairs = loader_config(config), Pairs(split)
    draws = sampling.endless(len(pairs), batch_size, width=split.shape[-1] if roll else 0, **place)
    if config.reaches("batched"):
        size = -(-(batch_size - place.get("rank", 0)) // place.get("world_size", 1))
        blocks = [torch.empty(2, size, *split.shape, pin_memory=pin) for _ in range(config.prefetch + 2)]
        slots = [HostBatch(block, uploaded=torch.cuda.Event() if pin else None) for block in blocks]
        batches = _buffered(pairs, draws, config, slots)
    else:
        batches = _stacked(pairs, draws, config)
    return prefetched(batches, config.prefetch) if config.prefetch else batches


def prefetched(items: Iterator, depth: int = 2) -> Iterator:
    """Yield what ``items`` yields, made by a thread that is up to ``depth`` items ahead.

    Loading overlaps with the step as far as both let go of Python's lock: reading files and large array operations do.
    An error of ``items`` is raised here, in its place in the order. When the consumer stops early (closes the
    generator, or drops it), the thread ends with the item that it makes, and ``items`` are closed. At any time at most
    ``depth + 2`` items exist: one in use, ``depth`` that wait, one in the making.
    """
    end = object()
    with ThreadPoolExecutor(1, "prefetch") as thread:
        ahead = deque(thread.submit(next, items, end) for _ in range(depth + 1))
        try:
            while (item := ahead.popleft().result()) is not end:
                ahead.append(thread.submit(next, items, end))
                yield item
                del item  # so that it does not live on while the next one is waited for
        finally:
            thread.shutdown(cancel_futures=True)
            getattr(items, "close", lambda: None)()


class _Items(Dataset):
    """What is stacked to a batch: ``items[index, shift]`` is a pair (2, C, H, W), normalised and shifted."""

    def __init__(self, pairs: Pairs, config: LoaderConfig) -> None:
        self.pairs, self.config = pairs, config

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        index, shift = key
        split = self.pairs.split
        if self.config.reaches("open"):
            raw_2CHW = self.pairs.raw(index)
        else:
            year, first = self.pairs.where(index)
            with split.open_year(year) as opened:
                raw_2CHW = torch.from_numpy(opened.snapshots(first, 2))
        if not self.config.reaches("lean"):
            return torch.from_numpy(naive_augment(raw_2CHW.numpy(), shift, split.means_1C11, split.stds_1C11))
        both_2CHW = torch.empty(raw_2CHW.shape)
        lean_augment(raw_2CHW, shift, *_statistics(split), both_2CHW)
        return both_2CHW


def _stacked(pairs: Pairs, draws: Draws, config: LoaderConfig) -> Iterator[HostBatch]:
    """Batches stacked from single pairs, here or in worker processes."""
    keys = (list(zip(indices, shifts, strict=True)) for indices, shifts in draws)
    for both_B2CHW in worker_batches(_Items(pairs, config), keys, config.workers):
        yield HostBatch(both_B2CHW.transpose(0, 1))


def _buffered(pairs: Pairs, draws: Draws, config: LoaderConfig, slots: list[HostBatch]) -> Iterator[HostBatch]:
    """Batches read into one of a few slots after another, each pair straight to its place."""
    statistics = _statistics(pairs.split)
    for slot, (indices, shifts) in zip(itertools.cycle(slots), draws, strict=False):
        if slot.uploaded is not None:
            slot.uploaded.synchronize()  # the copy of the batch that was here before
        both_2BCHW = slot.both_2BCHW[:, : len(indices)]
        raw_2BCHW = both_2BCHW.numpy()
        for index, place in sorted(zip(indices, itertools.count(), strict=False)):  # in the order of the file
            if config.way == "device":
                number, first = pairs.where(index)
                pairs.year(number).read_into(first, raw_2BCHW[:, place])
            else:
                lean_augment(pairs.raw(index), shifts[place], *statistics, both_2BCHW[:, place])
        yield dataclasses.replace(slot, shift_B=torch.tensor(shifts) if any(shifts) else None)


def _statistics(split: Split, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    return torch.from_numpy(split.means_1C11).to(device), torch.from_numpy(split.stds_1C11).to(device)


def _delivered(
    host: Iterator[HostBatch], split: Split, config: LoaderConfig, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Bring batches to the device; there, normalise and shift those that are raw.

    On a GPU copies and augmentation run in a stream of their own, beside the step that was launched before.
    """
    statistics = _statistics(split, device)
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    try:
        for batch in host:
            with torch.cuda.stream(stream):  # None: nothing changes
                both_2BCHW = batch.both_2BCHW.to(device, non_blocking=True)
                if batch.uploaded is not None:
                    batch.uploaded.record(stream)
                if config.way == "device":
                    shift_B = None if batch.shift_B is None else batch.shift_B.to(device, non_blocking=True)
                    both_2BCHW = device_augment(both_2BCHW, shift_B, *statistics)
            if stream is not None:
                torch.cuda.current_stream(device).wait_stream(stream)
                both_2BCHW.record_stream(torch.cuda.current_stream(device))
            yield both_2BCHW[0], both_2BCHW[1]
    finally:
        host.close()  # type: ignore[attr-defined]
