"""From files to batches: pairs (state now, next state), normalised, shuffled again in every epoch.

``endless_batches`` is the default loader. ``make_loader`` makes the loaders of chapter 03, from a newcomer's loader to
one that keeps a GPU busy, with one change at a time. For the same seed all of them give the same batches, in the same
order and with the same augmentation. Therefore a training run ends with the same loss, only sooner.

    file → read → [normalise, shift] → batch → [read ahead by a thread] → device → [normalise, shift] → step

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

    Sample ``i`` is ``(x_CHW, y_CHW)``. A year of T snapshots gives T − 1 pairs, because no pair spans two years.

    Attributes:
        split: the files, and the statistics.
        means_1C11, stds_1C11: the statistics as tensors.
    """

    def __init__(self, split: Split) -> None:
        self.split = split
        self.means_1C11 = torch.from_numpy(split.means_1C11)
        self.stds_1C11 = torch.from_numpy(split.stds_1C11)
        self._starts = [0, *itertools.accumulate(n - 1 for n in split.snapshots)]  # the first pair of each year
        self._open: dict[tuple[int, int], formats.Year] = {}

    def __len__(self) -> int:
        """Pairs in all years."""
        return self._starts[-1]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Read and normalise a pair."""
        both_2CHW = (self.raw(index) - self.means_1C11).div_(self.stds_1C11)
        return both_2CHW[0], both_2CHW[1]

    def raw(self, index: int) -> Tensor:
        """Two snapshots (2, C, H, W) in one read, not normalised. Do not write to the result."""
        number, first = self.where(index)
        return torch.from_numpy(self.year(number).snapshots(first, 2))

    def where(self, index: int) -> tuple[int, int]:
        """The number of the year that holds a pair, and the pair's first snapshot in this year.

        Raises:
            IndexError: There is no such pair. (Python's ``for`` and ``DataLoader`` rely on it.)
        """
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        number = bisect.bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]

    def year(self, number: int) -> formats.Year:
        """The open year. Each process opens it again, because HDF5's state does not survive a fork."""
        key = os.getpid(), number
        if key not in self._open:
            self._open[key] = self.split.open_year(number)
        return self._open[key]

    def __getstate__(self) -> dict:
        """What is sent to another process: everything but the open files."""
        return self.__dict__ | {"_open": {}}


def endless_batches(
    pairs: Pairs, global_batch_size: int, *, roll: bool = False, workers: int = 0, pin: bool = False, **place: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches (x_BCHW, y_BCHW). An epoch takes each pair at most once, in a new order.

    The same seed gives the same batches, whatever the number of workers.

    Args:
        pairs: the samples.
        global_batch_size: B over all ranks. Each rank gets its part.
        roll: shift each pair along longitude by a random number of grid points, because the simulated planet looks
            the same from every longitude.
        workers: number of processes that load; with 0 this process loads.
        pin: give batches in pinned memory, so that ``x.to(device, non_blocking=True)`` does not wait for the copy.
        place: seed, rank, world_size and skip, see ``sampling.endless``.

    Raises:
        DataError: There are fewer pairs than one batch needs.
    """
    width = pairs.split.shape[-1] if roll else 0
    draws = sampling.endless(len(pairs), global_batch_size, width=width, **place)
    keys = (list(zip(indices, shifts, strict=True)) for indices, shifts in draws)
    for both_2BCHW in worker_batches(_Batches(pairs, pin), keys, workers, default_convert, pin):
        yield both_2BCHW[0], both_2BCHW[1]


class _Batches(Dataset):
    """Complete batches (2, B, C, H, W): each pair is normalised, shifted, and written once, to its final place."""

    def __init__(self, pairs: Pairs, pin: bool) -> None:
        self.pairs = pairs
        self.pin = pin

    def __getitems__(self, keys: list[tuple[int, int]]) -> Tensor:
        """The batch of these keys (index, shift). torch's ``DataLoader`` calls this in the process that loads."""
        both_2BCHW = self._empty((2, len(keys), *self.pairs.split.shape))
        for place, (index, shift) in enumerate(keys):
            raw_2CHW = self.pairs.raw(index)
            lean_augment(raw_2CHW, shift, self.pairs.means_1C11, self.pairs.stds_1C11, both_2BCHW[:, place])
        return both_2BCHW

    def _empty(self, shape: tuple[int, ...]) -> Tensor:
        """Memory for a batch. That of a worker is shared, so that the training process reads it without a copy."""
        if get_worker_info() is None:
            return torch.empty(shape, pin_memory=self.pin)
        # As in torch's own collate. The public ``share_memory_`` would copy the memory once more.
        storage = torch.UntypedStorage._new_shared(4 * math.prod(shape))  # 4 bytes of a float32
        return torch.empty(0).set_(storage, 0, shape)  # type: ignore[call-overload]


WAYS = ("naive", "open", "lean", "batched", "device")


@dataclass(frozen=True)
class LoaderConfig:
    """One loader of chapter 03.

    Attributes:
        way: from the file to the batch. Each has the improvements of those before it:
            naive: opens the file for every sample; float64, a new array for each operation; samples are stacked.
            open: files stay open.
            lean: normalises and shifts in float32, in place.
            batched: reads into one buffer that is reused (pinned for a GPU), in the order of the file.
            device: normalises and shifts a complete batch on the device.
        workers: number of processes that load. From ``batched`` on there are none.
        prefetch: number of batches that a thread loads ahead.
    """

    way: str = "naive"
    workers: int = 0
    prefetch: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            RecipeError: There is no such way, a number is negative, or the values contradict each other.
        """
        if self.way not in WAYS or self.workers < 0 or self.prefetch < 0:
            raise RecipeError(f"{self}: choose one of {', '.join(WAYS)}, and no negative number")
        if self.reaches("batched") and self.workers:
            raise RecipeError(f"a {self.way} loader reads in one thread; set workers=0, or take the lean one")

    def reaches(self, way: str) -> bool:
        """Whether this loader has the improvement of ``way``."""
        return WAYS.index(self.way) >= WAYS.index(way)


LOADERS: Mapping[str, LoaderConfig] = MappingProxyType(
    {
        **{way: LoaderConfig(way) for way in WAYS},
        "prefetch": LoaderConfig("batched", prefetch=2),
        "best": LoaderConfig("device", prefetch=2),
    }
)


def loader_config(name: LoaderConfig | str) -> LoaderConfig:
    """The loader of that name; a ``LoaderConfig`` is returned as it is.

    Raises:
        RecipeError: There is no such loader.
    """
    if isinstance(name, LoaderConfig):
        return name
    if name not in LOADERS:
        raise RecipeError(f"no loader {name!r}; choose one of {', '.join(LOADERS)}")
    return LOADERS[name]


def make_loader(
    split: Split,
    batch_size: int,
    config: LoaderConfig | str = "best",
    *,
    roll: bool = False,
    device: str | torch.device = "cpu",
    **place: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches (x_BCHW, y_BCHW) on ``device``; the same for every config.

    From ``batched`` on, memory is reused, so a batch is valid until the next one is requested. ``close`` the iterator
    to end its thread or its processes.

    Args:
        split: in any layout.
        batch_size: B over all ranks. Each rank gets its part.
        config: the loader, or its name in ``LOADERS``.
        roll, place: as for ``endless_batches``.
        device: where the batches are needed.

    Raises:
        DataError: There are fewer pairs than one batch needs.
        RecipeError: There is no such loader or rank.
    """
    device = torch.device(device)
    config = loader_config(config)
    host = host_batches(split, batch_size, config, roll=roll, pin=device.type == "cuda", **place)
    return _delivered(host, Pairs(split), config, device)


@dataclass
class HostBatch:
    """A batch in the memory of the host.

    Attributes:
        both_2BCHW: both states of every pair. They are raw if the device normalises and shifts them.
        shift_B: by how much each raw pair is shifted; None if it is not.
        uploaded: completes when the copy to a GPU is complete; None on a CPU.
    """

    both_2BCHW: Tensor
    shift_B: Tensor | None = None
    uploaded: "torch.cuda.Event | None" = None


def host_batches(
    split: Split, batch_size: int, config: LoaderConfig | str, *, roll: bool = False, pin: bool = False, **place: int
) -> Iterator[HostBatch]:
    """The part of a loader that runs on the host, without the copy to the device and the work there.

    Arguments and errors are those of ``make_loader``. With ``pin``, buffers are in pinned memory.
    """
    config = loader_config(config)
    pairs = Pairs(split)
    draws = sampling.endless(len(pairs), batch_size, width=split.shape[-1] if roll else 0, **place)
    if config.reaches("batched"):
        n_slots = config.prefetch + 2  # those that wait, one in use, one that is being filled
        size_of_rank = len(range(place.get("rank", 0), batch_size, place.get("world_size", 1)))
        slots = [_new_slot(size_of_rank, split, pin) for _ in range(n_slots)]
        batches = _buffered(pairs, draws, config, slots)
    else:
        batches = _stacked(pairs, draws, config, pin)
    if config.prefetch:
        batches = prefetched(batches, config.prefetch)
    return batches


def _new_slot(batch_size: int, split: Split, pin: bool) -> HostBatch:
    """Memory for one batch, which is used again and again."""
    both_2BCHW = torch.empty(2, batch_size, *split.shape, pin_memory=pin)
    return HostBatch(both_2BCHW, uploaded=torch.cuda.Event() if pin else None)


def prefetched(items: Iterator, depth: int = 2) -> Iterator:
    """Yield the items of an iterator, which a thread computes up to ``depth`` items ahead.

    Loading overlaps with the step as far as both release the GIL. Reading files and large array operations release it.
    An error of ``items`` is raised in its place in the order. If the consumer stops early, the thread ends after the
    current item, and ``items`` is closed. At most ``depth + 2`` items exist at any time: one in use, ``depth`` that
    wait, and one that is being computed.
    """
    end = object()
    with ThreadPoolExecutor(1, "prefetch") as thread:
        ahead = deque(thread.submit(next, items, end) for _ in range(depth + 1))
        try:
            while (item := ahead.popleft().result()) is not end:
                ahead.append(thread.submit(next, items, end))
                yield item
                del item  # otherwise it would stay in memory while the next one is awaited
        finally:
            thread.shutdown(cancel_futures=True)
            if hasattr(items, "close"):
                items.close()


class _Items(Dataset):
    """Single pairs that are stacked to a batch: ``items[index, shift]`` is (2, C, H, W), normalised and shifted."""

    def __init__(self, pairs: Pairs, config: LoaderConfig) -> None:
        self.pairs = pairs
        self.config = config

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        index, shift = key
        raw_2CHW = self._read(index)
        if not self.config.reaches("lean"):
            split = self.pairs.split
            return torch.from_numpy(naive_augment(raw_2CHW.numpy(), shift, split.means_1C11, split.stds_1C11))
        both_2CHW = torch.empty(raw_2CHW.shape)
        lean_augment(raw_2CHW, shift, self.pairs.means_1C11, self.pairs.stds_1C11, both_2CHW)
        return both_2CHW

    def _read(self, index: int) -> Tensor:
        if self.config.reaches("open"):
            return self.pairs.raw(index)
        number, first = self.pairs.where(index)
        with self.pairs.split.open_year(number) as year:
            return torch.from_numpy(year.snapshots(first, 2))


def _stacked(pairs: Pairs, draws: Draws, config: LoaderConfig, pin: bool) -> Iterator[HostBatch]:
    """Batches that are stacked from single pairs, in this process or in workers."""
    keys = (list(zip(indices, shifts, strict=True)) for indices, shifts in draws)
    for both_B2CHW in worker_batches(_Items(pairs, config), keys, config.workers, pin=pin):
        yield HostBatch(both_B2CHW.transpose(0, 1))


def _buffered(pairs: Pairs, draws: Draws, config: LoaderConfig, slots: list[HostBatch]) -> Iterator[HostBatch]:
    """Batches that are read into one slot after another, each pair straight to its final place."""
    for slot, (indices, shifts) in zip(itertools.cycle(slots), draws, strict=False):
        if slot.uploaded is not None:
            slot.uploaded.synchronize()  # wait for the copy of the batch that used this slot before
        both_2BCHW = slot.both_2BCHW
        raw_2BCHW = both_2BCHW.numpy()
        in_the_order_of_the_file = sorted(range(len(indices)), key=indices.__getitem__)
        for place in in_the_order_of_the_file:
            if config.way == "device":
                number, first = pairs.where(indices[place])
                pairs.year(number).read_into(first, raw_2BCHW[:, place])
            else:
                raw_2CHW = pairs.raw(indices[place])
                lean_augment(raw_2CHW, shifts[place], pairs.means_1C11, pairs.stds_1C11, both_2BCHW[:, place])
        shift_B = torch.tensor(shifts) if any(shifts) else None
        yield dataclasses.replace(slot, shift_B=shift_B)


def _delivered(
    host: Iterator[HostBatch], pairs: Pairs, config: LoaderConfig, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Copy batches to the device. Normalise and shift them there if they are raw.

    On a GPU, copies and augmentation run in a CUDA stream of their own, at the same time as the previous step.
    """
    means_1C11, stds_1C11 = pairs.means_1C11.to(device), pairs.stds_1C11.to(device)
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    try:
        for batch in host:
            with torch.cuda.stream(stream):  # does nothing if the stream is None
                both_2BCHW = batch.both_2BCHW.to(device, non_blocking=True)
                if batch.uploaded is not None:
                    batch.uploaded.record(stream)
                if config.way == "device":
                    shift_B = batch.shift_B
                    if shift_B is not None:
                        shift_B = shift_B.to(device, non_blocking=True)
                    both_2BCHW = device_augment(both_2BCHW, shift_B, means_1C11, stds_1C11)
            if stream is not None:
                torch.cuda.current_stream(device).wait_stream(stream)
                both_2BCHW.record_stream(torch.cuda.current_stream(device))
            yield both_2BCHW[0], both_2BCHW[1]
    finally:
        host.close()  # type: ignore[attr-defined]
