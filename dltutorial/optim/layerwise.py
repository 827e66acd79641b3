"""What LARS and LAMB share: the loop over the layers, the ratio of norms that scales each layer, and two groups.

A *layer* is one tensor, such as a matrix, a kernel or a bias. Norms and ratios stay tensors on the device, so the host
never waits for the device. Sources are in ``lars`` and ``lamb``.
"""

from typing import Any

import torch
from torch import Tensor, nn


class Layerwise(torch.optim.Optimizer):
    """A ``torch.optim.Optimizer`` whose subclass says how a layer changes."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change every weight that has a gradient. The gradients stay the same. There must be no closure."""
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self.update_layer(group, w, w.grad)

    def update_layer(self, group: dict[str, Any], w: Tensor, gradient: Tensor) -> None:
        """Change the weights of one layer in place.

        Args:
            group: the options of the layer.
            w: its weights.
            gradient: its gradient.
        """
        raise NotImplementedError


def trust_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The ratio of a layer, a scalar.

    It is 1 where one of the two is 0, because a layer of zeros would never change with a ratio of 0.

    Args:
        numerator: in proportion to the norm of the weights.
        denominator: in proportion to the norm of the step.
    """
    are_positive = (numerator > 0) & (denominator > 0)
    return torch.where(are_positive, numerator / denominator, 1.0)


def without_adaptation(module: nn.Module) -> list[dict[str, Any]]:
    """Divide the trainable parameters of a module into two groups.

    The first group has the matrices and kernels. The second group has vectors and scalars, such as biases and the
    weights of norm layers. It is neither scaled by a ratio nor decayed, because its norms say little: a bias starts at
    zero, and the scale of a norm layer starts at one.

    Returns:
        Parameter groups for an optimizer.
    """
    trainable = [p for p in module.parameters() if p.requires_grad]
    adapted = [p for p in trainable if p.ndim > 1]
    others = [p for p in trainable if p.ndim <= 1]
    return [{"params": adapted}, {"params": others, "adapt": False, "weight_decay": 0.0}]
