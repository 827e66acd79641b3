"""A batch size that follows the noise scale: small while gradients agree, large when noise drowns them.

In: estimates of |G|² and tr(Σ), step by step. Out: how many samples the next batch takes. The noise scale grows during
training, so a batch that is right at the end wastes samples at the start, and one that is right at the start wastes
steps at the end. Byrd et al. 2012 (doi:10.1007/s10107-012-0572-5) let the batch grow when the variance test says so;
McCandlish et al. 2018 (arXiv:1812.06162), section 5, follow B_simple; Smith et al. 2018 (arXiv:1711.00489) raise the
batch where others lower the learning rate: the noise of an update falls alike.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial import node
from dltutorial.convergence.noise import Running, squared_length, two_batches
from dltutorial.errors import CourseError


class AdaptiveBatch:
    """Doubles the batch whenever the running noise scale says that twice the batch is still worth it."""

    def __init__(
        self, smallest: int, largest: int, per_noise: float = 1.0, patience: int = 20, decay: float = 0.95
    ) -> None:
        """Begin with the smallest batch.

        Args:
            smallest: first batch; even, for its two halves give the estimate.
            largest: never more; a power of two times ``smallest``.
            per_noise: the batch aimed at, as a part of B_simple: 1 balances steps against samples.
            patience: steps at least between two doublings, so that the mean knows the new state of affairs.
            decay: of the running means.

        Raises:
            CourseError: bounds or a patience that cannot be.
        """
        doublings = largest / smallest if smallest > 0 else 0.0
        if smallest < 2 or smallest % 2 or doublings < 1 or int(doublings) & (int(doublings) - 1) or doublings % 1:
            raise CourseError(
                f"a batch from {smallest} to {largest}: begin with an even number, end at 1, 2, 4, 8 … times that"
            )
        if patience < 1 or not per_noise > 0:
            raise CourseError(f"patience={patience}, per_noise={per_noise}: both must be positive")
        self.size, self.largest, self._per_noise, self._patience = smallest, largest, per_noise, patience
        self.noise, self._waited = Running(decay), 0

    def update(self, squared: float, trace: float) -> int:
        """Take in one step's estimates; returns the size of the next batch.

        It doubles when the batch aimed at has reached twice the present one, never halves, and stays as it is while
        the noise scale cannot be told.
        """
        self.noise.update(squared, trace)
        self._waited += 1
        due = self._waited >= self._patience and 2 * self.size <= self.largest
        if due and self._per_noise * self.noise.scale >= 2 * self.size:  # false for NaN
            self.size, self._waited = 2 * self.size, 0
        return self.size


@dataclass(frozen=True)
class Update:
    """One update: its batch, the samples used up to and with it, and the loss of its batch before it."""

    batch_size: int
    samples: int
    loss: float


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    batch: AdaptiveBatch,
    samples: int,
    learning_rate: float,
    momentum: float = 0.9,
    seed: int = 0,
    on_update: Callable[[Update], None] = lambda update: None,
) -> list[Update]:
    """Train a classifier by SGD for so many samples, with the batch that ``batch`` asks for.

    Every batch is worked on as two halves. Their gradients' mean is the batch's own gradient, so that the estimate
    costs no gradient more. A run with ``AdaptiveBatch(B, B)`` is one with a fixed batch.

    Args:
        model: on the device of the data; it is changed.
        x, y: samples and classes; each epoch has an order of its own.
        batch: the policy; it is changed.
        samples: how many to use; the last update may use up to a batch less one beyond.
        learning_rate, momentum: of SGD; they stay as they are when the batch grows.
        seed: of the order.
        on_update: called after each update.

    Raises:
        CourseError: a batch may become larger than the data; a login node.
    """
    node.refuse_on_login("training")
    if batch.largest > len(x):
        raise CourseError(f"a batch of up to {batch.largest} from {len(x)} samples; lower the largest batch")
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
    generator, order, done, used = torch.Generator().manual_seed(seed), torch.empty(0, dtype=torch.long), [], 0
    while used < samples:
        size = batch.size
        if len(order) < size:
            order = torch.cat([order, torch.randperm(len(x), generator=generator)])
        pick, order = order[:size].to(x.device), order[size:]
        loss, small, large = _two_halves(model, x[pick], y[pick])
        optimizer.step()
        used += size
        batch.update(*two_batches(small, large, size // 2, size))
        done.append(Update(size, used, loss))
        on_update(done[-1])
    return done


def _two_halves(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float, float]:
    """Leaves the batch's mean gradient in the model; the loss, and |g|² of the halves (their mean) and of the whole."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    losses, gradients = [], []
    for x_half, y_half in zip(x.chunk(2), y.chunk(2), strict=True):
        loss = F.cross_entropy(model(x_half), y_half)
        gradients.append(torch.autograd.grad(loss, parameters))
        losses.append(loss.detach())
    for parameter, one, other in zip(parameters, *gradients, strict=True):
        parameter.grad = (one + other) / 2
    small = sum(map(squared_length, gradients)) / 2
    large = squared_length(p.grad for p in parameters)
    loss, small, large = torch.stack([sum(losses).double() / 2, small, large]).tolist()  # one wait for the device
    return loss, small, large
