"""Choose the samples of each batch: shuffled in each epoch, and divided among the ranks.

The input is the number of samples, the batch size, a seed, this rank and the number of ranks. The output is, for each
batch, the indices of this rank's samples and the number of grid points by which each sample is shifted.

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
    n_batches_to_skip: int = 0,
) -> Iterator[tuple[list[int], list[int]]]:
    """Choose the samples of one batch after another, through one epoch after another, without end.

    Rank r takes every ``world_size``-th sample of each batch, from position r on. So all ranks together use the batches
    that a single process would use. Samples at the end of an epoch that do not fill a batch are left out. Therefore
    every rank takes the same number of steps.

    Args:
        n_samples: The number of samples N in the data set.
        batch_size: The number of samples in a batch of all ranks together.
        seed: The seed of the order of the samples and of the shifts.
        width: The number of columns of a sample. Each sample is shifted by a random number of columns, from 0 to
            ``width`` - 1. ``width=0`` means that no sample is shifted.
        rank, world_size: The number of this rank, and the number of ranks that share each batch. With tensor
            parallelism these are the numbers in the data-parallel group.
        n_batches_to_skip: The number of batches to leave out at the start, because a resumed run has used them.

    Returns:
        An iterator over (indices, shifts) of this rank's samples.

    Raises:
        DataError: There are fewer samples than one batch needs.
    """
    if n_samples < batch_size:
        raise DataError(
            f"a batch of {batch_size} needs more than the {n_samples} samples there are; lower global_batch_size"
        )
    batches = _batches(n_samples, batch_size, seed, width, n_batches_to_skip)
    return ((indices[rank::world_size], shifts[rank::world_size]) for indices, shifts in batches)


def _batches(
    n_samples: int, batch_size: int, seed: int, width: int, n_batches_to_skip: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the indices and the shifts of complete batches, which are the same on every rank."""
    batches_per_epoch = n_samples // batch_size
    first_epoch, first_batch = divmod(n_batches_to_skip, batches_per_epoch)
    for epoch in itertools.count(first_epoch):
        order_N = epoch_order(n_samples, seed, epoch)
        shift_N = epoch_shifts(n_samples, width, seed, epoch)
        for indices in order_N.split(batch_size)[first_batch:batches_per_epoch]:
            yield indices.tolist(), shift_N[indices].tolist()
        first_batch = 0


def epoch_order(n_samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of all samples in this epoch, which is a random permutation, shape (N,)."""
    return torch.randperm(n_samples, generator=_generator(seed, epoch, "order"))


def epoch_shifts(n_samples: int, width: int, seed: int, epoch: int) -> Tensor:
    """Return the shift of each sample in this epoch, from 0 to ``width`` - 1 grid points, shape (N,).

    ``width=0`` means that no sample is shifted, so all shifts are 0.

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
