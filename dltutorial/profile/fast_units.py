"""Did the tensor cores multiply? The names of a GPU's kernels tell.

In: a :class:`~dltutorial.profile.events.Trace` of a GPU. Out: the matrix products that ran, and whether their names say
tensor cores.

Libraries write the instruction into the name: ``s884``, ``s1688``, ``s16816`` (m16n8k16 and the like, summed in single
precision) and ``tensorop`` in cuBLAS, cuDNN and CUTLASS; ``hmma``, ``wmma``, ``gmma`` in cuDNN; ``warpgroup`` and
``nvjet`` in cuBLAS on Hopper and later. ``sgemm``, ``simt`` and ``ffma`` are products on ordinary cores. The same
check, by the same names, is Yin's of 2018 on Summit (``s884cudnn``). CUTLASS, "Functionality".
"""

import re
from collections.abc import Sequence

from dltutorial.profile.events import Trace
from dltutorial.profile.timing import duration
from dltutorial.profile.trace_summary import Total, operator_times, short
from dltutorial.record.table import Table

_TENSOR = re.compile(
    r"[a-z](884|1688|16816|16832)[a-z]|tensorop|tensor\d+x\d+x\d+|warpgroup|nvjet|[hig]mma|wmma|"
    r"flash_(fwd|bwd)|fmha_(fwd|bwd)|fmha_cutlass[FB]_(f16|bf16)",
    re.IGNORECASE,
)
_PRODUCT = re.compile(r"gemm|gemv|conv(?!ert)|fprop|dgrad|wgrad|fmha|dot_kernel", re.IGNORECASE)


def products(trace: Trace) -> list[Total]:
    """Every kernel of the trace whose name says that it multiplies matrices, longest first; none on a CPU."""
    kernels = [total for total in operator_times(trace) if total.category == "kernel"]
    return [kernel for kernel in kernels if _PRODUCT.search(kernel.name) or uses_tensor_cores(kernel.name)]


def uses_tensor_cores(kernel: str) -> bool:
    """Whether a kernel's name says that it computes on tensor cores."""
    return bool(_TENSOR.search(kernel))


def tensor_core_share(kernels: Sequence[Total]) -> float | None:
    """Of the time in matrix products, on tensor cores; None ("not available") without a product on a device."""
    whole_s = sum(kernel.seconds for kernel in kernels)
    return sum(k.seconds for k in kernels if uses_tensor_cores(k.name)) / whole_s if whole_s else None


def table(kernels: Sequence[Total], top: int = 6) -> Table:
    """The longest kernels; a long name is cut."""
    units = {True: "yes", False: "no"}
    rows = [(short(k.name), units[uses_tensor_cores(k.name)], k.calls, duration(k.seconds)) for k in kernels[:top]]
    return Table.of(("kernel", "tensor cores", "times", "time"), rows)
