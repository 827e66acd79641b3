"""LARS: momentum SGD, in which each layer has its own rate, in proportion to the norm of its weights.

In: parameters with gradients. Out: changed weights. You, Gitman and Ginsburg 2017 (arXiv:1708.03888), Algorithm 1:

    λ = η ‖w‖ / (‖g‖ + β ‖w‖)        v ← m v + γ λ (g + β w)        w ← w - v

Here γ is the rate, m the momentum, β the weight decay, and η the trust coefficient. γ is a factor *inside* v.
Therefore, when a schedule lowers the rate, earlier gradients in v keep the rate of their own time. optax, MMPretrain
and TensorFlow's Model Garden do the same. ``torch.optim.SGD`` multiplies v by the present rate, and so does the LARS of
timm, torch_optimizer and pytorch_optimizer. At a constant rate both give the same weights. Chapter 14 shows the
difference under a schedule.
"""

from typing import Any

import torch
from torch import Tensor

from dltutorial.optim.layerwise import Layerwise, trust_ratio


class LARS(Layerwise):
    """Layer-wise adaptive rate scaling. The module has the formula."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
    ) -> None:
        """Take the parameters; ``without_adaptation(model)`` makes the usual two groups.

        Args:
            params: parameters, or groups of them. A group with ``"adapt": False`` has λ = 1, which is momentum SGD.
            lr: γ. It may be a tensor. For a layer that is adapted, only the product of γ and η matters.
            momentum: m.
            weight_decay: β. It is added to the gradient, so λ scales it, too.
            trust_coefficient: η, about the share of its norm by which a layer changes at γ = 1.
        """
        options = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "adapt": True,
        }
        super().__init__(params, options)

    def update_layer(self, group: dict[str, Any], w: Tensor, gradient: Tensor) -> None:
        """v ← m v + γ λ (g + β w), w ← w - v. λ is 1 where a norm is 0."""
        state = self.state[w]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(w)
        rate = group["lr"]  # γ λ
        if group["adapt"]:
            numerator = group["trust_coefficient"] * w.norm()
            denominator = gradient.norm() + group["weight_decay"] * w.norm()
            rate = rate * trust_ratio(numerator, denominator)
        v = state["momentum_buffer"]
        v.mul_(group["momentum"])
        v.add_(rate * (gradient + group["weight_decay"] * w))
        w.sub_(v)
