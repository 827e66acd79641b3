"""Which samples, in which order: shuffling that is right over epochs, ranks and workers.

In: how many samples there are, a seed, the number of an epoch, this rank among how many. Out: batches of indices. The
order is worked out from (seed, epoch) alone, so every rank knows it without asking, a resumed run goes on in the
middle of it, and it does not depend on how many ranks or workers share the work.

Legend: N samples in the data set, B samples in a batch over all ranks.
"""

import hashlib
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler

from dltutorial.errors import DataError, RecipeError

#: For each batch the indices of its samples, and by how many grid points each is to be shifted.
Draws = Iterator[tuple[list[int], list[int]]]


def epoch_order(n: int, seed: int, epoch: int) -> Tensor:
    """All indices below ``n``, each once, in the order of this epoch; shape (N,)."""
    return torch.randperm(n, generator=_generator(seed, epoch, "order"))


def epoch_shifts(n: int, width: int, seed: int, epoch: int) -> Tensor:
    """By how many of ``width`` grid points each sample is shifted in this epoch; shape (N,).

    Drawn for every sample, whoever reads it: so the augmentation, too, is the same on one rank and on many.
    """
    return torch.randint(width, (n,), generator=_generator(seed, epoch, "shift"))


def _generator(seed: int, epoch: int, what: str) -> torch.Generator:
    """Random numbers of their own for every seed, epoch and purpose.

    Hashed, since ``seed + epoch`` would give seed 1 the first epoch of seed 0's second.
    """
    digest = hashlib.blake2b(f"{seed} {epoch} {what}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


class EpochBatches(Sampler[list[int]]):
    """The batches of indices that one rank reads in one epoch; a ``batch_sampler`` for torch's ``DataLoader``.

    Rank r takes every ``world_size``-th sample of each batch, from the r-th on. So the ranks together read the very
    batches that one process would read: no sample is lost, none comes twice. Call ``set_epoch`` before every epoch;
    forgotten, all epochs have the order of the first.
    """

    def __init__(
        self, n: int, batch_size: int, *, seed: int = 0, rank: int = 0, world_size: int = 1, drop_last: bool = False
    ) -> None:
        """Keep what decides the order.

        Args:
            n: samples in the data set.
            batch_size: samples of one batch over all ranks.
            seed: of the order.
            rank, world_size: this process among those that share each batch.
            drop_last: leave out the rest of an epoch that fills no batch, so that every rank takes as many steps.
        """
        if not 0 <= rank < world_size:
            raise RecipeError(f"rank {rank} of {world_size} cannot be; ranks count from 0")
        if batch_size < world_size:
            raise RecipeError(f"a batch of {batch_size} cannot be shared by {world_size} ranks; raise the batch size")
        self.n, self.batch_size, self.seed, self.epoch = n, batch_size, seed, 0
        self.rank, self.world_size, self.drop_last = rank, world_size, drop_last

    def set_epoch(self, epoch: int) -> None:
        """The next iteration has the order of this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's part of every batch; a rank that the last batch leaves without a sample skips it."""
        order = epoch_order(self.n, self.seed, self.epoch).tolist()
        end = self.n - self.n % self.batch_size if self.drop_last else self.n
        for first in range(0, end, self.batch_size):
            mine = order[first : first + self.batch_size][self.rank :: self.world_size]
            if mine:
                yield mine

    def __len__(self) -> int:
        """Batches of this rank in an epoch."""
        whole, rest = divmod(self.n, self.batch_size)
        return whole + (not self.drop_last and rest > self.rank)


def endless(
    n: int, batch_size: int, *, seed: int = 0, width: int = 0, rank: int = 0, world_size: int = 1, skip: int = 0
) -> Draws:
    """Pairs (indices, shifts) of one batch after another, through one epoch after another; whole batches only.

    Args:
        n, batch_size, seed, rank, world_size: as for ``EpochBatches``.
        width: shifts are drawn below this number of grid points; 0 shifts nothing.
        skip: batches to leave out at the start: what a resumed run has already seen.

    Raises:
        DataError: fewer samples than one batch takes.
    """
    batches = EpochBatches(n, batch_size, seed=seed, rank=rank, world_size=world_size, drop_last=True)
    if n < batch_size:
        more = "lower global_batch_size or simulate more years"
        raise DataError(f"a batch of {batch_size} needs more than the {n} pairs there are; {more}")
    return _endless(batches, width, skip)


def _endless(batches: EpochBatches, width: int, skip: int) -> Draws:
    epoch, skip = divmod(skip, batches.n // batches.batch_size)
    while True:
        batches.set_epoch(epoch)
        shift_N = (
            epoch_shifts(batches.n, width, batches.seed, epoch) if width else torch.zeros(batches.n, dtype=torch.int64)
        )
        for indices in itertools.islice(batches, skip, None):
            yield indices, shift_N[indices].tolist()
        epoch, skip = epoch + 1, 0
