"""Compilation of the model, in one place: ``torch.compile`` turns its operations into fused kernels.

In: a model and a mode, ``off`` or one of torch's. Out: something called like the model, with the same parameters.
The first call compiles, which takes seconds to minutes; so does every call with another shape, within limits.
Ansel et al. 2024, "PyTorch 2", ASPLOS (doi.org/10.1145/3620665.3640366).
"""

import os
import shutil

import torch
from torch import nn

from dltutorial.errors import CourseError


def compiled(model: nn.Module, mode: str = "default") -> nn.Module:
    """The model, compiled as ``mode`` says; ``off`` gives the model itself.

    Raises:
        CourseError: there is no C++ compiler, without which nothing can be compiled.
    """
    if mode == "off":
        return model
    if not has_compiler():
        raise CourseError(f"compile={mode} needs a C++ compiler and there is none; install g++, or set compile=off")
    return torch.compile(model, mode=mode)


def has_compiler() -> bool:
    """Whether the C++ compiler that torch would call can be found."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    return any(shutil.which(name) for name in names)
