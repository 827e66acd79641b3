"""Dynamic loss scaling, written out: fp16 gradients are kept in the middle of fp16's range.

In: a loss and an optimizer. Out: an update with the gradients of the loss itself, or none if they overflowed. The
decisions are those of ``torch.amp.GradScaler``, step for step. Ours asks the host to look at the gradients, so the
host waits for the device once for each gradient; a recipe with ``precision=fp16`` takes torch's, which waits once a
step, and with a fused optimizer not at all.
Micikevicius et al. 2017 (arXiv:1710.03740), section 3.2.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

_LARGEST = torch.finfo(torch.float32).max


class LossScaler:
    """A scale that halves when a gradient overflows and doubles after ``interval`` updates without overflow.

    Attributes:
        scale: what the next loss is multiplied by.
        good_steps: updates since the scale last changed.
    """

    def __init__(self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000):
        """Start at ``scale``; powers of two change no digit of a gradient, only its exponent."""
        self.scale, self.good_steps = scale, 0
        self.growth, self.backoff, self.interval = growth, backoff, interval

    def backward(self, loss: Tensor) -> None:
        """Differentiate the scaled loss: every gradient, of values in between too, is ``scale`` times as large."""
        (loss * self.scale).backward()

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Unscale the gradients; move the weights if all are finite, else leave them; adapt the scale.

        Returns:
            Whether the weights moved.
        """
        finite = unscale((p for group in optimizer.param_groups for p in group["params"]), self.scale)
        if finite:
            optimizer.step()
        self.adapt(finite)
        return finite

    def adapt(self, finite: bool) -> None:
        """Back off at once after an overflow; grow after ``interval`` good updates in a row, while float32 holds it."""
        if not finite:
            self.scale, self.good_steps = self.scale * self.backoff, 0
            return
        self.good_steps += 1
        if self.good_steps == self.interval:
            grown = self.scale * self.growth
            self.scale, self.good_steps = (grown if grown <= _LARGEST else self.scale), 0


def unscale(parameters: Iterable[Tensor], scale: float) -> bool:
    """Divide every gradient by ``scale``, in place; returns whether all of them are finite (neither inf nor NaN)."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    for gradient in gradients:
        gradient.mul_(1 / scale)
    return all(bool(gradient.isfinite().all()) for gradient in gradients)
