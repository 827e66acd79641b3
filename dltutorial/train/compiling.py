"""Compilation, in one place: ``torch.compile`` turns a model's or a function's operations into fused kernels.

In: a model and a mode, ``off`` or one of torch's. Out: something called like the model, with the same parameters.
The first call compiles, which takes seconds to minutes; so does every call with another shape, within limits. What
was compiled is kept on disk, so that the next process need not compile it again.
Ansel et al. 2024, "PyTorch 2", ASPLOS (doi.org/10.1145/3620665.3640366).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dltutorial import machine, paths
from dltutorial.errors import CourseError
from dltutorial.profile.compilation import missing

_CACHE_DIR = "TORCHINDUCTOR_CACHE_DIR"
_FEW_CORES = 4


def compiled(model: nn.Module, mode: str = "default") -> Callable[..., Tensor]:
    """The model, compiled as ``mode`` says; ``off`` gives the model itself.

    Raises:
        CourseError: this machine lacks what torch compiles with.
    """
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
    """Around calls of what was compiled: the first one writes kernels to disk, which can fail.

    Raises:
        CourseError: it did.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        from torch._dynamo.exc import TorchDynamoException  # of everything that the compiler raises

        if not isinstance(error, (TorchDynamoException, OSError)):
            raise
        why, folder = str(error).strip().partition("\n")[0], os.environ.get(_CACHE_DIR)
        raise CourseError(f"compile={mode} failed ({why}); make room in {folder}, or set compile=off") from error


@contextmanager
def cold_cache() -> Iterator[None]:
    """Inside, nothing was ever compiled. What is compiled inside can be called afterwards, and is on no disk."""
    from torch._inductor import utils

    torch.compiler.reset()
    fresh = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache  # its older name
    with fresh():
        yield
