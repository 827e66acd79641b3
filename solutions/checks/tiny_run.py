"""A training run that takes milliseconds, with everything that a checkpoint has to contain.

The input is a seed. The output is a run with a model that draws random numbers (dropout), an optimizer with averages, a
schedule of the learning rate, an order of the data, and a count of updates. If one of these is not restored, the losses
after a restart differ.

Legend: N samples, B samples of a batch, F features.

Source: https://docs.pytorch.org/tutorials/recipes/recipes/saving_and_loading_a_general_checkpoint.html
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Order:
    """The order of the samples, which differs from epoch to epoch. Its state is the number of batches so far."""

    def __init__(self, n_samples: int, batch_size: int, seed: int) -> None:
        """Begin with the first batch."""
        self.n_samples = n_samples
        self.batch_size = batch_size
        self.seed = seed
        self.n_batches = 0

    def next(self) -> Tensor:
        """Return the indices of the next batch, (B,)."""
        epoch, batch = divmod(self.n_batches, self.n_samples // self.batch_size)
        generator = torch.Generator().manual_seed(1000 * self.seed + epoch)
        order_N = torch.randperm(self.n_samples, generator=generator)
        self.n_batches += 1
        begin = batch * self.batch_size
        return order_N[begin : begin + self.batch_size]

    def state_dict(self) -> dict[str, int]:
        """Return the state, for ``load_state_dict``."""
        return {"n_batches": self.n_batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from this state."""
        self.n_batches = int(state["n_batches"])


class TinyRun:
    """Sixteen updates of a small network on 40 samples, in batches of 8.

    Attributes:
        steps: The number of all updates.
        step: The number of updates so far.
        model, optimizer, scheduler, order: Each has a ``state_dict`` and a ``load_state_dict``. Dropout draws from
            torch's global generator, whose state is that of ``torch.get_rng_state``.
    """

    steps = 16

    def __init__(self, seed: int = 0) -> None:
        """Begin a run, and seed torch's global generator."""
        torch.manual_seed(seed)
        self.step = 0
        self.model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, self.steps)
        self.order = Order(40, 8, seed)
        self._x_NF = torch.randn(40, 8, generator=torch.Generator().manual_seed(seed + 1))

    def update(self) -> float:
        """Make one update, and return its loss."""
        x_BF = self._x_NF[self.order.next()]
        loss = F.mse_loss(self.model(x_BF), x_BF.roll(1, -1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        return loss.item()
