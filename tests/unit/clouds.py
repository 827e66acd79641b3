"""A survey small enough for unit tests: points around a centre for each class, in parts that share none."""

import torch

from dltutorial.convergence.ensemble import Order
from dltutorial.data.surveys import Survey


def survey(n=200, n_valid=100, n_features=10, n_classes=3, apart=2.0, seed=0) -> Survey:
    """``apart`` is the distance of a centre from nought in each feature, where the clouds have deviation 1."""
    generator = torch.Generator().manual_seed(seed)
    centres = apart * torch.randn(n_classes, n_features, generator=generator)
    y = torch.randint(n_classes, (n + 2 * n_valid,), generator=generator)
    x = centres[y] + torch.randn(len(y), n_features, generator=generator)
    parts = [value.split([n, n_valid, n_valid]) for value in (x, y)]
    return Survey(n_classes, *(part for pair in zip(*parts, strict=True) for part in pair))


def batches(seed, n_images, batch_size, steps):
    """The first batches (steps, B) that a replica of this seed sees: to train it alone."""
    order = Order([seed], n_images)
    return torch.cat([order.next(batch_size) for _ in range(steps)])
