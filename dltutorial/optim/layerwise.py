"""What LARS, LARC and LAMB share: an update layer by layer, and the ratio of norms that scales it.

In: parameters with gradients. Out: changed weights. A *layer* is one tensor: a matrix, a kernel, a bias. Nothing asks
the device for a number: norms and ratios stay tensors on it, so the host never waits, and a CUDA graph can record it.
There is no fused kernel. ``foreach`` makes each operation one kernel for all layers, but for the product with a
layer's own ratio: torch has no kernel that reads one factor a tensor from the device.

Legend: N layers.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dltutorial.errors import CourseError

Group = Mapping[str, Any]
State = MutableMapping[str, Any]
Norm = Callable[[Tensor], Tensor]
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def norm(x: Tensor) -> Tensor:
    """The Euclidean norm of a layer, a scalar tensor; of 16-bit numbers in float32, where squares do not overflow."""
    return torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float32))


def norms(xs: list[Tensor]) -> Tensor:
    """The norms of N layers of one dtype, in one tensor (N,)."""
    return torch.stack(list(torch._foreach_norm(xs, dtype=torch.promote_types(xs[0].dtype, torch.float32))))


class Layerwise(torch.optim.Optimizer):
    """A ``torch.optim.Optimizer``; a subclass says how one layer changes, and how many at once.

    Attributes:
        norm: gives a layer's norm; another may give one for each of the networks that are stacked in the layer.
    """

    norm: Norm = staticmethod(norm)

    def __init__(self, params: Any, **options: Any) -> None:
        """Take the parameters as every optimizer of torch does.

        Args:
            params: parameters, or groups of them. A group with ``"adapt": False`` is not scaled by ratios of norms.
            **options: of each group unless it sets its own. ``lr`` may be a tensor on the parameters' device, so that
                a CUDA graph sees it change; ``foreach=None`` is True on CUDA and False elsewhere.

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

        Raises:
            CourseError: a sparse gradient, or complex weights.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for ws in self._alike(group["params"]):
                gradients, states = [w.grad for w in ws if w.grad is not None], [self.state[w] for w in ws]
                if ws[0].is_cuda if group["foreach"] is None else group["foreach"]:
                    self.change_all(group, ws, gradients, states)
                else:
                    for w, gradient, state in zip(ws, gradients, states, strict=True):
                        self.change(group, w, gradient, state)
        return loss

    def change(self, group: Group, w: Tensor, gradient: Tensor, state: State) -> None:
        """Change one layer; ``state`` is what is remembered of it, empty before its first step."""
        raise NotImplementedError

    def change_all(self, group: Group, ws: list[Tensor], gradients: list[Tensor], states: list[State]) -> None:
        """Change many layers of one device and dtype, with one kernel for each operation where torch has it."""
        raise NotImplementedError

    def _alike(self, parameters: Iterable[Tensor]) -> Iterable[list[Tensor]]:
        """Those with a gradient, by device and kind of number: foreach kernels take one of each."""
        kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for w in parameters:
            if w.grad is None:
                continue
            name = type(self).__name__
            if w.grad.layout != torch.strided:
                raise CourseError(f"{name} takes no sparse gradients; make the embedding with sparse=False")
            if w.is_complex():
                raise CourseError(f"{name} takes no complex weights; train torch.view_as_real of them")
            kinds.setdefault((w.device, w.dtype), []).append(w)
        return kinds.values()


def trust_ratio(above: Tensor, below: Tensor, otherwise: float = 1.0) -> Tensor:
    """``above / below``, and ``otherwise`` where either is 0: a ratio of 0 would keep a layer of zeros there for ever.

    ``above`` grows with the weights' norm, ``below`` with that of the step; one number, or one for each layer.
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

    Raises:
        CourseError: nothing in it is to be trained.
    """
    of_norms = {p for m in module.modules() if isinstance(m, _NORMS) for p in m.parameters(recurse=False)}
    adapted, left = list[Tensor](), list[Tensor]()
    for p in module.parameters():
        if p.requires_grad:
            (left if p.ndim <= 1 or p in of_norms else adapted).append(p)
    groups = [{**options, "params": adapted}, {**options, "params": left, "adapt": False, "weight_decay": 0.0}]
    if not adapted and not left:
        raise CourseError("the module has no parameter to be trained; give one with weights that require gradients")
    return [group for group in groups if group["params"]]
