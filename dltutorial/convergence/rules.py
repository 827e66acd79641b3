"""Optimizers for many networks at once: every tensor holds one layer of R replicas.

In: parameters and gradients (R, …), one learning rate for each replica. Out: parameters changed in place. What they
compute for each replica is what the class of that name in ``torch.optim`` does for one network (a test compares them).

Another rule is a subclass of ``Rule``: ``update`` changes one layer of all replicas. ``norm`` gives the norms of a
layer, one for each replica, as LARS and LAMB need them.

Legend: R replicas; a layer is (R, inputs, outputs), its bias (R, 1, outputs).
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from dltutorial.errors import RecipeError


class Rule:
    """Base of all: keeps what must be remembered of each layer, and lets replicas leave.

    Attributes:
        layers: the parameters, changed in place.
        states: for each layer, what ``state`` made of it; all tensors are (R, …).
        step: updates so far.
    """

    def __init__(self, layers: Sequence[Tensor]) -> None:
        self.layers = list(layers)
        self.states = [self.state(layer) for layer in self.layers]
        self.step = 0

    def state(self, layer: Tensor) -> dict[str, Tensor]:
        """What is remembered of a layer before the first update: tensors (R, …) by name."""
        raise NotImplementedError

    def update(self, layer: Tensor, gradient: Tensor, state: dict[str, Tensor], rate_R11: Tensor) -> None:
        """Change one layer of all replicas, and its state, in place; ``self.step`` counts from 1 here."""
        raise NotImplementedError

    def __call__(self, gradients: Sequence[Tensor], rate_R11: Tensor) -> None:
        """One update of all layers of all replicas."""
        self.step += 1
        for layer, gradient, state in zip(self.layers, gradients, self.states, strict=True):
            self.update(layer, gradient, state, rate_R11)

    def keep(self, layers: Sequence[Tensor], stay: Tensor) -> None:
        """Go on with some replicas, ``stay`` their numbers, whose parameters are ``layers`` now."""
        self.layers = list(layers)
        self.states = [{name: value[stay] for name, value in state.items()} for state in self.states]


class SGD(Rule):
    """Stochastic gradient descent with momentum (Polyak 1964), as ``torch.optim.SGD``."""

    def __init__(self, layers: Sequence[Tensor], momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        self.momentum, self.weight_decay = momentum, weight_decay
        super().__init__(layers)

    def state(self, layer: Tensor) -> dict[str, Tensor]:
        """The velocity."""
        return {"velocity": torch.zeros_like(layer)} if self.momentum else {}

    def update(self, layer: Tensor, gradient: Tensor, state: dict[str, Tensor], rate_R11: Tensor) -> None:
        """v ← μ v + g; w ← w - η v."""
        if self.weight_decay:
            gradient = gradient.add(layer, alpha=self.weight_decay)
        if self.momentum:
            gradient = state["velocity"].mul_(self.momentum).add_(gradient)
        layer.addcmul_(gradient, rate_R11, value=-1)


class Adam(Rule):
    """Kingma and Ba 2014 (arXiv:1412.6980), as ``torch.optim.Adam``."""

    decoupled = False

    def __init__(
        self,
        layers: Sequence[Tensor],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        super().__init__(layers)

    def state(self, layer: Tensor) -> dict[str, Tensor]:
        """Averages of the gradient and of its square."""
        return {"mean": torch.zeros_like(layer), "square": torch.zeros_like(layer)}

    def update(self, layer: Tensor, gradient: Tensor, state: dict[str, Tensor], rate_R11: Tensor) -> None:
        """w ← w - η m̂ / (√v̂ + ε)."""
        if self.weight_decay and self.decoupled:
            layer.sub_(rate_R11 * self.weight_decay * layer)
        elif self.weight_decay:
            gradient = gradient.add(layer, alpha=self.weight_decay)
        layer.addcmul_(self.direction(gradient, state), rate_R11, value=-1)

    def direction(self, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        """m̂ / (√v̂ + ε), with the averages brought up to date."""
        beta1, beta2 = self.betas
        state["mean"].lerp_(gradient, 1 - beta1)
        state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        spread = (state["square"].sqrt() / (1 - beta2**self.step) ** 0.5).add_(self.eps)
        return state["mean"].div(spread).div_(1 - beta1**self.step)


class AdamW(Adam):
    """Weight decay apart from the gradient: Loshchilov and Hutter 2017 (arXiv:1711.05101)."""

    decoupled = True


RULES: Mapping[str, Callable[..., Rule]] = MappingProxyType({"sgd": SGD, "adam": Adam, "adamw": AdamW})


def norm(layer: Tensor) -> Tensor:
    """The Euclidean norm of each replica's part of a layer, shaped (R, 1, 1)."""
    return torch.linalg.vector_norm(layer, dim=(1, 2), keepdim=True)


def make(optimizer: str | Callable[..., Rule], layers: Sequence[Tensor], momentum: float, weight_decay: float) -> Rule:
    """The rule of that name for these layers; anything else is called with the layers alone.

    Raises:
        RecipeError: no rule of that name.
    """
    if not isinstance(optimizer, str):
        return optimizer(layers)
    if optimizer not in RULES:
        raise RecipeError(f"no optimizer {optimizer!r}; choose one of {', '.join(RULES)}, or give a Rule")
    options = {"momentum": momentum} if optimizer == "sgd" else {}
    return RULES[optimizer](layers, weight_decay=weight_decay, **options)
