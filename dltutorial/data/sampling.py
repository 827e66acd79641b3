"""Choose the samples of each batch: shuffled in each epoch, and divided among the ranks.

In: the number of samples, the batch size, a seed, this rank and the number of ranks. Out: for each batch, the indices
of this rank's samples, and the number of grid points by which each sample is shifted.

The order follows from the seed and the number of the epoch alone. Therefore all ranks know it without communication, a
resumed run continues in the middle of an epoch, and the order does not depend on the number of ranks or workers.

    epoch 0   order of the samples    7 2 9 4 | 0 5 8 1 | 6 3      batches of 4; the last 2 samples are left out
              rank 0 of 2             7   9   | 0   8   |
              rank 1 of 2               2   4 |   5   1 |

Legend: N samples in the data set.
"""

import hashlib
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from dltutorial.errors import DataError


def endless(
    n_samples: int,
    batch_size: int,
    *,
    seed: int = 0,
    width: int = 0,
    rank: int = 0,
    world_size: int = 1,
    skip: int = 0,
) -> Iterator[tuple[list[int], list[int]]]:
    """Choose the samples of one batch after another, through one epoch after another, without end.

    Rank r takes every ``world_size``-th sample of each batch, from position r on. So all ranks together use the batches
    that a single process would use. Samples at the end of an epoch that do not fill a batch are left out. Therefore
    every rank takes the same number of steps.

    Args:
        n_samples: N.
        batch_size: number of samples in a batch of all ranks together.
        seed: of the order and of the shifts.
        width: each sample is shifted by less than this number of grid points. With 0 nothing is shifted.
        rank, world_size: this process among those that share each batch.
        skip: number of batches to leave out at the start, because a resumed run has used them.

    Returns:
        An iterator over (indices, shifts) of this rank's samples.

    Raises:
        DataError: There are fewer samples than one batch needs.
    """
    if n_samples < batch_size:
        raise DataError(
            f"a batch of {batch_size} needs more than the {n_samples} samples there are; lower global_batch_size"
        )
    batches = _batches(n_samples, batch_size, seed, width, skip)
    return ((indices[rank::world_size], shifts[rank::world_size]) for indices, shifts in batches)


def _batches(
    n_samples: int, batch_size: int, seed: int, width: int, skip: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the indices and the shifts of complete batches, which are the same on every rank."""
    batches_per_epoch = n_samples // batch_size
    first_epoch, first_batch = divmod(skip, batches_per_epoch)
    for epoch in itertools.count(first_epoch):
        order_N = epoch_order(n_samples, seed, epoch)
        shift_N = epoch_shifts(n_samples, width, seed, epoch)
        for batch in range(first_batch, batches_per_epoch):
            indices = order_N[batch * batch_size : (batch + 1) * batch_size]
            yield indices.tolist(), shift_N[indices].tolist()
        first_batch = 0


def epoch_order(n_samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of all samples in this epoch, which is a random permutation, shape (N,)."""
    return torch.randperm(n_samples, generator=_generator(seed, epoch, "order"))


def epoch_shifts(n_samples: int, width: int, seed: int, epoch: int) -> Tensor:
    """Return the shift of each sample in this epoch, from 0 to ``width`` - 1 grid points, shape (N,).

    Every rank draws the shifts of all samples. Therefore a sample's shift does not depend on the number of ranks.
    """
    if width == 0:
        return torch.zeros(n_samples, dtype=torch.int64)
    return torch.randint(width, (n_samples,), generator=_generator(seed, epoch, "shift"))


def _generator(seed: int, epoch: int, purpose: str) -> torch.Generator:
    """Return a random generator of its own for each seed, epoch and purpose.

    The three are hashed to one number. With ``seed + epoch`` instead, epoch 1 of seed 0 would have the order of epoch 0
    of seed 1.
    """
    digest = hashlib.blake2b(f"{seed} {epoch} {purpose}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))
