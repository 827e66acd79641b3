"""LAMB: Adam whose every layer's step is as long as its weights ask for.

In: parameters with gradients. Out: changed weights. You et al. 2019 (arXiv:1904.00962), Algorithm 2:

    m ← β₁ m + (1 - β₁) g        v ← β₂ v + (1 - β₂) g²
    r = m̂ / (√v̂ + ε)            m̂ = m / (1 - β₁ᵗ), v̂ = v / (1 - β₂ᵗ)
    w ← w - γ φ(‖w‖) / ‖r + λ w‖ · (r + λ w)

with the rate γ and the decay λ, which the ratio scales, too; φ is the identity here. Without decay a factor common to
all of r cancels, so the corrections of m and v hardly matter; with it they do.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dltutorial.errors import CourseError
from dltutorial.optim.layerwise import Group, Layerwise, State, memory, trust_ratio


class LAMB(Layerwise):
    """Layer-wise adaptive moments; see the module for the formula."""

    def __init__(
        self, params: Any, lr: float | Tensor, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
        weight_decay: float = 0.0, capturable: bool = False,
    ) -> None:  # fmt: skip
        """Take the parameters; ``without_adaptation(model)`` makes the usual two groups.

        Args:
            params: parameters, or groups of them; a group with ``"adapt": False`` makes steps γ (r + λ w): AdamW's.
            lr: γ.
            betas: β₁ and β₂.
            eps: added to √v̂.
            weight_decay: λ.
            capturable: keep the counts of steps on the device, for a CUDA graph.

        Raises:
            CourseError: a value that cannot be.
        """
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, capturable=capturable)

    def change(self, group: Group, ws: list[Tensor], gradients: list[Tensor], states: list[State]) -> None:
        """Count the step; then m, v, r and w, one after another."""
        (beta1, beta2), corrections = group["betas"], _corrections(group, ws, states)
        ms, vs = (memory(states, name, ws) for name in ("exp_avg", "exp_avg_sq"))
        torch._foreach_mul_(ms, beta1)
        torch._foreach_add_(ms, gradients, alpha=1 - beta1)
        torch._foreach_mul_(vs, beta2)
        torch._foreach_addcmul_(vs, gradients, gradients, value=1 - beta2)
        rs = list(torch._foreach_div(ms, [of_m for of_m, _ in corrections]))
        roots = torch._foreach_div(vs, [of_v for _, of_v in corrections])
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_div_(rs, roots)
        torch._foreach_add_(rs, ws, alpha=group["weight_decay"])
        rates: Any = [group["lr"]] * len(ws)
        if group["adapt"]:
            rates = (group["lr"] * trust_ratio(self.norms(ws), self.norms(rs))).unbind()
        torch._foreach_mul_(rs, rates)
        torch._foreach_sub_(ws, rs)


def _corrections(group: Group, ws: Sequence[Tensor], states: Sequence[State]) -> list[tuple[Any, Any]]:
    """Count a step of each layer; 1 - β₁ᵗ and 1 - β₂ᵗ of each, on the device if the counts are there.

    They count in place: a CUDA graph counts on in the same memory.

    Raises:
        CourseError: a CUDA graph records this, and the counts are not on the device.
    """
    if ws[0].is_cuda and not group["capturable"] and torch.cuda.is_current_stream_capturing():
        raise CourseError("a CUDA graph would record LAMB's count of steps as a constant; set capturable=True")
    (beta1, beta2), found = group["betas"], list[tuple[Any, Any]]()
    for w, state in zip(ws, states, strict=True):
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=w.device if group["capturable"] else "cpu")
        state["step"] += 1
        # In float64: 1 - 0.999 in float32 has but four digits.
        t = state["step"].double() if group["capturable"] else state["step"].item()
        found.append((1 - beta1**t, 1 - beta2**t))
    return found
