"""Choose the samples of each batch: shuffled in each epoch, and divided among the ranks.

The input is the number of samples, the batch size, a seed, this rank and the number of ranks. The output is, for each
batch, a list of this rank's samples. It has the index of each sample, and the number of grid points by which the sample
is shifted.

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


def endless_batch_sampler(
    n_samples: int,
    global_batch_size: int,
    *,
    max_shift: int = 0,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    n_batches_to_skip: int = 0,
) -> Iterator[list[tuple[int, int]]]:
    """Return an iterator over this rank's samples of one batch after another, through all epochs, without end.

    Rank r takes every ``world_size``-th sample of each batch, from position r on. So all ranks together use the batches
    that a single process would use. If ``global_batch_size`` is no multiple of ``world_size``, the first ranks get one
    sample more than the others. If it is smaller than ``world_size``, some ranks get empty lists.

    Samples at the end of an epoch that do not fill a batch are left out. Therefore every rank takes the same number of
    steps.

    The number of samples is checked at once, and not at the first ``next``. A ``DataLoader`` would start its workers
    before the first ``next``, and an error would then leave them running.

    Args:
        n_samples: The number of samples N in the data set.
        global_batch_size: The number of samples in a batch of all ranks together.
        max_shift: The largest number of grid points by which a sample is shifted. The shift of each sample is random,
            from 0 to ``max_shift``. With 0, no sample is shifted.
        seed: The seed of the order of the samples and of the shifts.
        rank, world_size: The number of this rank, and the number of ranks that share each batch. With tensor
            parallelism these are the numbers in the data-parallel group.
        n_batches_to_skip: The number of batches to leave out at the start, because a resumed run has used them.

    Returns:
        An iterator that yields, for each batch, a list with (index, shift) of each sample of this rank. Such an
        iterator is a ``batch_sampler`` of torch's ``DataLoader``.

    Raises:
        DataError: There are fewer samples than one batch needs.
    """
    if n_samples < global_batch_size:
        raise DataError(
            f"a batch of {global_batch_size} needs more than the {n_samples} samples there are; lower global_batch_size"
        )
    samples_of_all_ranks = _batches(n_samples, global_batch_size, max_shift, seed, n_batches_to_skip)
    return (samples[rank::world_size] for samples in samples_of_all_ranks)


def _batches(
    n_samples: int, global_batch_size: int, max_shift: int, seed: int, n_batches_to_skip: int
) -> Iterator[list[tuple[int, int]]]:
    """Yield (index, shift) of each sample of one batch after another. The batches are the same on every rank."""
    batches_per_epoch = n_samples // global_batch_size
    first_epoch, first_batch = divmod(n_batches_to_skip, batches_per_epoch)
    for epoch in itertools.count(first_epoch):
        order_N = epoch_order(n_samples, seed, epoch)
        shift_N = epoch_shifts(n_samples, max_shift, seed, epoch)
        for indices in order_N.split(global_batch_size)[first_batch:batches_per_epoch]:
            yield list(zip(indices.tolist(), shift_N[indices].tolist(), strict=True))
        first_batch = 0


def epoch_order(n_samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of all samples in this epoch, which is a random permutation, shape (N,)."""
    return torch.randperm(n_samples, generator=_generator(seed, epoch, "order"))


def epoch_shifts(n_samples: int, max_shift: int, seed: int, epoch: int) -> Tensor:
    """Return the random shift of each sample in this epoch, from 0 to ``max_shift`` grid points, shape (N,).

    Every rank draws the shifts of all samples. Therefore a sample's shift does not depend on the number of ranks.
    """
    return torch.randint(max_shift + 1, (n_samples,), generator=_generator(seed, epoch, "shift"))


def _generator(seed: int, epoch: int, purpose: str) -> torch.Generator:
    """Return a random generator of its own for each seed, epoch and purpose.

    The three are hashed to one number. With ``seed + epoch`` instead, epoch 1 of seed 0 would have the order of epoch 0
    of seed 1.
    """
    digest = hashlib.blake2b(f"{seed} {epoch} {purpose}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))
