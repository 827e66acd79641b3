"""The ladder of loaders: from what a newcomer writes to what keeps a GPU busy, one cause changed at a time.

In: a split in any layout, a batch size, a ``Feed`` (the knobs of one loader) or its name. Out: batches
(x_BCHW, y_BCHW) for ever. All loaders give the same batches for the same seed, in the same order and with the same
augmentation: so a run ends with the same loss, only sooner.

    file → read → [normalise, shift] → batch → [ahead of time, by a thread] → device → [normalise, shift] → step

Legend: B samples, 2 states (now, next), C channels, H × W grid points. Everything that comes out is float32.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from dltutorial.data import formats, sampling
from dltutorial.data.augment import device_augment, lean_augment, naive_augment
from dltutorial.data.feed import Feed, find
from dltutorial.data.loaders import Pairs, worker_batches
from dltutorial.data.prefetch import prefetched
from dltutorial.data.store import Split


def make_loader(
    split: Split,
    batch_size: int,
    feed: Feed | str = "best",
    *,
    seed: int = 0,
    roll: bool = False,
    device: str | torch.device = "cpu",
    rank: int = 0,
    world_size: int = 1,
    skip: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (x_BCHW, y_BCHW) on ``device``, for ever; the same for every feed.

    A buffered loader uses its memory again: a batch is valid until the next one is asked for. ``close`` the iterator
    to end its thread or processes at once; dropping it does so too.

    Args:
        split: in any layout.
        batch_size: B over all ranks; each rank gets its share.
        feed: the knobs, or a name in ``FEEDS``.
        seed: of the order and of the augmentation.
        roll: shift each pair along longitude.
        device: where the batches are wanted.
        rank, world_size: this process among those that share each batch.
        skip: batches to leave out at the start, which a resumed run has already seen.

    Raises:
        DataError: too few pairs; later also: damaged data, or a dead worker.
        RecipeError: a feed, rank or size that cannot be.
    """
    feed, device = find(feed), torch.device(device)
    host = host_batches(
        split,
        batch_size,
        feed,
        seed=seed,
        roll=roll,
        rank=rank,
        world_size=world_size,
        skip=skip,
        pin=device.type == "cuda",
    )
    return _delivered(host, split, feed, device)


@dataclass
class Host:
    """A batch in this machine's memory.

    Attributes:
        both_2BCHW: both states of every pair; raw if the device is to normalise and shift them.
        shift_B: by how much the device is to shift each pair; None if it is not to.
        uploaded: when a copy of it to a GPU is done; None on a CPU.
    """

    both_2BCHW: Tensor
    shift_B: Tensor | None = None
    uploaded: "torch.cuda.Event | None" = None


def host_batches(
    split: Split,
    batch_size: int,
    feed: Feed | str,
    *,
    seed: int = 0,
    roll: bool = False,
    rank: int = 0,
    world_size: int = 1,
    skip: int = 0,
    pin: bool = False,
) -> Iterator[Host]:
    """The part of a loader that runs on the host: all but the way to the device and the work there.

    Raises:
        DataError, RecipeError: as ``make_loader``.
    """
    feed, pairs = find(feed), Pairs(split)
    width = split.shape[-1] if roll else 0
    draws = sampling.endless(
        len(pairs), batch_size, seed=seed, width=width, rank=rank, world_size=world_size, skip=skip
    )
    if feed.buffered:
        size = -(-(batch_size - rank) // world_size)
        batches = _buffered(pairs, draws, feed, _slots(feed.prefetch + 2, size, split.shape, pin))
    else:
        batches = _stacked(pairs, draws, feed)
    return prefetched(batches, feed.prefetch) if feed.prefetch else batches


class Items(Dataset):
    """What is stacked to a batch: ``items[index, shift]`` is a pair (2, C, H, W), normalised and shifted."""

    def __init__(self, pairs: Pairs, feed: Feed):
        self.pairs, self.feed = pairs, feed

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        """Read one pair as the feed says.

        Raises:
            DataError: it cannot be read.
        """
        index, shift = key
        split = self.pairs.split
        year, first = self.pairs.where(index)
        if self.feed.keep_open:
            raw_2CHW = self.pairs.year(year).snapshots(first, 2)
        else:
            with formats.open_year(split.files[year]) as opened:
                raw_2CHW = opened.snapshots(first, 2)
        if not self.feed.lean:
            return torch.from_numpy(naive_augment(raw_2CHW, shift, split.means_1C11, split.stds_1C11))
        both_2CHW = torch.empty(raw_2CHW.shape)
        lean_augment(torch.from_numpy(raw_2CHW), shift, *_statistics(split), both_2CHW)
        return both_2CHW


def _stacked(pairs: Pairs, draws: Iterator, feed: Feed) -> Iterator[Host]:
    """Batches stacked from single pairs, here or in worker processes."""
    keys = (list(zip(indices, shifts, strict=True)) for indices, shifts in draws)
    for both_B2CHW in worker_batches(Items(pairs, feed), keys, feed.workers):
        yield Host(both_B2CHW.transpose(0, 1))


def _slots(count: int, size: int, shape: tuple[int, ...], pin: bool) -> list[Host]:
    """Blocks of memory for a batch each; pinned memory is copied to a GPU without a detour, and without waiting."""
    blocks = [torch.empty(2, size, *shape, pin_memory=pin) for _ in range(count)]
    return [Host(block, uploaded=torch.cuda.Event() if pin else None) for block in blocks]


def _buffered(pairs: Pairs, draws: Iterator, feed: Feed, slots: list[Host]) -> Iterator[Host]:
    """Batches read into one of a few slots after another, each pair straight to its place."""
    statistics = _statistics(pairs.split)
    for slot, (indices, shifts) in zip(itertools.cycle(slots), draws, strict=False):
        if slot.uploaded is not None:
            slot.uploaded.synchronize()  # the copy of the batch that was here before
        both_2BCHW = slot.both_2BCHW[:, : len(indices)]
        raw_2BCHW = both_2BCHW.numpy()
        for index, place in sorted(zip(indices, itertools.count())):  # in the order of the file
            number, first = pairs.where(index)
            if feed.on_device:
                pairs.year(number).read_into(first, raw_2BCHW[:, place])
            else:
                raw_2CHW = torch.from_numpy(pairs.year(number).snapshots(first, 2))
                lean_augment(raw_2CHW, shifts[place], *statistics, both_2BCHW[:, place])
        rolls = feed.on_device and any(shifts)
        yield dataclasses.replace(slot, shift_B=torch.tensor(shifts) if rolls else None)


def _statistics(split: Split, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Means and deviations, (1, C, 1, 1) each."""
    return torch.from_numpy(split.means_1C11).to(device), torch.from_numpy(split.stds_1C11).to(device)


def _delivered(host: Iterator[Host], split: Split, feed: Feed, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
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
                if feed.on_device:
                    shift_B = None if batch.shift_B is None else batch.shift_B.to(device, non_blocking=True)
                    both_2BCHW = device_augment(both_2BCHW, shift_B, *statistics)
            if stream is not None:
                torch.cuda.current_stream(device).wait_stream(stream)
                both_2BCHW.record_stream(torch.cuda.current_stream(device))
            yield both_2BCHW[0], both_2BCHW[1]
    finally:
        host.close()
