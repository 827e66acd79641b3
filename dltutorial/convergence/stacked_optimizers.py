"""Optimizers for many networks at once: every tensor holds one layer of R replicas.

In: layers and gradients (R, …), one learning rate for each replica. Out: layers changed in place. For each replica
they compute what the optimizer of that name does for one network (a test compares them).

Legend: R replicas; a layer is (R, inputs, outputs), its bias (R, 1, outputs).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dltutorial.optim.layerwise import Layerwise


class StackedOptimizer:
    """Base of all: keeps what must be remembered of each layer, and lets replicas leave.

    Attributes:
        layers: the parameters, changed in place.
        states: for each layer, what ``update`` remembers of it: tensors (R, …) by name.
        step: updates so far.
    """

    def __init__(self, layers: Sequence[Tensor]) -> None:
        self.layers = list(layers)
        self.states: list[dict[str, Any]] = [{} for _ in layers]
        self.step = 0

    def update(self, layer: Tensor, gradient: Tensor, state: dict[str, Any], rate_R11: Tensor) -> None:
        """Change one layer of all replicas, and its state, in place; ``self.step`` counts from 1 here."""
        raise NotImplementedError

    def __call__(self, gradients: Sequence[Tensor], rate_R11: Tensor) -> None:
        """One update of all layers of all replicas."""
        self.step += 1
        for layer, gradient, state in zip(self.layers, gradients, self.states, strict=True):
            self.update(layer, gradient, state, rate_R11)

    def keep(self, layers: Sequence[Tensor], stay: Tensor) -> None:
        """Go on with some replicas, ``stay`` their numbers, whose layers are ``layers`` now.

        A count of steps, a scalar, is one for all and stays as it is.
        """
        self.layers = list(layers)
        self.states = [{name: x[stay] if x.ndim else x for name, x in state.items()} for state in self.states]


class StackedSGD(StackedOptimizer):
    """Stochastic gradient descent with momentum (Polyak 1964), as ``torch.optim.SGD``."""

    def __init__(self, layers: Sequence[Tensor], momentum: float = 0.9) -> None:
        self.momentum = momentum
        super().__init__(layers)

    def update(self, layer: Tensor, gradient: Tensor, state: dict[str, Any], rate_R11: Tensor) -> None:
        """v ← μ v + g; w ← w - η v."""
        if self.momentum:
            if not state:
                state["velocity"] = torch.zeros_like(layer)
            gradient = state["velocity"].mul_(self.momentum).add_(gradient)
        layer.addcmul_(gradient, rate_R11, value=-1)


class StackedAdam(StackedOptimizer):
    """Kingma and Ba 2014 (arXiv:1412.6980), as ``torch.optim.Adam`` with its own β₁, β₂ and ε."""

    def update(self, layer: Tensor, gradient: Tensor, state: dict[str, Any], rate_R11: Tensor) -> None:
        """w ← w - η m̂ / (√v̂ + ε)."""
        beta1, beta2 = 0.9, 0.999
        if not state:
            state |= {"mean": torch.zeros_like(layer), "square": torch.zeros_like(layer)}
        mean, square = state["mean"], state["square"]
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        spread = (square.sqrt() / (1 - beta2**self.step) ** 0.5).add_(1e-8)
        layer.addcmul_(mean.div(spread).div_(1 - beta1**self.step), rate_R11, value=-1)


class StackedLayerwise(StackedOptimizer):
    """LARS, LARC or LAMB: the optimizer's own code, with one norm a layer and replica.

    Biases are neither scaled by a ratio nor decayed.
    """

    def __init__(self, layers: Sequence[Tensor], optimizer: Callable[..., Layerwise], **options: Any) -> None:
        self.optimizer = optimizer(list(layers), lr=0.0, **options)
        self.optimizer.norm = norm
        super().__init__(layers)

    def update(self, layer: Tensor, gradient: Tensor, state: dict[str, Any], rate_R11: Tensor) -> None:
        """Change one layer of all replicas, each by the norms of its own part."""
        group, is_bias = self.optimizer.param_groups[0], layer.shape[1] == 1
        own = {"lr": rate_R11} | ({"adapt": False, "weight_decay": 0.0} if is_bias else {})
        self.optimizer.change({**group, **own}, layer, gradient, state)


def norm(layer: Tensor) -> Tensor:
    """The Euclidean norm of each replica's part of a layer, shaped (R, 1, 1)."""
    return torch.linalg.vector_norm(layer, dim=(1, 2), keepdim=True)


def for_replicas(optimizer: Callable[..., Layerwise], **options: Any) -> Callable[[Sequence[Tensor]], StackedOptimizer]:
    """For ``ensemble.train(optimizer=for_replicas(LAMB, weight_decay=0.01))``."""
    return lambda layers: StackedLayerwise(layers, optimizer, **options)
