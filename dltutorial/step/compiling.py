"""Compilation: what this machine lacks for ``torch.compile``, and where compiled kernels are kept.

The first call of a compiled function takes seconds to minutes. ``prepare`` keeps the compiled kernels on disk, so that
the next process need not compile them again. Importing this module loads no torch.
Ansel et al. 2024, "PyTorch 2", ASPLOS (doi.org/10.1145/3620665.3640366).
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from dltutorial import machine, paths

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
FEW_CORES = 4


def missing(device: str) -> str | None:
    """What this machine lacks for compiling kernels of a device.

    For a CPU torch writes C++. For a GPU it writes Triton, whose launchers are written in C. The names of the compilers
    are those that torch looks for.

    Args:
        device: ``cpu`` or ``cuda``.

    Returns:
        What is missing, in a few words, or None if everything is installed.
    """
    if device != "cpu":
        if importlib.util.find_spec("triton") is None:
            return "Triton, which comes with torch for CUDA"
        if not _is_any_installed(os.environ.get("CC"), "gcc", "clang", "cc"):
            return "a C compiler (gcc)"
    else:
        default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
        if not _is_any_installed(os.environ.get("CXX") or default):
            return f"a C++ compiler ({default})"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        return "Python.h (of the package python3-dev)"
    return None


def _is_any_installed(*programs: str | None) -> bool:
    return any(program and shutil.which(program.split()[0]) for program in programs)


def prepare() -> None:
    """Keep compiled kernels in the course's cache folder, because a restart may empty torch's own. Call it once.

    If the user has set the folder, it stays. On few cores torch compiles in this process, because each helper process
    imports torch, which takes longer than the helpers save.
    """
    import torch._inductor.config as settings
    from torch._inductor.runtime.runtime_utils import default_cache_dir

    if os.environ.get(CACHE_VARIABLE) in (None, "", default_cache_dir()):  # torch itself sets the variable
        os.environ[CACHE_VARIABLE] = str((paths.cache_dir() / "compiled").absolute())
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ and machine.cores() <= FEW_CORES:
        settings.compile_threads = 1
