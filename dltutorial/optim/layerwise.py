"""What LARS, LARC and LAMB share: an update of all layers at once, and the ratio of norms that scales each of them.

In: parameters with gradients. Out: changed weights. A *layer* is one tensor: a matrix, a kernel, a bias. Nothing asks
the device for a number: norms and ratios stay tensors on it, so the host never waits, and a CUDA graph can record it.
Each operation is one kernel for all layers where torch has it (``torch._foreach_…``); chapter 14 writes LARS and LAMB
out layer by layer.

Legend: N layers.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dltutorial.errors import CourseError

Group = Mapping[str, Any]
State = MutableMapping[str, Any]
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def norms(xs: list[Tensor]) -> Tensor:
    """Euclidean norms (N,) of layers of one dtype; of 16-bit numbers in float32, where squares do not overflow."""
    return torch.stack(list(torch._foreach_norm(xs, dtype=torch.promote_types(xs[0].dtype, torch.float32))))


class Layerwise(torch.optim.Optimizer):
    """A ``torch.optim.Optimizer``; a subclass says how layers change.

    Attributes:
        norms: gives the layers' norms; another may give one for each of the networks that are stacked in a layer.
    """

    norms: Callable[[list[Tensor]], Tensor] = staticmethod(norms)

    def __init__(self, params: Any, **options: Any) -> None:
        """Take the parameters as every optimizer of torch does.

        Args:
            params: parameters, or groups of them. A group with ``"adapt": False`` is not scaled by ratios of norms.
            **options: of each group unless it sets its own. ``lr`` may be a tensor on the parameters' device, so that
                a CUDA graph sees it change.

        Raises:
            CourseError: a negative rate, decay, coefficient or eps, or a memory that is not in [0, 1).
        """
        for name in ("lr", "weight_decay", "trust_coefficient", "eps"):
            if not options.get(name, 0.0) >= 0:
                raise CourseError(f"{type(self).__name__}: {name}={options[name]}, but it must not be negative")
        for kept in (options.get("momentum", 0.0), *options.get("betas", ())):
            if not 0 <= kept < 1:
                raise CourseError(f"{type(self).__name__}: a momentum or beta of {kept}, but it must be in [0, 1)")
        super().__init__(params, {"adapt": True, **options})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change every weight that has a gradient; the gradients stay as they are.

        Args:
            closure: computes the loss and its gradients; called once, before anything changes.

        Returns:
            What the closure returned; None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
            for w in group["params"]:
                if w.grad is not None:
                    kinds.setdefault((w.device, w.dtype), []).append(w)
            for ws in kinds.values():  # kernels for many layers take one kind of number
                gradients = [w.grad for w in ws if w.grad is not None]
                self.change(group, ws, gradients, [self.state[w] for w in ws])
        return loss

    def change(self, group: Group, ws: list[Tensor], gradients: list[Tensor], states: list[State]) -> None:
        """Change layers of one device and dtype; a state is what is remembered of a layer, empty before its first."""
        raise NotImplementedError


def trust_ratio(above: Tensor, below: Tensor, otherwise: float = 1.0) -> Tensor:
    """``above / below``, and ``otherwise`` where either is 0: a ratio of 0 would keep a layer of zeros there for ever.

    ``above`` grows with the weights' norm, ``below`` with that of the step; one number for each layer.
    """
    return torch.where((above > 0) & (below > 0), above / below, otherwise)


def memory(states: Sequence[State], name: str, ws: Sequence[Tensor]) -> list[Tensor]:
    """What an optimizer remembers of each layer under this name, zeros at first."""
    return [s[name] if name in s else s.setdefault(name, torch.zeros_like(w)) for s, w in zip(states, ws, strict=True)]


def without_adaptation(module: nn.Module, **options: Any) -> list[dict[str, Any]]:
    """Two parameter groups: matrices and kernels, and what is neither scaled by a ratio nor decayed.

    To the second group belong vectors and scalars (biases, most norms) and all weights of norm layers. Their norms
    say little: a bias starts at zero, a norm's scale at one.

    Args:
        module: its trainable parameters, each once, in its order.
        **options: of both groups.
    """
    of_norms = {p for m in module.modules() if isinstance(m, _NORMS) for p in m.parameters(recurse=False)}
    adapted, left = list[Tensor](), list[Tensor]()
    for p in module.parameters():
        if p.requires_grad:
            (left if p.ndim <= 1 or p in of_norms else adapted).append(p)
    groups = [{**options, "params": adapted}, {**options, "params": left, "adapt": False, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
