"""Count the FLOP and the bytes of a step, operator by operator, while it runs once.

Input: a function that makes one step.
Output: a frozen :class:`Work`. With the peaks of a machine it gives the roofline of the step, because each operator
takes at least max(FLOP / peak, bytes / bandwidth) seconds.

FLOP are those of matrix products, convolutions and attention, as torch counts them. Bytes are what an operator reads
and writes if no data stay in a cache. An operator that makes a view moves no bytes. The counter does not see inside the
fused kernels of ``torch.compile``, so count the step before compiling it.

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
    """One call of an operator: its name, its FLOP, and the bytes that it reads and writes."""

    name: str
    flop: float
    n_bytes: float


@dataclass(frozen=True)
class Work:
    """The operators of one step that compute or move data, in order."""

    operators: tuple[Operator, ...]

    @property
    def flop(self) -> float:
        """FLOP of the whole step."""
        return sum(operator.flop for operator in self.operators)

    @property
    def n_bytes(self) -> float:
        """Bytes of the whole step."""
        return sum(operator.n_bytes for operator in self.operators)

    def roof_s(self, peaks: Peaks) -> tuple[float, float]:
        """Shortest time of a step in fp32 by the roofline.

        Args:
            peaks: The peaks of the machine.

        Returns:
            Seconds of the operators that arithmetic limits, and seconds of those that memory limits.
        """
        flop_per_s = peaks.peak_flops_per_s("fp32")
        bytes_per_s = peaks.memory_bytes_per_s
        compute_s = 0.0
        memory_s = 0.0
        for operator in self.operators:
            flop_s = operator.flop / flop_per_s
            bytes_s = operator.n_bytes / bytes_per_s
            if flop_s >= bytes_s:
                compute_s += flop_s
            else:
                memory_s += bytes_s
        return compute_s, memory_s


def count(run_step: Callable[[], object]) -> Work:
    """Run a step once and count the work of its operators.

    Args:
        run_step: Makes one step.

    Returns:
        The work.

    Raises:
        CourseError: The step called no operator of torch.
    """
    with _Counter() as counter:
        run_step()
    if not counter.operators:
        raise CourseError("the step called no operator of torch, so there is nothing to count; count a training step")
    return Work(tuple(counter.operators))


class _Counter(TorchDispatchMode):
    """Counts every operator below autograd, including those of the backward pass and of the optimizer."""

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
    """FLOP by torch's own formulas; 0 for an operator without a formula."""
    packet = func.overloadpacket
    if packet not in flop_registry:
        # Attention on a CPU has no formula. That of the GPU fits, because its first arguments are the same.
        packet = getattr(torch.ops.aten, packet.__name__.replace("_for_cpu", ""), None)
    formula = flop_registry.get(packet)
    if formula is None:
        return 0.0
    return float(formula(*args, **kwargs, out_val=out))


def _moved_bytes(func: Any, args: tuple, kwargs: dict, out: Any) -> float:
    """Bytes of the operands and of the results; 0 for views, for arrays that are not filled, and for scalars."""
    results = func._schema.returns
    is_view = all(result.alias_info is not None and not result.alias_info.is_write for result in results)
    if results and is_view:
        return 0.0
    if func.overloadpacket.__name__ in _MOVES_NOTHING:
        return 0.0
    inputs = [args, {name: value for name, value in kwargs.items() if name != "out"}]
    unique_inputs = {id(leaf): leaf for leaf in tree_leaves(inputs)}.values()  # a tensor given twice is read once
    leaves = [*unique_inputs, *tree_leaves(out)]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim > 0]
    return float(sum(_bytes(tensor) for tensor in tensors))


def _bytes(x: torch.Tensor) -> int:
    """Bytes in memory, because an expanded tensor has fewer of them than its elements need."""
    return min(x.nbytes, x.untyped_storage().nbytes())
