"""The parts that LARS and LAMB share: one update of all layers, and the ratio of norms that scales each layer.

In: parameters with gradients. Out: changed weights. A *layer* is one tensor, such as a matrix, a kernel or a bias.
Norms and ratios stay tensors on the device, so the host never waits for the device. Each operation is one kernel for
all layers if torch has such a kernel (``torch._foreach_…``). Chapter 14 writes LARS and LAMB layer by layer. Sources
are in ``lars`` and ``lamb``.

Legend: N layers.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Group = Mapping[str, Any]
State = MutableMapping[str, Any]
_NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def norms(xs: list[Tensor]) -> Tensor:
    """Euclidean norms (N,) of layers of one dtype. For 16-bit numbers they are float32, in which squares fit."""
    dtype = torch.promote_types(xs[0].dtype, torch.float32)
    return torch.stack(list(torch._foreach_norm(xs, dtype=dtype)))


class Layerwise(torch.optim.Optimizer):
    """A ``torch.optim.Optimizer`` whose subclass says how layers change."""

    def __init__(self, params: Any, **options: Any) -> None:
        """Take the parameters as every optimizer of torch does.

        Args:
            params: parameters, or groups of them. A group with ``"adapt": False`` is not scaled by ratios of norms.
            **options: of each group that does not set its own. ``lr`` may be a tensor on the device of the parameters.
        """
        super().__init__(params, {"adapt": True, **options})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change every weight that has a gradient. The gradients stay the same.

        Args:
            closure: computes the loss and its gradients. It is called once, before any weight changes.

        Returns:
            The result of the closure, or None without a closure.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            ws = [w for w in group["params"] if w.grad is not None]
            if ws:
                gradients = [w.grad for w in ws]
                states = [self.state[w] for w in ws]
                self.update_layers(group, ws, gradients, states)
        return loss

    def update_layers(
        self,
        group: Group,
        ws: list[Tensor],
        gradients: list[Tensor],
        states: list[State],
    ) -> None:
        """Change layers in place. All of them have the same device and dtype.

        Args:
            group: the options of these layers.
            ws: the weights of each layer.
            gradients: of each layer.
            states: the optimizer state of each layer, which is empty before the first update.
        """
        raise NotImplementedError


def trust_ratio(numerator_N: Tensor, denominator_N: Tensor) -> Tensor:
    """The ratio (N,) of each layer.

    It is 1 where one of the two is 0, because a layer of zeros would never change with a ratio of 0.

    Args:
        numerator_N: in proportion to the norms of the weights.
        denominator_N: in proportion to the norms of the steps.
    """
    are_positive_N = (numerator_N > 0) & (denominator_N > 0)
    return torch.where(are_positive_N, numerator_N / denominator_N, 1.0)


def state_tensors(states: Sequence[State], name: str, ws: Sequence[Tensor]) -> list[Tensor]:
    """The tensor of this name in the optimizer state of each layer. It is zero before the first update."""
    for state, w in zip(states, ws, strict=True):
        if name not in state:
            state[name] = torch.zeros_like(w)
    return [state[name] for state in states]


def without_adaptation(module: nn.Module, **options: Any) -> list[dict[str, Any]]:
    """Divide the trainable parameters of a module into two groups.

    The first group has the matrices and kernels. The second group has vectors and scalars (biases, most norms) and all
    weights of norm layers. It is neither scaled by a ratio nor decayed, because its norms say little: a bias starts at
    zero, and the scale of a norm layer starts at one.

    Args:
        module: each of its trainable parameters is in one group, in the order of the module.
        **options: of both groups.

    Returns:
        Parameter groups for an optimizer. A group without parameters is left out.
    """
    in_norm_layers: set[Tensor] = set()
    for layer in module.modules():
        if isinstance(layer, _NORM_LAYERS):
            in_norm_layers.update(layer.parameters(recurse=False))
    adapted: list[Tensor] = []
    others: list[Tensor] = []
    for p in module.parameters():
        if not p.requires_grad:
            continue
        if p.ndim <= 1 or p in in_norm_layers:
            others.append(p)
        else:
            adapted.append(p)
    groups = [
        {
            **options,
            "params": adapted,
        },
        {
            **options,
            "params": others,
            "adapt": False,
            "weight_decay": 0.0,
        },
    ]
    return [group for group in groups if group["params"]]
