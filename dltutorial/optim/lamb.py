"""LAMB: Adam, in which the length of the step of each layer is in proportion to the norm of its weights.

In: parameters with gradients. Out: changed weights. You et al. 2019 (arXiv:1904.00962), Algorithm 2:

    m ← β₁ m + (1 - β₁) g        v ← β₂ v + (1 - β₂) g²
    r = m̂ / (√v̂ + ε)            m̂ = m / (1 - β₁ᵗ), v̂ = v / (1 - β₂ᵗ)
    w ← w - γ φ(‖w‖) / ‖r + λ w‖ · (r + λ w)

Here γ is the rate and λ the weight decay, which the ratio scales, too. φ is the identity. Without weight decay, a
factor that is common to all of r cancels. Therefore the bias corrections of m and v matter only with weight decay.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dltutorial.errors import CourseError
from dltutorial.optim.layerwise import Group, Layerwise, State, memory, trust_ratio


class LAMB(Layerwise):
    """Layer-wise adaptive moments. The module has the formula."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        capturable: bool = False,
    ) -> None:
        """Take the parameters; ``without_adaptation(model)`` makes the usual two groups.

        Args:
            params: parameters, or groups of them. A group with ``"adapt": False`` makes the steps γ (r + λ w) of AdamW.
            lr: γ.
            betas: β₁ and β₂.
            eps: added to √v̂.
            weight_decay: λ.
            capturable: hold the counts of updates on the device, for a CUDA graph.

        Raises:
            CourseError: A value is out of its range.
        """
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, capturable=capturable)

    def change(self, group: Group, ws: list[Tensor], gradients: list[Tensor], states: list[State]) -> None:
        """Count the update, then change m, v and w in this order. All arguments are as in the base class."""
        beta1, beta2 = group["betas"]
        m_corrections, v_corrections = _bias_corrections(group, ws, states)
        ms = memory(states, "exp_avg", ws)
        torch._foreach_mul_(ms, beta1)
        torch._foreach_add_(ms, gradients, alpha=1 - beta1)
        vs = memory(states, "exp_avg_sq", ws)
        torch._foreach_mul_(vs, beta2)
        torch._foreach_addcmul_(vs, gradients, gradients, value=1 - beta2)
        steps = list(torch._foreach_div(ms, m_corrections))  # becomes r, then r + λ w, then times the rate
        roots = torch._foreach_div(vs, v_corrections)
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_div_(steps, roots)
        torch._foreach_add_(steps, ws, alpha=group["weight_decay"])
        rates: Any = [group["lr"]] * len(ws)
        if group["adapt"]:
            rates = (group["lr"] * trust_ratio(self.norms(ws), self.norms(steps))).unbind()
        torch._foreach_mul_(steps, rates)
        torch._foreach_sub_(ws, steps)


def _bias_corrections(group: Group, ws: Sequence[Tensor], states: Sequence[State]) -> tuple[list[Any], list[Any]]:
    """Count an update of each layer.

    The counts change in place, so that each replay of a CUDA graph counts on in the same memory.

    Returns:
        1 - β₁ᵗ and 1 - β₂ᵗ of each layer, on the device if the counts are there.

    Raises:
        CourseError: A CUDA graph records this, and the counts are not on the device.
    """
    capturable = group["capturable"]
    if ws[0].is_cuda and not capturable and torch.cuda.is_current_stream_capturing():
        raise CourseError("a CUDA graph would record LAMB's count of steps as a constant; set capturable=True")
    beta1, beta2 = group["betas"]
    m_corrections: list[Any] = []
    v_corrections: list[Any] = []
    for w, state in zip(ws, states, strict=True):
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=w.device if capturable else "cpu")
        state["step"] += 1
        # In float64, because 1 - 0.999 has only four correct digits in float32.
        t = state["step"].double() if capturable else state["step"].item()
        m_corrections.append(1 - beta1**t)
        v_corrections.append(1 - beta2**t)
    return m_corrections, v_corrections
