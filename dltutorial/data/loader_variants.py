"""The loaders of chapter 03, from a newcomer's loader to one that keeps a GPU busy, with one change at a time.

    file → read → [normalise, shift] → batch → [wait in a queue] → copy to the device → [normalise, shift] → step

For the same seed all of them yield the same batches. Therefore a training run with any of them ends with the same loss,
only at another time. ``loaders.endless_batches`` is the loader for your own work.

In: a ``Split`` in any layout, and the name of a loader. Out: endless batches ``(x_BCHW, y_BCHW)``, float32, normalised
and shifted, on the device.

Legend: B samples, 2 states (now, next), C channels, H rows (latitude), W columns (longitude).
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dltutorial.data import loaders, sampling
from dltutorial.data.augment import augment_batch, augment_into, naive_augment
from dltutorial.data.loaders import Pairs
from dltutorial.data.store import Split


@dataclass(frozen=True)
class LoaderConfig:
    """What a loader does better than a newcomer's loader.

    Attributes:
        files_stay_open: files are opened once, and not for every sample.
        float32_in_place: samples are normalised and shifted in float32 and in place, and not in float64 with a new
            array for each operation.
        one_buffer: samples are read into one buffer that is used again, pinned for a GPU, in the order of the file. The
            other loaders read single samples and stack them.
        augment_on_device: the device normalises and shifts complete batches.
        prefetch: number of batches that a thread loads ahead.
    """

    files_stay_open: bool = False
    float32_in_place: bool = False
    one_buffer: bool = False
    augment_on_device: bool = False
    prefetch: int = 0


NAIVE = LoaderConfig()
OPEN = dataclasses.replace(NAIVE, files_stay_open=True)
FLOAT32 = dataclasses.replace(OPEN, float32_in_place=True)
BATCHED = dataclasses.replace(FLOAT32, one_buffer=True)
DEVICE = dataclasses.replace(BATCHED, augment_on_device=True)

LOADERS = {
    "naive": NAIVE,
    "open": OPEN,
    "float32": FLOAT32,
    "batched": BATCHED,
    "device": DEVICE,
    "prefetch": dataclasses.replace(BATCHED, prefetch=2),
    "best": dataclasses.replace(DEVICE, prefetch=2),
}


@dataclass
class HostBatch:
    """A batch in the memory of the host.

    Attributes:
        both_2BCHW: both states of each sample. If the device normalises and shifts them, these are the values of the
            file.
        shift_B: by how many columns the device must shift each sample; None if it must not.
        copied: a GPU records this event when its copy of the batch is complete; None on a CPU.
    """

    both_2BCHW: Tensor
    shift_B: Tensor | None = None
    copied: "torch.cuda.Event | None" = None


def make_loader(
    split: Split,
    batch_size: int,
    name: str = "best",
    *,
    roll: bool = False,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield endless batches (x_BCHW, y_BCHW) on the device. They do not depend on ``name``.

    A loader with one buffer uses its memory again, so a batch is valid until the next batch is requested. ``close`` the
    iterator to end its thread.

    Args:
        split: in any layout.
        batch_size: B.
        name: one of ``LOADERS``.
        roll: shift each sample along longitude by a random number of grid points.
        seed: of the order and of the shifts.
        device: where the batches are needed.

    Raises:
        DataError: There are fewer samples than one batch needs.
    """
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    config = LOADERS[name]
    pairs = Pairs(split)
    means_1C11 = pairs.means_1C11.to(device)
    stds_1C11 = pairs.stds_1C11.to(device)
    # On a GPU, a stream of its own copies and augments a batch while the GPU computes the step before.
    stream = torch.cuda.Stream(device) if on_gpu else None
    host = host_batches(split, batch_size, name, roll=roll, seed=seed, pin=on_gpu)
    with contextlib.closing(host) as batches:  # type: ignore[type-var]
        for batch in batches:
            with torch.cuda.stream(stream):  # without a stream this does nothing
                both_2BCHW = batch.both_2BCHW.to(device, non_blocking=True)
                if batch.copied is not None:
                    batch.copied.record(stream)
                if config.augment_on_device:
                    shift_B = batch.shift_B
                    if shift_B is not None:
                        shift_B = shift_B.to(device, non_blocking=True)
                    both_2BCHW = augment_batch(both_2BCHW, shift_B, means_1C11, stds_1C11)
            if stream is not None:
                step_stream = torch.cuda.current_stream(device)
                step_stream.wait_stream(stream)
                both_2BCHW.record_stream(step_stream)  # the memory is not free before the step has used it
            yield both_2BCHW[0], both_2BCHW[1]


def host_batches(
    split: Split, batch_size: int, name: str, *, roll: bool = False, seed: int = 0, pin: bool = False
) -> Iterator[HostBatch]:
    """Yield endless batches in the memory of the host: the part of a loader before the copy to the device.

    Args:
        split, batch_size, name, roll, seed: as in ``make_loader``.
        pin: use pinned memory.
    """
    config = LOADERS[name]
    pairs = Pairs(split)
    order = sampling.endless(len(pairs), batch_size, seed=seed, width=split.shape[-1] if roll else 0)
    if config.one_buffer:
        n_buffers = config.prefetch + 2  # those that wait, the one in use, and the one that is being filled
        buffers = [_new_buffer(split, batch_size, pin) for _ in range(n_buffers)]
        batches = _buffered(pairs, order, config, buffers)
    else:
        batches = _stacked(pairs, order, config, pin)
    if config.prefetch > 0:
        batches = loaders.prefetched(batches, config.prefetch)
    return batches


def _stacked(
    pairs: Pairs, order: Iterator[tuple[list[int], list[int]]], config: LoaderConfig, pin: bool
) -> Iterator[HostBatch]:
    """Read single samples and stack them to a batch, which copies every sample once more."""
    for indices, shifts in order:
        samples = [read_sample(pairs, index, shift, config) for index, shift in zip(indices, shifts, strict=True)]
        both_2BCHW = torch.stack(samples, dim=1)
        if pin:
            both_2BCHW = both_2BCHW.pin_memory()
        yield HostBatch(both_2BCHW)


def read_sample(pairs: Pairs, index: int, shift: int, config: LoaderConfig) -> Tensor:
    """Read one sample, normalised and shifted, (2, C, H, W)."""
    if config.files_stay_open:
        raw_2CHW = pairs.raw(index)
    else:
        year_number, first = pairs.where(index)
        with pairs.split.open_year(year_number) as year:
            raw_2CHW = torch.from_numpy(year.snapshots(first, 2))
    if config.float32_in_place:
        both_2CHW = torch.empty(raw_2CHW.shape)
        augment_into(both_2CHW, raw_2CHW, shift, pairs.means_1C11, pairs.stds_1C11)
        return both_2CHW
    return torch.from_numpy(naive_augment(raw_2CHW.numpy(), shift, pairs.split.means_1C11, pairs.split.stds_1C11))


def _new_buffer(split: Split, batch_size: int, pin: bool) -> HostBatch:
    """Allocate the memory of one batch."""
    both_2BCHW = torch.empty(2, batch_size, *split.shape, pin_memory=pin)
    if pin:
        return HostBatch(both_2BCHW, copied=torch.cuda.Event())
    return HostBatch(both_2BCHW)


def _buffered(
    pairs: Pairs, order: Iterator[tuple[list[int], list[int]]], config: LoaderConfig, buffers: list[HostBatch]
) -> Iterator[HostBatch]:
    """Read into one buffer after another, each sample directly to its place in the batch."""
    for buffer, (indices, shifts) in zip(itertools.cycle(buffers), order, strict=False):
        if buffer.copied is not None:
            buffer.copied.synchronize()  # the GPU may still copy the batch that was in this buffer before
        positions_in_file_order = sorted(range(len(indices)), key=lambda position: indices[position])
        for position in positions_in_file_order:
            both_2CHW = buffer.both_2BCHW[:, position]
            if config.augment_on_device:
                year_number, first = pairs.where(indices[position])
                pairs.year(year_number).read_into(first, both_2CHW.numpy())
            else:
                raw_2CHW = pairs.raw(indices[position])
                augment_into(both_2CHW, raw_2CHW, shifts[position], pairs.means_1C11, pairs.stds_1C11)
        shift_B = torch.tensor(shifts) if any(shifts) else None
        yield dataclasses.replace(buffer, shift_B=shift_B)
