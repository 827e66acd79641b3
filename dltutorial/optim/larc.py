"""LARC: LARS whose rate of a layer is never above the rate that was asked for.

In: parameters with gradients. Out: changed weights. NVIDIA's apex describes it (apex.parallel.LARC with clip=True;
its source gives no paper):

    λ = η ‖w‖ / (‖g‖ + β ‖w‖ + ε)        v ← m v + min(λ, γ) (g + β w)        w ← w - v

Early, when gradients are large against weights, λ is the smaller one and warms up by itself; later γ takes over. In
LARS γ multiplies λ, here it only bounds it. One difference: where the gradient is zero and the weights are not, apex
leaves the layer alone, and this one decays it.
"""

import math
from typing import Any

from torch import Tensor

from dltutorial.optim.lars import LARS
from dltutorial.optim.layerwise import Group, trust_ratio


class LARC(LARS):
    """Layer-wise adaptive rate clipping; see the module for the formula."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.02,
        eps: float = 1e-8,
        nesterov: bool = False,
        foreach: bool | None = None,
    ) -> None:
        """Take the parameters; arguments as :class:`LARS` has them, with the values of apex.

        Raises:
            CourseError: a value that cannot be.
        """
        super().__init__(params, lr, momentum, weight_decay, trust_coefficient, eps, nesterov, foreach)

    def _rate(self, group: Group, w_norm: Tensor, g_norm: Tensor) -> Tensor:
        """min(λ, γ) of one layer, or of N; γ where a norm is 0."""
        below = g_norm + group["weight_decay"] * w_norm + group["eps"]
        return trust_ratio(group["trust_coefficient"] * w_norm, below, math.inf).clamp(max=group["lr"])
