"""Did the units made for low precision multiply? On a GPU the names of kernels tell, on a CPU oneDNN when asked.

In: a :class:`~dltutorial.profile.events.Trace` of a GPU, or dtypes for a CPU. Out: the matrix products that ran, and
whether their names say tensor cores, or instructions made for bf16 and fp16.

Kernels: libraries write the instruction into the name: ``s884``, ``s1688``, ``s16816`` (m16n8k16 and the like, summed
in single precision) and ``tensorop`` in cuBLAS, cuDNN and CUTLASS; ``hmma``, ``wmma``, ``gmma`` in cuDNN;
``warpgroup`` and ``nvjet`` in cuBLAS on Hopper and later. ``sgemm``, ``simt`` and ``ffma`` are products on ordinary
cores. The same check, by the same names, is Yin's of 2018 on Summit (``s884cudnn``). CUTLASS, "Functionality".

oneDNN, the library behind torch on a CPU, names implementations such as ``brg_matmul:avx512_core_bf16``: what follows
the colon is the instruction set. A product that it does not make leaves no name (float32 often goes to MKL, a
precision without units to plain loops). uxlfoundation.github.io/oneDNN, "Verbose Mode".
"""

import os
import re
import subprocess
import sys
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
# Any dtype's lines come after a line that names it; a process of its own, since oneDNN asks its variable but once.
_PROGRAM = """
import sys, torch
for name in sys.argv[1:]:
    a = torch.randn(256, 256).to(getattr(torch, name))
    print("dtype", name, flush=True)
    a @ a
"""
_ON_ARM = re.compile(r"acl|sve|asimd", re.IGNORECASE)
_ON_UNITS = re.compile(r"_bf16|_fp16|amx|avx10", re.IGNORECASE)


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


def implementations(dtypes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Which of oneDNN's ran for a product in each dtype, named as torch does ("bfloat16"), in a process of its own.

    Nothing is found for any of them where torch is built without oneDNN, or the process fails.
    """
    command, env = [sys.executable, "-c", _PROGRAM, *dtypes], os.environ | {"ONEDNN_VERBOSE": "1"}
    said = subprocess.run(command, capture_output=True, text=True, env=env, check=False).stdout
    return {dtype: parse(said).get(dtype, ()) for dtype in dtypes}


def parse(said: str) -> dict[str, tuple[str, ...]]:
    """oneDNN's implementations of executed products, by the dtype announced before them."""
    parts = (part.partition("\n")[::2] for part in said.split("dtype ")[1:])
    found = {dtype: re.findall(r"exec,.*?(?:matmul|inner_product),([^,]+)", lines) for dtype, lines in parts}
    return {dtype: tuple(dict.fromkeys(names)) for dtype, names in found.items()}


def uses_units(implementation: str) -> bool | None:
    """Whether oneDNN's name says instructions made for a low precision: AVX-512's for bf16 or fp16, AMX, AVX10.

    None where it cannot be told: on Arm, the name is that of a library (``gemm:acl``) or of the vectors (``sve_256``).
    """
    how = implementation.partition(":")[2]
    return None if _ON_ARM.search(how) else bool(_ON_UNITS.search(how))
