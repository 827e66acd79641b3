"""LARS and LARC: momentum SGD whose every layer has a rate of its own, in proportion to its weights.

In: parameters with gradients. Out: changed weights. You, Gitman and Ginsburg 2017 (arXiv:1708.03888), Algorithm 1:

    λ = η ‖w‖ / (‖g‖ + β ‖w‖)        v ← m v + γ λ (g + β w)        w ← w - v

with the rate γ, momentum m, decay β, trust coefficient η. γ stands *inside* v: when a schedule lowers the rate, what v
remembers keeps the rate of its own time. ``torch.optim.SGD`` multiplies v by the rate of now; at a constant rate the
two are the same.

LARC never lets a layer's rate be above the rate that was asked for: v ← m v + min(λ, γ) (g + β w). NVIDIA's apex
describes it (apex.parallel.LARC with clip=True; its source gives no paper). Early, when gradients are large against
weights, λ is the smaller one and warms up by itself; later γ takes over. One difference: where the gradient is zero
and the weights are not, apex leaves the layer alone, and this one decays it.
"""

import math
from typing import Any

import torch
from torch import Tensor

from dltutorial.optim.layerwise import Group, Layerwise, State, memory, norms, trust_ratio


class LARS(Layerwise):
    """Layer-wise adaptive rate scaling; see the module for the formula."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        eps: float = 0.0,
        nesterov: bool = False,
        foreach: bool | None = None,
    ) -> None:
        """Take the parameters; ``without_adaptation(model)`` makes the usual two groups.

        Args:
            params: parameters, or groups of them; a group with ``"adapt": False`` gets λ = 1: plain momentum SGD.
            lr: γ. Goes with η: of a layer that is adapted, only their product counts.
            momentum: m.
            weight_decay: β, of the gradient's kind: it is scaled by λ, too.
            trust_coefficient: η, about the share of its norm by which a layer moves at γ = 1.
            eps: added to the denominator; the paper has none.
            nesterov: go on by m v + γ λ (g + β w) instead of v, as torch.optim.SGD does; the paper has none.
            foreach: all layers at once; None: on CUDA.

        Raises:
            CourseError: a value that cannot be.
        """
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
            eps=eps,
            nesterov=nesterov,
            foreach=foreach,
        )

    def _rate(self, group: Group, w_norm: Tensor, g_norm: Tensor) -> Tensor:
        """γ λ of one layer, or of N; λ is 1 where a norm is 0."""
        below = g_norm + group["weight_decay"] * w_norm + group["eps"]
        return group["lr"] * trust_ratio(group["trust_coefficient"] * w_norm, below)

    def change(self, group: Group, w: Tensor, gradient: Tensor, state: State) -> None:
        """Change one layer."""
        move = gradient.add(w, alpha=group["weight_decay"])
        move.mul_(self._rate(group, self.norm(w), self.norm(gradient)) if group["adapt"] else group["lr"])
        if group["momentum"]:
            (v,) = memory([state], "momentum_buffer", [w])
            v.mul_(group["momentum"]).add_(move)
            move = move.add(v, alpha=group["momentum"]) if group["nesterov"] else v
        w.sub_(move)

    def change_all(self, group: Group, ws: list[Tensor], gradients: list[Tensor], states: list[State]) -> None:
        """Change many layers."""
        moves = torch._foreach_add(gradients, ws, alpha=group["weight_decay"])
        if group["adapt"]:
            torch._foreach_mul_(moves, self._rate(group, norms(ws), norms(gradients)).unbind())
        else:
            torch._foreach_mul_(moves, group["lr"])
        if group["momentum"]:
            vs = memory(states, "momentum_buffer", ws)
            torch._foreach_mul_(vs, group["momentum"])
            torch._foreach_add_(vs, moves)
            moves = torch._foreach_add(moves, vs, alpha=group["momentum"]) if group["nesterov"] else tuple(vs)
        torch._foreach_sub_(ws, moves)


class LARC(LARS):
    """Layer-wise adaptive rate clipping; see the module for the formula. Its values are those of apex."""

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
        """Take the parameters; arguments as :class:`LARS` has them."""
        super().__init__(params, lr, momentum, weight_decay, trust_coefficient, eps, nesterov, foreach)

    def _rate(self, group: Group, w_norm: Tensor, g_norm: Tensor) -> Tensor:
        """min(λ, γ) of one layer, or of N; γ where a norm is 0."""
        below = g_norm + group["weight_decay"] * w_norm + group["eps"]
        return trust_ratio(group["trust_coefficient"] * w_norm, below, math.inf).clamp(max=group["lr"])
