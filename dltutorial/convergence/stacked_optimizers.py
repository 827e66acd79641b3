"""Optimizers for many networks at once: every tensor holds one layer of R replicas.

A layer, its gradient, what is remembered of it and one learning rate for each replica in; the layer changed in place
out. For each replica they compute what the optimizer of that name does for one network (a test compares them).

Legend: R replicas; a layer is (R, inputs, outputs), its bias (R, 1, outputs).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dltutorial.optim.layerwise import Layerwise

#: Takes a layer, its gradient, its state (a dictionary, empty at first, of tensors (R, …) and numbers that all share)
#: and rates (R, 1, 1).
Update = Callable[[Tensor, Tensor, dict[str, Any], Tensor], None]


def sgd(layer: Tensor, gradient: Tensor, state: dict[str, Any], rate_R11: Tensor) -> None:
    """``torch.optim.SGD`` with momentum 0.9 (Polyak 1964): v ← μ v + g; w ← w - η v."""
    if not state:
        state["velocity"] = torch.zeros_like(layer)
    layer.addcmul_(state["velocity"].mul_(0.9).add_(gradient), rate_R11, value=-1)


def adam(layer: Tensor, gradient: Tensor, state: dict[str, Any], rate_R11: Tensor) -> None:
    """``torch.optim.Adam`` with its own β₁, β₂ and ε (Kingma and Ba 2014, arXiv:1412.6980): w ← w - η m̂ / (√v̂ + ε)."""
    beta1, beta2 = 0.9, 0.999
    if not state:
        state |= {"mean": torch.zeros_like(layer), "square": torch.zeros_like(layer), "step": 0}
    state["step"] += 1
    mean, square = state["mean"], state["square"]
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    spread = (square.sqrt() / (1 - beta2 ** state["step"]) ** 0.5).add_(1e-8)
    layer.addcmul_(mean.div(spread).div_(1 - beta1 ** state["step"]), rate_R11, value=-1)


def for_replicas(optimizer: Callable[..., Layerwise], **options: Any) -> Update:
    """LARS, LARC or LAMB for ``ensemble.train(optimizer=for_replicas(LAMB, weight_decay=0.01))``.

    The optimizer's own code, with one norm a layer and replica. Biases are neither scaled by a ratio nor decayed.
    """
    of_one = optimizer([torch.zeros(1)], lr=0.0, **options)
    of_one.norms = lambda layers: torch.stack([torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) for x in layers])

    def update(layer: Tensor, gradient: Tensor, state: dict[str, Any], rate_R11: Tensor) -> None:
        spared = {"adapt": False, "weight_decay": 0.0} if layer.shape[1] == 1 else {}
        of_one.change({**of_one.param_groups[0], "lr": rate_R11, **spared}, [layer], [gradient], [state])

    return update
