"""What a step needs: FLOP and bytes, counted operator by operator while it runs once.

In: a function that makes one step. Out: a frozen :class:`Work`. With a machine's peaks it gives the roofline of the
step: each operator takes at least max(FLOP / peak, bytes / bandwidth) seconds.

FLOP are those of matrix products, convolutions and attention, as torch counts them. Bytes are what an operator reads
and writes if nothing is left in a cache; an operator that only renames data (a view) moves none. A fused kernel of
``torch.compile`` is not seen by the counter: count the step before compiling it.

Source: docs.pytorch.org, torch.utils.flop_counter; Williams et al. 2009, doi:10.1145/1498765.1498785.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from dltutorial.errors import CourseError
from dltutorial.profile.peaks import Peaks

_MOVES_NOTHING = ("_unsafe_view", "_reshape_alias", "detach", "empty", "empty_like", "empty_strided", "new_empty")


class Operator(NamedTuple):
    """One call: its name, FLOP, bytes read and written."""

    name: str
    flop: float
    n_bytes: float


@dataclass(frozen=True)
class Work:
    """The operators of one step that compute or move something, in order."""

    operators: tuple[Operator, ...]

    @property
    def flop(self) -> float:
        """Of the whole step."""
        return sum(operator.flop for operator in self.operators)

    @property
    def n_bytes(self) -> float:
        """Of the whole step."""
        return sum(operator.n_bytes for operator in self.operators)

    def roof_s(self, peaks: Peaks, dtype: Any = "fp32") -> tuple[float, float]:
        """Least seconds of the operators that arithmetic limits, and of those that memory limits."""
        flop_per_s, bytes_per_s = peaks.peak_flops_per_s(dtype), peaks.memory_bytes_per_s
        each_s = [(operator.flop / flop_per_s, operator.n_bytes / bytes_per_s) for operator in self.operators]
        compute_s = sum(flop_s for flop_s, bytes_s in each_s if flop_s >= bytes_s)
        return compute_s, sum(bytes_s for flop_s, bytes_s in each_s if flop_s < bytes_s)


def count(run_step: Callable[[], object]) -> Work:
    """Run a step once and count what its operators need. CourseError: the step called no operator of torch."""
    with _Counter() as counter:
        run_step()
    if not counter.operators:
        raise CourseError("the step called no operator of torch, so there is nothing to count; count a training step")
    return Work(tuple(counter.operators))


class _Counter(TorchDispatchMode):
    """Sees every operator below autograd, those of the backward pass and of the optimizer included."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Operator] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run the operator, then count it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        n_bytes = _moved_bytes(func, args, kwargs, out)
        flop = _flop(func, args, kwargs, out)
        if flop or n_bytes:
            self.operators.append(Operator(str(func), flop, n_bytes))
        return out


def _flop(func: Any, args: tuple, kwargs: dict, out: Any) -> float:
    """By torch's own formulas; attention on a CPU goes by that of a GPU, as its arguments begin alike."""
    packet = func.overloadpacket
    if packet not in flop_registry:
        packet = getattr(torch.ops.aten, packet.__name__.replace("_for_cpu", ""), None)
    formula = flop_registry.get(packet)
    return float(formula(*args, **kwargs, out_val=out)) if formula else 0.0


def _moved_bytes(func: Any, args: tuple, kwargs: dict, out: Any) -> float:
    """Bytes of the operands read and of the results written; 0 for a view, for what makes none, and for scalars."""
    returns = func._schema.returns
    if returns and all(value.alias_info is not None and not value.alias_info.is_write for value in returns):
        return 0.0
    if func.overloadpacket.__name__ in _MOVES_NOTHING:
        return 0.0
    read = args, {name: value for name, value in kwargs.items() if name != "out"}
    once = {id(leaf): leaf for leaf in tree_leaves(read)}.values()  # a tensor given twice is read once
    tensors = [leaf for leaf in (*once, *tree_leaves(out)) if isinstance(leaf, torch.Tensor)]
    return float(sum(_bytes(tensor) for tensor in tensors if tensor.ndim))


def _bytes(x: torch.Tensor) -> int:
    """What lies in memory: an expanded tensor has fewer bytes than elements."""
    n_bytes = x.numel() * x.element_size()
    return min(n_bytes, x.untyped_storage().nbytes()) if x.layout == torch.strided else n_bytes
