"""LARS and LARC: momentum SGD whose every layer has a rate of its own, in proportion to its weights.

In: parameters with gradients. Out: changed weights. You, Gitman and Ginsburg 2017 (arXiv:1708.03888), Algorithm 1:

    λ = η ‖w‖ / (‖g‖ + β ‖w‖)        v ← m v + γ λ (g + β w)        w ← w - v

with the rate γ, momentum m, decay β, trust coefficient η. γ stands *inside* v: when a schedule lowers the rate, what v
remembers keeps the rate of its own time. So do optax, MMPretrain and TensorFlow's Model Garden. ``torch.optim.SGD``
multiplies v by the rate of now, and with it the LARS of timm, torch_optimizer and pytorch_optimizer. At a constant
rate the two are the same; chapter 14 shows what a schedule makes of them.

LARC never lets a layer's rate be above the rate that was asked for: v ← m v + min(λ, γ) (g + β w). NVIDIA's apex
describes it (apex.parallel.LARC with clip=True; its source gives no paper). Early, when gradients are large against
weights, λ is the smaller one and warms up by itself; later γ takes over. Three differences:

- apex leaves the rate to SGD, outside of v: v ← m v + min(λ / γ, 1) (g + β w), w ← w - γ v. What v remembers is scaled
  with every change of γ, what λ had bounded too; here a schedule is felt later, and is not felt where λ is the smaller;
- where the gradient is zero and the weights are not, apex leaves the decay out, and this one decays;
- apex adds 1e-8 below.
"""

import math
from typing import Any

import torch
from torch import Tensor

from dltutorial.optim.layerwise import Group, Layerwise, State, memory, trust_ratio


class LARS(Layerwise):
    """Layer-wise adaptive rate scaling; see the module for the formula."""

    def __init__(
        self, params: Any, lr: float | Tensor, momentum: float = 0.9, weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
    ) -> None:  # fmt: skip
        """Take the parameters; ``without_adaptation(model)`` makes the usual two groups.

        Args:
            params: parameters, or groups of them; a group with ``"adapt": False`` gets λ = 1: plain momentum SGD.
            lr: γ. Goes with η: of a layer that is adapted, only their product counts.
            momentum: m.
            weight_decay: β, of the gradient's kind: it is scaled by λ, too.
            trust_coefficient: η, about the share of its norm by which a layer moves at γ = 1.

        Raises:
            CourseError: a value that cannot be.
        """
        options = {"momentum": momentum, "weight_decay": weight_decay, "trust_coefficient": trust_coefficient}
        super().__init__(params, lr=lr, **options)

    def _rates(self, group: Group, w_norms: Tensor, g_norms: Tensor) -> Tensor:
        """γ λ of each layer; λ is 1 where a norm is 0."""
        below = g_norms + group["weight_decay"] * w_norms
        return group["lr"] * trust_ratio(group["trust_coefficient"] * w_norms, below)

    def change(self, group: Group, ws: list[Tensor], gradients: list[Tensor], states: list[State]) -> None:
        """v ← m v + γ λ (g + β w); w ← w - v."""
        rates: Any = [group["lr"]] * len(ws)
        if group["adapt"]:
            rates = self._rates(group, self.norms(ws), self.norms(gradients)).unbind()
        moves = list(torch._foreach_add(gradients, ws, alpha=group["weight_decay"]))
        torch._foreach_mul_(moves, rates)
        if group["momentum"]:
            vs = memory(states, "momentum_buffer", ws)
            torch._foreach_mul_(vs, group["momentum"])
            torch._foreach_add_(vs, moves)
            moves = vs
        torch._foreach_sub_(ws, moves)


class LARC(LARS):
    """Layer-wise adaptive rate clipping; see the module for the formula. Its coefficient is that of apex."""

    def __init__(self, params: Any, lr: float | Tensor, momentum: float = 0.9, **options: float) -> None:
        """Take the parameters; arguments as :class:`LARS` has them."""
        super().__init__(params, lr, momentum, **{"trust_coefficient": 0.02, **options})

    def _rates(self, group: Group, w_norms: Tensor, g_norms: Tensor) -> Tensor:
        """min(λ, γ) of each layer; γ where a norm is 0."""
        below = g_norms + group["weight_decay"] * w_norms
        return trust_ratio(group["trust_coefficient"] * w_norms, below, math.inf).clamp(max=group["lr"])
