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

from dltutorial.optim.layerwise import Group, Layerwise, State, norms, state_tensors, trust_ratio


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
            lr: γ.
            betas: β₁ and β₂.
            eps: added to √v̂.
            weight_decay: λ.
        """
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def update_layers(
        self,
        group: Group,
        ws: list[Tensor],
        gradients: list[Tensor],
        states: list[State],
    ) -> None:
        """Count the update, then change m, v and w in this order. All arguments are as in the base class."""
        beta1, beta2 = group["betas"]
        for state in states:
            state["step"] = state.get("step", 0) + 1
        ms = state_tensors(states, "exp_avg", ws)
        torch._foreach_mul_(ms, beta1)
        torch._foreach_add_(ms, gradients, alpha=1 - beta1)
        vs = state_tensors(states, "exp_avg_sq", ws)
        torch._foreach_mul_(vs, beta2)
        torch._foreach_addcmul_(vs, gradients, gradients, value=1 - beta2)
        m_corrections = [1 - beta1 ** state["step"] for state in states]
        v_corrections = [1 - beta2 ** state["step"] for state in states]
        steps = list(torch._foreach_div(ms, m_corrections))  # becomes r, then r + λ w, then times the rate
        roots = torch._foreach_div(vs, v_corrections)
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_div_(steps, roots)
        torch._foreach_add_(steps, ws, alpha=group["weight_decay"])
        rates: Any = [group["lr"]] * len(ws)
        if group["adapt"]:
            ratios_N = trust_ratio(norms(ws), norms(steps))
            rates = (group["lr"] * ratios_N).unbind()
        torch._foreach_mul_(steps, rates)
        torch._foreach_sub_(ws, steps)
