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


def endless(
    n: int, batch_size: int, *, seed: int = 0, width: int = 0, rank: int = 0, world_size: int = 1, skip: int = 0
) -> Draws:
    """Pairs (indices, shifts) of one batch after another, through one epoch after another; whole batches only.

    Rank r takes every ``world_size``-th sample of each batch, from the r-th on. So the ranks together read the very
    batches that one process would read, and none comes twice. What is left of an epoch and fills no batch is left out,
    so that every rank takes as many steps.

    Args:
        n: samples in the data set.
        batch_size: samples of one batch over all ranks.
        seed: of the order.
        width: shifts are drawn below this number of grid points; 0 shifts nothing.
        rank, world_size: this process among those that share each batch.
        skip: batches to leave out at the start: what a resumed run has already seen.

    Raises:
        DataError: fewer samples than one batch takes.
        RecipeError: ranks that cannot be, or a batch that they cannot share.
    """
    if not 0 <= rank < world_size:
        raise RecipeError(f"rank {rank} of {world_size} cannot be; ranks count from 0")
    if batch_size < world_size:
        raise RecipeError(f"a batch of {batch_size} cannot be shared by {world_size} ranks; raise the batch size")
    if n < batch_size:
        raise DataError(f"a batch of {batch_size} needs more than the {n} samples there are; lower global_batch_size")

    def draws() -> Draws:
        for number in itertools.count(skip):
            epoch, place = divmod(number, n // batch_size)
            if place == 0 or number == skip:
                order_N = epoch_order(n, seed, epoch)
                shift_N = epoch_shifts(n, width, seed, epoch) if width else torch.zeros_like(order_N)
            mine = order_N[place * batch_size :][:batch_size][rank::world_size]
            yield mine.tolist(), shift_N[mine].tolist()

    return draws()
