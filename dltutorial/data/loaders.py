"""From files to batches: pairs (state now, next state), normalised, shuffled anew in every epoch.

Legend: B samples, C channels, H × W grid points. Everything is float32.
"""

import os
from collections.abc import Iterator

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dltutorial.data.store import Split
from dltutorial.errors import DataError


class Pairs(Dataset):
    """Neighbouring snapshots of the same year, normalised with the statistics of the training years.

    Sample ``i`` is ``(x_CHW, y_CHW)``. A year of T snapshots gives T − 1 pairs; none spans two years.
    """

    def __init__(self, split: Split):
        self.split = split
        self._starts = np.cumsum([0, *(n - 1 for n in split.snapshots)])
        self._open: dict[tuple[int, int], h5py.Dataset] = {}

    def __len__(self) -> int:
        """Pairs in all years."""
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Read two snapshots in one go.

        Raises:
            IndexError: no such pair.
            DataError: the file was damaged or removed after the split was opened.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        year = int(np.searchsorted(self._starts, index, side="right")) - 1
        first = index - int(self._starts[year])
        try:
            both_2CHW = self._fields(year)[first : first + 2]
        except (OSError, RuntimeError, KeyError) as error:  # h5py's ways to say that a file is damaged
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(
                f"{self.split.files[year]} cannot be read any more ({why}); delete it and make or fetch it anew"
            ) from error
        both_2CHW = torch.from_numpy((both_2CHW - self.split.means_1C11) / self.split.stds_1C11)
        return both_2CHW[0], both_2CHW[1]

    def _fields(self, year: int) -> h5py.Dataset:
        """Open a year when it is first read: HDF5's state does not survive a fork, so each process opens its own."""
        key = os.getpid(), year
        if key not in self._open:
            self._open[key] = h5py.File(self.split.files[year], "r")["fields"]
        return self._open[key]

    def __getstate__(self) -> dict:
        """File handles do not travel to another process."""
        return self.__dict__ | {"_open": {}}


def endless_batches(
    pairs: Dataset, global_batch_size: int, *, seed: int = 0, roll: bool = False, workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (x_BCHW, y_BCHW) for ever; every epoch takes each pair at most once, in a new order.

    The same seed gives the same batches, whatever the number of workers. The rest of an epoch that does not fill a
    batch is left out.

    Args:
        pairs: samples (x_CHW, y_CHW).
        global_batch_size: B.
        seed: of the order and of the augmentation.
        roll: shift each pair along longitude by a random number of grid points: the simulated planet looks the
            same from every longitude.
        workers: processes that load beside this one.

    Raises:
        DataError: fewer pairs than one batch takes.
    """
    if len(pairs) < global_batch_size:
        raise DataError(
            f"a batch of {global_batch_size} needs more than the {len(pairs)} pairs there are; "
            "lower global_batch_size or simulate more years"
        )
    return _batches(pairs, global_batch_size, seed, roll, workers)


def _batches(
    pairs: Dataset, global_batch_size: int, seed: int, roll: bool, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    loader = DataLoader(
        pairs,
        batch_sampler=_endless_orders(len(pairs), global_batch_size, seed),
        generator=torch.Generator().manual_seed(seed),  # of the workers' own seeds, not of the order
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
    )
    shifts = torch.Generator().manual_seed(seed + 1)
    try:
        for x_BCHW, y_BCHW in loader:
            yield roll_longitude(x_BCHW, y_BCHW, shifts) if roll else (x_BCHW, y_BCHW)
    except DataError as error:  # out of a worker it comes wrapped in that process's traceback
        line = str(error).strip().splitlines()[-1].removeprefix(f"{DataError.__module__}.DataError: ")
    # Raised here, not above: there it would keep the old traceback, and with it the worker processes, alive.
    raise DataError(line)


def _endless_orders(n_pairs: int, batch_size: int, seed: int) -> Iterator[list[int]]:
    """Indices of one batch after another, through one epoch after another, so that workers never pause between."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(n_pairs, generator=generator)
        yield from order[: n_pairs - n_pairs % batch_size].view(-1, batch_size).tolist()


def roll_longitude(x_BCHW: Tensor, y_BCHW: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Shift both states of every pair by the same random distance along the last axis."""
    width = x_BCHW.shape[-1]
    shift_B = torch.randint(width, (x_BCHW.shape[0],), generator=generator)
    columns_BW = (torch.arange(width) + shift_B[:, None]) % width
    index = columns_BW[:, None, None, :].expand_as(x_BCHW)
    return x_BCHW.gather(-1, index), y_BCHW.gather(-1, index)
