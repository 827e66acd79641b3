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

from dltutorial.optim.layerwise import Group, Layerwise, State, norms, state_tensors, trust_ratio


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
            lr: γ. For a layer that is adapted, only the product of γ and η matters.
            momentum: m.
            weight_decay: β. It is added to the gradient, so λ scales it, too.
            trust_coefficient: η, about the share of its norm by which a layer changes at γ = 1.
        """
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
        )

    def update_layers(
        self,
        group: Group,
        ws: list[Tensor],
        gradients: list[Tensor],
        states: list[State],
    ) -> None:
        """v ← m v + γ λ (g + β w), w ← w - v. All arguments are as in the base class. λ is 1 where a norm is 0."""
        rates: Any = [group["lr"]] * len(ws)  # γ λ of each layer
        if group["adapt"]:
            w_norms_N = norms(ws)
            numerator_N = group["trust_coefficient"] * w_norms_N
            denominator_N = norms(gradients) + group["weight_decay"] * w_norms_N
            rates_N = group["lr"] * trust_ratio(numerator_N, denominator_N)
            rates = rates_N.unbind()
        steps = list(torch._foreach_add(gradients, ws, alpha=group["weight_decay"]))
        torch._foreach_mul_(steps, rates)
        if group["momentum"]:
            vs = state_tensors(states, "momentum_buffer", ws)
            torch._foreach_mul_(vs, group["momentum"])
            torch._foreach_add_(vs, steps)
            steps = vs
        torch._foreach_sub_(ws, steps)
