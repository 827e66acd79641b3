"""Which samples, in which order: shuffling that is correct over epochs, ranks and workers.

In: the number of samples, a seed, this rank and the number of ranks. Out: batches of indices. The order follows from
(seed, epoch) alone. Therefore every rank knows it without communication, a resumed run continues in the middle of an
epoch, and the order does not depend on how many ranks or workers share the work.

Legend: N samples in the data set.
"""

import hashlib
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from dltutorial.errors import DataError, RecipeError

#: For each batch, the indices of its samples, and by how many grid points each sample is shifted.
Draws = Iterator[tuple[list[int], list[int]]]


def epoch_order(n: int, seed: int, epoch: int) -> Tensor:
    """All indices below ``n`` in the order of this epoch; shape (N,)."""
    return torch.randperm(n, generator=_generator(seed, epoch, "order"))


def epoch_shifts(n: int, width: int, seed: int, epoch: int) -> Tensor:
    """By how many of ``width`` grid points each sample is shifted in this epoch; shape (N,).

    The shifts are drawn for all samples, so the augmentation is the same on one rank and on many.
    """
    return torch.randint(width, (n,), generator=_generator(seed, epoch, "shift"))


def _generator(seed: int, epoch: int, purpose: str) -> torch.Generator:
    """A random generator for each seed, epoch and purpose.

    They are hashed, because ``seed + epoch`` would give epoch 0 of seed 1 the order of epoch 1 of seed 0.
    """
    digest = hashlib.blake2b(f"{seed} {epoch} {purpose}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


def endless(
    n: int, batch_size: int, *, seed: int = 0, width: int = 0, rank: int = 0, world_size: int = 1, skip: int = 0
) -> Draws:
    """One batch after another, through one epoch after another; complete batches only.

    Rank r takes every ``world_size``-th sample of each batch, from the r-th on. So all ranks together read the batches
    that one process would read. The samples at the end of an epoch that fill no batch are left out, so that every rank
    takes the same number of steps.

    Args:
        n: samples in the data set.
        batch_size: samples of one batch over all ranks.
        seed: of the order.
        width: shifts are drawn below this number of grid points; 0 shifts nothing.
        rank, world_size: this process among those that share each batch.
        skip: number of batches to leave out at the start, because a resumed run has used them.

    Returns:
        An endless iterator over (indices, shifts) of this rank's part of each batch.

    Raises:
        DataError: There are fewer samples than one batch needs.
        RecipeError: There is no such rank, or the ranks cannot share a batch.
    """
    if not 0 <= rank < world_size:
        raise RecipeError(f"rank {rank} of {world_size} does not exist; ranks count from 0")
    if batch_size < world_size:
        raise RecipeError(f"a batch of {batch_size} cannot be shared by {world_size} ranks; raise the batch size")
    if n < batch_size:
        raise DataError(f"a batch of {batch_size} needs more than the {n} samples there are; lower global_batch_size")
    return _endless(n, batch_size, seed, width, rank, world_size, skip)


def _endless(n: int, batch_size: int, seed: int, width: int, rank: int, world_size: int, skip: int) -> Draws:
    """The generator of ``endless``, which checks the arguments first."""
    batches_per_epoch = n // batch_size
    first_epoch, first_batch = divmod(skip, batches_per_epoch)
    for epoch in itertools.count(first_epoch):
        order_N = epoch_order(n, seed, epoch)
        shift_N = torch.zeros_like(order_N)
        if width:
            shift_N = epoch_shifts(n, width, seed, epoch)
        for batch in range(first_batch, batches_per_epoch):
            indices = order_N[batch * batch_size : (batch + 1) * batch_size][rank::world_size]
            yield indices.tolist(), shift_N[indices].tolist()
        first_batch = 0
