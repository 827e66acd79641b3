"""What ``torch.compile`` needs of a machine, and whether it is here. Loads no torch, so that help stays quick.

In: a device. Out: what is missing, in a few words. For a CPU torch writes C++, for a GPU Triton, whose launchers are C.

Source: docs.pytorch.org, "torch.compiler"; the names of compilers are those that torch looks for.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path


def missing(device: str) -> str | None:
    """What this machine lacks for compiling to kernels of ``device``, in a few words; None if it has everything."""
    if device != "cpu":
        if importlib.util.find_spec("triton") is None:
            return "Triton, which comes with torch for CUDA"
        if not _any_command(os.environ.get("CC"), "gcc", "clang", "cc"):
            return "a C compiler (gcc)"
    elif not _any_command(os.environ.get("CXX") or _default_compiler()):
        return f"a C++ compiler ({_default_compiler()})"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "Python.h (of the package python3-dev)"
    return None


def _any_command(*names: str | None) -> bool:
    return any(name and shutil.which(name.split()[0]) for name in names)


def _default_compiler() -> str:
    """The C++ compiler that torch calls unless ``CXX`` names another."""
    return {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
