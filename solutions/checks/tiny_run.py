"""A training run that takes milliseconds, made of everything that a checkpoint has to hold.

In: a seed. Out: a run with a model that draws random numbers (dropout), an optimizer with averages, a schedule, an
order of the data, and a count of updates: so that a resumed run which lacks one of them is seen to differ.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Order:
    """Indices of one batch after another, each epoch in a new order. Its state is one number: the batches taken."""

    def __init__(self, n: int, batch_size: int, seed: int) -> None:
        self.n, self.batch_size, self.seed, self.taken = n, batch_size, seed, 0

    def next(self) -> Tensor:
        """The next batch of indices."""
        epoch, number = divmod(self.taken, self.n // self.batch_size)
        order_N = torch.randperm(self.n, generator=torch.Generator().manual_seed(1000 * self.seed + epoch))
        self.taken += 1
        return order_N[number * self.batch_size :][: self.batch_size]

    def state_dict(self) -> dict[str, int]:
        """What ``load_state_dict`` takes."""
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there."""
        self.taken = int(state["taken"])


class TinyRun:
    """Sixteen updates of a small network on 40 samples, in batches of 8.

    Attributes:
        steps: updates in all.
        step: updates made.
        model, optimizer, scheduler, order: each with a ``state_dict`` and a ``load_state_dict``. Dropout draws from
            torch's own generator: ``torch.get_rng_state``, ``torch.set_rng_state``.
    """

    steps = 16

    def __init__(self, seed: int = 0) -> None:
        """Begin anew; torch's generator is seeded."""
        torch.manual_seed(seed)
        self.step = 0
        self.model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        cosine = lambda step: 0.5 + 0.5 * math.cos(math.pi * step / self.steps)  # noqa: E731
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, cosine)
        self.order = Order(40, 8, seed)
        self._x_NF = torch.randn(40, 8, generator=torch.Generator().manual_seed(seed + 1))

    def update(self) -> float:
        """Make one update; returns its loss."""
        x_BF = self._x_NF[self.order.next()]
        loss = F.mse_loss(self.model(x_BF), x_BF.roll(1, -1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        return loss.item()
