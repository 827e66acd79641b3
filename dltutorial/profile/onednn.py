"""Which code multiplies matrices on this CPU? oneDNN, the library behind torch, tells when asked.

In: dtypes. Out: for each the names of the implementations that ran, such as ``brg_matmul:avx512_core_bf16``: what
follows the colon is the instruction set. A product that oneDNN does not make leaves no name (float32 often goes to
MKL, a precision without units to plain loops). uxlfoundation.github.io/oneDNN, "Verbose Mode".
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence

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


def implementations(dtypes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Make one product in each dtype, named as torch does ("bfloat16"), in a process of its own.

    Nothing is found for any of them where torch is built without oneDNN, or the process fails.
    """
    command, env = [sys.executable, "-c", _PROGRAM, *dtypes], os.environ | {"ONEDNN_VERBOSE": "1"}
    said = subprocess.run(command, capture_output=True, text=True, env=env, check=False).stdout
    return {dtype: parse(said).get(dtype, ()) for dtype in dtypes}


def parse(said: str) -> dict[str, tuple[str, ...]]:
    """The implementations of executed products, by the dtype announced before them."""
    parts = (part.partition("\n")[::2] for part in said.split("dtype ")[1:])
    found = {dtype: re.findall(r"exec,.*?(?:matmul|inner_product),([^,]+)", lines) for dtype, lines in parts}
    return {dtype: tuple(dict.fromkeys(names)) for dtype, names in found.items()}


def uses_units(implementation: str) -> bool | None:
    """Whether a name says that instructions made for a low precision ran: AVX-512's for bf16 or fp16, AMX, AVX10.

    None where it cannot be told: on Arm, the name is that of a library (``gemm:acl``) or of the vectors (``sve_256``).
    """
    how = implementation.partition(":")[2]
    return None if _ON_ARM.search(how) else bool(_ON_UNITS.search(how))
