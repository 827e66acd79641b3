"""The order in which replicas see their images: one shuffled epoch after another, cut into batches.

In: seeds, the number of images, batch sizes. Out: numbers of images (R, B). A replica's order depends on its seed
alone: whatever the batch size, the same images come in the same order. A batch may end one epoch and begin the next.

Legend: R replicas, B images in a batch, N images.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class Order:
    """An endless sequence of batches for each of R replicas; replicas with one seed share the work."""

    def __init__(self, seeds: Sequence[int], n_images: int) -> None:
        self.n_images = n_images
        names = list(dict.fromkeys(seeds))
        self.which_R = torch.tensor([names.index(seed) for seed in seeds])
        # Not the generator of the weights: another stream of the same seed.
        self.generators = [torch.Generator().manual_seed(_other(seed)) for seed in names]
        self.left_SN = torch.empty(len(names), 0, dtype=torch.int64)

    def next(self, batch_size: int) -> Tensor:
        """The numbers (R, B), int64, of the next batch of every replica."""
        while self.left_SN.shape[1] < batch_size:
            epoch_SN = torch.stack([torch.randperm(self.n_images, generator=g) for g in self.generators])
            self.left_SN = torch.cat([self.left_SN, epoch_SN], 1)
        batch_SB, self.left_SN = self.left_SN.tensor_split([batch_size], 1)
        return batch_SB[self.which_R]

    def keep(self, stay: Tensor) -> None:
        """Go on with some of the replicas."""
        self.which_R = self.which_R[stay]


def batches(seed: int, n_images: int, batch_size: int, steps: int) -> Tensor:
    """The first batches (steps, B) that a replica of this seed sees: to train it alone."""
    order = Order([seed], n_images)
    return torch.cat([order.next(batch_size) for _ in range(steps)])


def _other(seed: int) -> int:
    return (seed + 0x9E3779B97F4A7C15) % 2**63
