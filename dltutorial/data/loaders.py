"""Load training data: from files on disk to endless batches.

A sample is a pair of neighbouring snapshots. The first one is the state now, which is the input x. The second one is
the state one snapshot later, which is the target y. The table lists the steps from the disk to the training loop, and
where each of them is. All these modules are in ``dltutorial.data``.

    step                                                                        module          name
    Choose the samples of each batch in random order, divided among the ranks.  sampling        endless_batch_sampler
    Find the file of a sample, and open it.                                     loaders         SnapshotPairs
    Read the two snapshots of the sample from this file.                        formats         Year
    Normalise the sample, and shift it along longitude.                         augment         augment_into
    Write all samples of a batch to one array.                                  loaders         BatchReader
    Let workers read batches ahead, and end the workers after the training.     loader_workers  iterate_then_end_workers
    Combine these steps, and yield one batch after another.                     loaders         endless_batches

The input is a ``Split`` of the module ``store``, which knows the files and the statistics. The output is one batch
after another. A batch is two tensors, x_BCHW and y_BCHW, float32, in the memory of the CPU. The values are normalised.
So a value says by how many standard deviations of its channel it is above the mean of its channel.

Source: https://docs.pytorch.org/docs/stable/data.html.

Legend: B samples, 2 states (now, next), C channels, H rows (latitude), W columns (longitude), 1 a dimension of length
one, for broadcasting.
"""

import bisect
import itertools
import math
import os
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_convert, get_worker_info

from dltutorial.data import formats, sampling
from dltutorial.data.augment import augment_into
from dltutorial.data.loader_workers import ignore_stop_signals, iterate_then_end_workers
from dltutorial.data.store import Split


class SnapshotPairs(Dataset):
    """All samples of a split. Sample ``i`` is ``(x_CHW, y_CHW)``, normalised with the statistics of the training years.

    A year of T snapshots gives T - 1 samples, because no sample spans two years.

    Attributes:
        split: The files, and the statistics.
        means_1C11, stds_1C11: The mean and the standard deviation of each channel, in SI units.
    """

    def __init__(self, split: Split) -> None:
        self.split = split
        self.means_1C11 = torch.from_numpy(split.means_1C11)
        self.stds_1C11 = torch.from_numpy(split.stds_1C11)
        samples_per_year = [n_snapshots - 1 for n_snapshots in split.snapshots]
        # The index of the first sample of each year, and at the end the number of all samples.
        self._first_of_year = [0, *itertools.accumulate(samples_per_year)]
        self._open_years: dict[tuple[int, int], formats.Year] = {}

    def __len__(self) -> int:
        """Return the number of samples in all years."""
        return self._first_of_year[-1]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Read one sample and normalise it. The unit of the values is the standard deviation of their channel.

        ``endless_batches`` does not use this method. There, ``BatchReader`` reads and normalises complete batches.
        """
        both_2CHW = (self.read_raw(index) - self.means_1C11) / self.stds_1C11
        return both_2CHW[0], both_2CHW[1]

    def read_raw(self, index: int) -> Tensor:
        """Read both states of a sample, (2, C, H, W), in SI units. Do not write to the result, it may be the file."""
        year_number, first_snapshot = self.locate(index)
        return torch.from_numpy(self.open_year_once(year_number).read(first_snapshot, 2))

    def locate(self, index: int) -> tuple[int, int]:
        """Return the number of the year that holds a sample, and the number of its first snapshot in this year.

        Raises:
            IndexError: There is no such sample. (A ``for`` loop over the data set ends with this error.)
        """
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} does not exist; the indices are 0 to {len(self) - 1}")
        # The last year whose first sample is not after this index.
        year_number = bisect.bisect_right(self._first_of_year, index) - 1
        return year_number, index - self._first_of_year[year_number]

    def open_year_once(self, year_number: int) -> formats.Year:
        """Open the file of a year at the first call, and return the same open file at each later call.

        The file stays open, because to open an HDF5 file takes longer than to read a sample.

        Each process opens its own file, because HDF5 cannot use a file that another process has opened.
        """
        key = (os.getpid(), year_number)
        if key not in self._open_years:
            self._open_years[key] = self.split.open_year(year_number)
        return self._open_years[key]

    def __getstate__(self) -> dict:
        """Return what is sent to another process, which is everything but the open files."""
        return self.__dict__ | {"_open_years": {}}


class BatchReader(Dataset):
    """Read complete batches. Each sample is normalised, shifted, and written once, to its place in the batch.

    A ``Dataset`` usually has the method ``__getitem__``, which returns one sample. This one has ``__getitems__``
    instead. If a data set has this method, ``DataLoader`` calls it once per batch, with the list of all samples of the
    batch. With ``__getitem__``, torch's collate function would copy each sample a second time, to stack the samples to
    a batch.

    Attributes:
        pairs: The samples.
        pin_memory: Whether to allocate batches in pinned memory, if this process reads and no worker does.
    """

    def __init__(self, pairs: SnapshotPairs, pin_memory: bool) -> None:
        self.pairs = pairs
        self.pin_memory = pin_memory

    def __getitems__(self, samples: list[tuple[int, int]]) -> Tensor:
        """Read a batch. ``DataLoader`` calls this method in the process that reads, with all samples of the batch.

        Args:
            samples: The index of each sample, and the number of grid points by which it is shifted.

        Returns:
            The states now and the states one snapshot later, (2, B, C, H, W), in standard deviations of their channel.
            The results ``[0]`` and ``[1]`` are the contiguous arrays x_BCHW and y_BCHW.
        """
        both_2BCHW = self.allocate(2, len(samples), *self.pairs.split.shape)
        for position, (index, shift) in enumerate(samples):
            raw_2CHW = self.pairs.read_raw(index)
            augment_into(both_2BCHW[:, position], raw_2CHW, shift, self.pairs.means_1C11, self.pairs.stds_1C11)
        return both_2BCHW

    def allocate(self, *shape: int) -> Tensor:
        """Allocate the array of a batch, float32. A worker takes memory that it shares with the training process.

        torch would otherwise copy each batch to shared memory, which halves the number of samples per second.
        """
        if get_worker_info() is None:  # this process is no worker
            return torch.empty(shape, pin_memory=self.pin_memory)
        # Private API, which torch's own collate function uses, too. The batch is in shared memory, so sending it to the
        # training process copies nothing.
        storage = torch.UntypedStorage._new_shared(4 * math.prod(shape))  # a float32 has 4 bytes
        return torch.empty(0).set_(storage, 0, shape)  # type: ignore[call-overload]


def endless_batches(
    pairs: SnapshotPairs,
    global_batch_size: int,
    *,
    random_shift: bool = False,
    num_workers: int = 0,
    pin_memory: bool = False,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    n_batches_to_skip: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches (x_BCHW, y_BCHW) without end. An epoch uses each sample at most once, in a new order.

    The batches follow from the seed. They do not depend on the number of workers. This function is a generator, so it
    checks its arguments only when the first batch is taken by ``next``.

    Args:
        pairs: The samples.
        global_batch_size: The number of samples in a batch of all ranks together. B is the number of those that this
            rank reads. If ``global_batch_size`` is no multiple of ``world_size``, B is larger by 1 on the first ranks.
            Then DDP, which averages the gradients over the ranks, does not weight all samples equally. Therefore
            ``dltutorial train`` refuses such a size.
        random_shift: Whether to shift each sample along longitude by a random number of grid points. The simulated
            planet looks the same from every longitude, so a shifted sample is a valid new sample. Do not shift data
            with continents.
        num_workers: The number of processes that read. Each of them reads two batches ahead. With 0 this process reads.
        pin_memory: Whether to put the batches into pinned memory. From there ``x.to(device, non_blocking=True)`` copies
            to a GPU while the CPU continues.
        seed: The seed of the order of the samples and of the shifts.
        rank, world_size: The number of this rank, and the number of ranks that share each batch. With tensor
            parallelism these are the numbers in the data-parallel group, because the ranks of a tensor-parallel group
            need the same samples.
        n_batches_to_skip: The number of batches to leave out at the start, because a resumed run has used them.

    Yields:
        x_BCHW and y_BCHW, float32, in standard deviations of their channel.

    Raises:
        DataError: At the first ``next``, there are fewer samples than one batch needs. At any ``next``, a worker died.
    """
    W = pairs.split.shape[-1]
    batch_sampler = sampling.endless_batch_sampler(
        len(pairs),
        global_batch_size,
        max_shift=W - 1 if random_shift else 0,  # a shift by all W columns would be no shift
        seed=seed,
        rank=rank,
        world_size=world_size,
        n_batches_to_skip=n_batches_to_skip,
    )
    loader = DataLoader(
        # A worker cannot pin memory. If there are workers, ``DataLoader`` pins the batches in the training process.
        BatchReader(pairs, pin_memory=pin_memory and num_workers == 0),
        batch_sampler=batch_sampler,  # for each batch, a list of (index, shift)
        # ``default_convert`` returns a tensor as it is. ``DataLoader`` would otherwise try to stack samples, but
        # ``BatchReader`` returns a complete batch.
        collate_fn=default_convert,
        num_workers=num_workers,
        pin_memory=pin_memory,
        worker_init_fn=ignore_stop_signals,
        generator=torch.Generator(),  # so that the loader takes no random number from the training run
    )
    # When the caller needs no more batches, or when the program ends, this loop also ends the workers.
    for both_2BCHW in iterate_then_end_workers(loader):
        yield both_2BCHW[0], both_2BCHW[1]
