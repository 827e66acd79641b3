"""From files to batches: pairs (state now, next state), normalised, shuffled anew in every epoch.

``endless_batches`` is the plain loader that chapter 01 trains with; ``ladder`` has slower and faster ones that give
the same batches.

Legend: B samples, C channels, H × W grid points. Everything is float32.
"""

import bisect
import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dltutorial.data import formats, sampling
from dltutorial.data.augment import shifted_columns
from dltutorial.data.store import Split
from dltutorial.errors import DataError

WORKER_DEADLINE_S = 300.0


class Pairs(Dataset):
    """Neighbouring snapshots of the same year, normalised with the statistics of the training years.

    Sample ``i`` is ``(x_CHW, y_CHW)``. A year of T snapshots gives T − 1 pairs; none spans two years.
    """

    def __init__(self, split: Split):
        self.split = split
        self._starts = [0, *itertools.accumulate(n - 1 for n in split.snapshots)]
        self._open: dict[tuple[int, int], formats.Year] = {}

    def __len__(self) -> int:
        """Pairs in all years."""
        return self._starts[-1]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Read two snapshots in one go.

        Raises:
            IndexError: no such pair.
            DataError: the file was damaged or removed after the split was opened.
        """
        year, first = self.where(index)
        raw_2CHW = self.year(year).snapshots(first, 2)
        both_2CHW = torch.from_numpy((raw_2CHW - self.split.means_1C11) / self.split.stds_1C11)
        return both_2CHW[0], both_2CHW[1]

    def where(self, index: int) -> tuple[int, int]:
        """The number of the year that holds a pair, and the pair's first snapshot in it.

        Raises:
            IndexError: no such pair.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        year = bisect.bisect_right(self._starts, index) - 1
        return year, index - self._starts[year]

    def year(self, year: int) -> formats.Year:
        """Open a year when it is first read: HDF5's state does not survive a fork, so each process opens its own."""
        key = os.getpid(), year
        if key not in self._open:
            self._open[key] = formats.open_year(self.split.files[year])
        return self._open[key]

    def __getstate__(self) -> dict:
        """File handles do not travel to another process."""
        return self.__dict__ | {"_open": {}}


def endless_batches(
    pairs: Dataset,
    global_batch_size: int,
    *,
    seed: int = 0,
    roll: bool = False,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    skip: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (x_BCHW, y_BCHW) for ever; every epoch takes each pair at most once, in a new order.

    The same seed gives the same batches, whatever the number of workers. The rest of an epoch that does not fill a
    batch is left out.

    Args:
        pairs: samples (x_CHW, y_CHW).
        global_batch_size: B over all ranks; each rank gets its share.
        seed: of the order and of the augmentation.
        roll: shift each pair along longitude by a random number of grid points: the simulated planet looks the
            same from every longitude.
        workers: processes that load beside this one.
        rank, world_size: this process among those that share each batch.
        skip: batches to leave out at the start, which a resumed run has already seen.

    Raises:
        DataError: fewer pairs than one batch takes.
    """
    width = pairs[0][0].shape[-1] if roll and len(pairs) else 0
    draws = sampling.endless(
        len(pairs), global_batch_size, seed=seed, width=width, rank=rank, world_size=world_size, skip=skip
    )
    return _batches(pairs, draws, roll, workers)


def _batches(pairs: Dataset, draws: Iterator, roll: bool, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    for_reading, for_rolling = itertools.tee(draws)
    batches = worker_batches(pairs, (indices for indices, _ in for_reading), workers)
    for (x_BCHW, y_BCHW), (_, shifts) in zip(batches, for_rolling, strict=False):
        yield roll_longitude(x_BCHW, y_BCHW, torch.tensor(shifts)) if roll else (x_BCHW, y_BCHW)


def worker_batches(dataset: Dataset, keys: Iterable[list], workers: int) -> Iterator:
    """Batches of ``dataset[key]``, read by worker processes; 0 reads here.

    Raises:
        DataError: the data are damaged, or a worker died or no longer answers. Nothing is waited for longer than
            ``WORKER_DEADLINE_S``.
    """
    loader = DataLoader(
        dataset,
        batch_sampler=keys,
        generator=torch.Generator().manual_seed(0),  # of the workers' own seeds, which nothing here uses
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        timeout=WORKER_DEADLINE_S if workers else 0,
    )
    yield from in_one_line(loader)


def in_one_line(loader: DataLoader) -> Iterator:
    """What a loader with workers yields; whatever becomes of a worker, as one line.

    Raises:
        DataError: the data are damaged, or a worker died or no longer answers.
    """
    try:
        yield from loader
        return
    except DataError as error:  # out of a worker it comes wrapped in that process's traceback
        line = str(error).strip().splitlines()[-1].removeprefix(f"{DataError.__module__}.DataError: ")
        error.with_traceback(None)  # it would keep the workers waiting until the garbage is collected
    except RuntimeError as error:
        if not _is_of_a_worker(error):  # what the data set itself raised
            raise
        line = _gone(error)
    except (ConnectionError, EOFError) as error:  # it died while it handed a batch over
        line = _gone(error)
    # Raised here, not above: there it would keep the old traceback, and with it the worker processes, alive.
    raise DataError(line)


@contextlib.contextmanager
def workers_in_one_line() -> Iterator[None]:
    """Around whatever runs beside workers: torch reports a worker's death at once, in the midst of a step, too.

    Raises:
        DataError: a worker died.
    """
    try:
        yield
    except RuntimeError as error:
        if not _is_of_a_worker(error):
            raise
        raise DataError(_gone(error)) from None


def _is_of_a_worker(error: RuntimeError) -> bool:
    return str(error).startswith("DataLoader")


def _gone(error: RuntimeError) -> str:
    """Why a worker died, as torch's data loader says: the signal, or that it does not answer."""
    why = formats.first_line(error.__cause__ or error).rstrip(". ")
    return f"a loading process is gone: {why}; lower workers or the batch size, or give it more memory"


def roll_longitude(x_BCHW: Tensor, y_BCHW: Tensor, shift_B: Tensor) -> tuple[Tensor, Tensor]:
    """Shift both states of every pair by the same distance along the last axis."""
    index = shifted_columns(shift_B, x_BCHW.shape[-1])[:, None, None, :].expand_as(x_BCHW)
    return x_BCHW.gather(-1, index), y_BCHW.gather(-1, index)
