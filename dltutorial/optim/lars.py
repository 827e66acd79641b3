"""LARS and LARC: momentum SGD, in which each layer has its own rate, in proportion to the norm of its weights.

In: parameters with gradients. Out: changed weights. You, Gitman and Ginsburg 2017 (arXiv:1708.03888), Algorithm 1:

    λ = η ‖w‖ / (‖g‖ + β ‖w‖)        v ← m v + γ λ (g + β w)        w ← w - v

Here γ is the rate, m the momentum, β the weight decay, and η the trust coefficient. γ is a factor *inside* v.
Therefore, when a schedule lowers the rate, earlier gradients in v keep the rate of their own time. optax, MMPretrain
and TensorFlow's Model Garden do the same. ``torch.optim.SGD`` multiplies v by the present rate, and so does the LARS of
timm, torch_optimizer and pytorch_optimizer. At a constant rate both give the same weights. Chapter 14 shows the
difference under a schedule.

LARC limits the rate of a layer to the rate that was set: v ← m v + min(λ, γ) (g + β w). NVIDIA's apex describes it
(apex.parallel.LARC with clip=True; its source names no paper). Early in training, gradients are large compared with
weights. Then λ is the smaller rate, which acts as a warm-up. Later γ is the smaller rate. There are three differences
from apex:

- apex leaves the rate to SGD, outside of v: v ← m v + min(λ / γ, 1) (g + β w), w ← w - γ v. There, every change of γ
  scales all of v, also the steps that λ limited. Here, a change of γ scales only new steps, and only where γ is the
  smaller rate.
- If the gradient is zero and the weights are not, apex does not decay the weights. This module does.
- apex adds 1e-8 to the denominator of λ.
"""

import math
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

    def _rates(self, group: Group, w_norms_N: Tensor, g_norms_N: Tensor) -> Tensor:
        """γ λ of each layer, (N,). λ is 1 where a norm is 0."""
        numerator_N = group["trust_coefficient"] * w_norms_N
        denominator_N = g_norms_N + group["weight_decay"] * w_norms_N
        return group["lr"] * trust_ratio(numerator_N, denominator_N)

    def update_layers(
        self,
        group: Group,
        ws: list[Tensor],
        gradients: list[Tensor],
        states: list[State],
    ) -> None:
        """v ← m v + γ λ (g + β w), w ← w - v. All arguments are as in the base class."""
        rates: Any = [group["lr"]] * len(ws)
        if group["adapt"]:
            rates_N = self._rates(group, norms(ws), norms(gradients))
            rates = rates_N.unbind()
        steps = list(torch._foreach_add(gradients, ws, alpha=group["weight_decay"]))
        torch._foreach_mul_(steps, rates)
        if group["momentum"]:
            vs = state_tensors(states, "momentum_buffer", ws)
            torch._foreach_mul_(vs, group["momentum"])
            torch._foreach_add_(vs, steps)
            steps = vs
        torch._foreach_sub_(ws, steps)


class LARC(LARS):
    """Layer-wise adaptive rate clipping. The module has the formula. The default coefficient is that of apex."""

    def __init__(self, params: Any, lr: float | Tensor, momentum: float = 0.9, **options: float) -> None:
        """Take the parameters. All arguments are as in :class:`LARS`."""
        super().__init__(params, lr, momentum, **{"trust_coefficient": 0.02, **options})

    def _rates(self, group: Group, w_norms_N: Tensor, g_norms_N: Tensor) -> Tensor:
        """min(λ, γ) of each layer, (N,), and γ where a norm is 0."""
        numerator_N = group["trust_coefficient"] * w_norms_N
        denominator_N = g_norms_N + group["weight_decay"] * w_norms_N
        return trust_ratio(numerator_N, denominator_N, default=math.inf).clamp(max=group["lr"])
