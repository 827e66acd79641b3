"""LARS, LARC and LAMB for many networks at once: the optimizers' own code, with one norm a layer and replica.

In: layers (R, …) of ``ensemble``, one learning rate for each replica. Out: layers changed in place. You et al. 2017
(arXiv:1708.03888) and 2019 (arXiv:1904.00962). Biases are neither scaled by a ratio nor decayed.

Legend: R replicas; a layer is (R, inputs, outputs), its bias (R, 1, outputs).
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dltutorial.convergence import rules
from dltutorial.optim.layerwise import Layerwise


class LayerwiseRule(rules.Rule):
    """A rule of ``ensemble`` made of an optimizer that goes layer by layer."""

    def __init__(self, layers: Sequence[Tensor], optimizer: Callable[..., Layerwise], **options: Any) -> None:
        """Take the layers.

        Args:
            layers: (R, …).
            optimizer: LARS, LARC or LAMB.
            **options: its options.
        """
        self.optimizer = optimizer(list(layers), lr=0.0, **options)
        super().__init__(layers)

    def state(self, layer: Tensor) -> dict[str, Tensor]:
        """Nothing: the optimizer makes what it needs at its first step."""
        return {}

    def update(self, layer: Tensor, gradient: Tensor, state: dict[str, Tensor], rate_R11: Tensor) -> None:
        """Change one layer of all replicas, each by the norms of its own part."""
        group, is_bias = self.optimizer.param_groups[0], layer.shape[1] == 1
        own = {"lr": rate_R11} | ({"adapt": False, "weight_decay": 0.0} if is_bias else {})
        self.optimizer.change({**group, **own}, layer, gradient, state, norm=rules.norm)

    def keep(self, layers: Sequence[Tensor], stay: Tensor) -> None:
        """Go on with some replicas. A count of steps is one number for all, so it stays as it is."""
        counts = [state.pop("step", None) for state in self.states]
        super().keep(layers, stay)
        for state, count in zip(self.states, counts, strict=True):
            if count is not None:
                state["step"] = count


def rule(optimizer: Callable[..., Layerwise], **options: Any) -> Callable[[Sequence[Tensor]], LayerwiseRule]:
    """For ``ensemble.train(optimizer=rule(LAMB, weight_decay=0.01))``."""
    return lambda layers: LayerwiseRule(layers, optimizer, **options)
