"""LAMB: Adam, in which the length of the step of each layer is in proportion to the norm of its weights.

In: parameters with gradients. Out: changed weights. You et al. 2019 (arXiv:1904.00962), Algorithm 2:

    m ← β₁ m + (1 - β₁) g        v ← β₂ v + (1 - β₂) g²
    r = m̂ / (√v̂ + ε)            m̂ = m / (1 - β₁ᵗ), v̂ = v / (1 - β₂ᵗ)
    w ← w - γ φ(‖w‖) / ‖r + λ w‖ · (r + λ w)

Here γ is the rate and λ the weight decay, which the ratio scales, too. φ is the identity. Without weight decay, a
factor that is common to all of r cancels. Therefore the bias corrections of m and v matter only with weight decay.
"""

from typing import Any

import torch
from torch import Tensor

from dltutorial.optim.layerwise import Layerwise, trust_ratio


class LAMB(Layerwise):
    """Layer-wise adaptive moments. The module has the formula."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        """Take the parameters; ``without_adaptation(model)`` makes the usual two groups.

        Args:
            params: parameters, or groups of them. A group with ``"adapt": False`` makes the steps γ (r + λ w) of AdamW.
            lr: γ. It may be a tensor.
            betas: β₁ and β₂.
            eps: added to √v̂.
            weight_decay: λ.
        """
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": True})

    def update_layer(self, group: dict[str, Any], w: Tensor, gradient: Tensor) -> None:
        """Count the update, then change m, v and w in this order."""
        state = self.state[w]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(w)
            state["exp_avg_sq"] = torch.zeros_like(w)
        beta1, beta2 = group["betas"]
        state["step"] += 1
        m = state["exp_avg"]
        v = state["exp_avg_sq"]
        m.lerp_(gradient, 1 - beta1)
        v.lerp_(gradient.square(), 1 - beta2)
        m_corrected = m / (1 - beta1 ** state["step"])
        v_corrected = v / (1 - beta2 ** state["step"])
        step = m_corrected / (v_corrected.sqrt() + group["eps"]) + group["weight_decay"] * w
        rate = group["lr"]
        if group["adapt"]:
            rate = rate * trust_ratio(w.norm(), step.norm())
        w.sub_(rate * step)
