"""Optimizers for many networks at once. Each tensor holds one layer of R replicas.

In: a layer, its gradient, its optimizer state, and one learning rate for each replica. Out: the layer, changed in
place. For each replica, the result is that of the optimizer of the same name for one network, which a test compares.
The functions name their sources.

Legend: R replicas; a layer has the shape (R, inputs, outputs), and its bias (R, 1, outputs).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: It takes a layer, its gradient, its optimizer state and rates (R, 1, 1). The optimizer state is a dictionary, empty
#: before the first update, of tensors (R, …) and of numbers that all replicas share.
Update = Callable[[Tensor, Tensor, dict[str, Any], Tensor], None]


def sgd(layer: Tensor, gradient: Tensor, state: dict[str, Any], rate_R11: Tensor) -> None:
    """``torch.optim.SGD`` with momentum 0.9 (Polyak 1964): v ← μ v + g; w ← w - η v."""
    if not state:
        state["velocity"] = torch.zeros_like(layer)
    velocity = state["velocity"]
    velocity.mul_(0.9).add_(gradient)
    layer.addcmul_(velocity, rate_R11, value=-1)


def adam(layer: Tensor, gradient: Tensor, state: dict[str, Any], rate_R11: Tensor) -> None:
    """``torch.optim.Adam`` with its default β₁, β₂ and ε: w ← w - η m̂ / (√v̂ + ε).

    Source: Kingma and Ba 2014 (arXiv:1412.6980).
    """
    beta1, beta2 = 0.9, 0.999
    if not state:
        state["mean"] = torch.zeros_like(layer)
        state["square"] = torch.zeros_like(layer)
        state["step"] = 0
    state["step"] += 1
    mean = state["mean"]
    mean.lerp_(gradient, 1 - beta1)
    square = state["square"]
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    m_correction = 1 - beta1 ** state["step"]
    v_correction = 1 - beta2 ** state["step"]
    denominator = (square.sqrt() / v_correction**0.5).add_(1e-8)
    layer.addcmul_(mean.div(denominator).div_(m_correction), rate_R11, value=-1)
