"""Compilation, in one place: ``torch.compile`` turns a model's or a function's operations into fused kernels.

In: a model and a mode, ``off`` or one of torch's. Out: something called like the model, with the same parameters.
The first call compiles, which takes seconds to minutes; so does every call with another shape, within limits. What
was compiled is kept on disk, so that the next process need not compile it again. Importing this loads no torch.
Ansel et al. 2024, "PyTorch 2", ASPLOS (doi.org/10.1145/3620665.3640366).
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dltutorial import machine, paths
from dltutorial.errors import CourseError

if TYPE_CHECKING:
    from torch import Tensor, nn

_CACHE_DIR = "TORCHINDUCTOR_CACHE_DIR"
_FEW_CORES = 4


def missing(device: str) -> str | None:
    """What this machine lacks for compiling to kernels of ``device``, in a few words; None if it has everything.

    For a CPU torch writes C++, for a GPU Triton, whose launchers are C. Compilers go by the names that torch looks for.
    """
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    if device != "cpu":
        if importlib.util.find_spec("triton") is None:
            return "Triton, which comes with torch for CUDA"
        if not _any_command(os.environ.get("CC"), "gcc", "clang", "cc"):
            return "a C compiler (gcc)"
    elif not _any_command(os.environ.get("CXX") or default):
        return f"a C++ compiler ({default})"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "Python.h (of the package python3-dev)"
    return None


def _any_command(*names: str | None) -> bool:
    return any(name and shutil.which(name.split()[0]) for name in names)


def compiled(model: "nn.Module", mode: str = "default") -> "Callable[..., Tensor]":
    """The model, compiled as ``mode`` says; ``off`` gives the model itself.

    Raises:
        CourseError: this machine lacks what torch compiles with.
    """
    import torch

    if mode == "off":
        return model
    lacking = missing(next((p.device.type for p in model.parameters()), machine.device()))
    if lacking:
        raise CourseError(f"compile={mode} needs {lacking}, and there is none; install it, or set compile=off")
    prepare()
    return torch.compile(model, mode=mode)


def prepare() -> None:
    """Keep compiled kernels in the course's cache folder, not in one that a restart empties; what is set stays.

    On few cores compile in this process: helpers each import torch, which costs more than they gain.
    """
    import torch._inductor.config as settings
    from torch._inductor.runtime.runtime_utils import default_cache_dir

    if os.environ.get(_CACHE_DIR) in (None, "", default_cache_dir()):  # torch itself sets its default
        os.environ[_CACHE_DIR] = str((paths.cache_dir() / "compiled").absolute())
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ and machine.cores() <= _FEW_CORES:
        settings.compile_threads = 1


@contextmanager
def explained(mode: str) -> Iterator[None]:
    """Around calls of what was compiled: the first one writes kernels to disk, which can fail. CourseError: it did."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        from torch._dynamo.exc import TorchDynamoException  # of everything that the compiler raises

        if not isinstance(error, (TorchDynamoException, OSError)):
            raise
        why, folder = str(error).strip().partition("\n")[0], os.environ.get(_CACHE_DIR)
        raise CourseError(f"compile={mode} failed ({why}); make room in {folder}, or set compile=off") from error
