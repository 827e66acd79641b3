"""The precision of a run, in one place: TF32, autocast, and the loss scaling that fp16 needs.

In: a name, ``fp32``, ``tf32``, ``bf16`` or ``fp16``, and a device. Out: what a training step wraps around its parts.
The weights, their gradients and the optimizer's averages stay in float32 (*master weights*); only matrix products and
what autocast counts to them run in fewer bits. Micikevicius et al. 2017 (arXiv:1710.03740).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial import machine
from dltutorial.errors import CourseError

_CPU_UNITS = {  # flags of processors whose products torch's libraries then make in this precision
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """One run's precision. It has a state only with fp16: the scale of the loss.

    ``clip(parameters, norm)`` scales gradients down; it is not torch's where ranks have pieces of them.

    Raises:
        CourseError: the device has no such precision.
    """

    def __init__(self, name: str = "fp32", device: str = "cpu") -> None:
        self.name, self.device = name, torch.device(device).type
        if name == "tf32" and not (self.device == "cuda" and units_for("tf32")):
            raise CourseError("precision tf32 needs an NVIDIA GPU of 2020 or later; choose fp32 or bf16")
        self.scaler = torch.amp.GradScaler(self.device) if name == "fp16" else None
        self.clip: Callable = nn.utils.clip_grad_norm_
        self.average: Callable[[], None] = lambda: None  # of gradients over ranks, where no wrapper has done it

    @contextmanager
    def products(self) -> Iterator[None]:
        """Inside, float32 products on a GPU use TF32 if that was asked for, and only then."""
        if self.device != "cuda":
            yield
            return
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("high" if self.name == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = self.name == "tf32"
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]

    def autocast(self) -> AbstractContextManager:
        """Around the forward pass and the loss: chooses the precision of each operation."""
        return torch.autocast(self.device, _AUTOCAST[self.name]) if self.name in _AUTOCAST else nullcontext()

    def spare(self, model: nn.Module) -> None:
        """Leave convolutions in float32 that this CPU gets wrong in 16 bits; a line on stderr names each.

        With AMX and torch 2.13 those of patches, whose stride is their kernel, are off by 100% for 8 or 20 channels.
        """
        if self.device != "cpu" or self.name not in _AUTOCAST:
            return
        dtype = _AUTOCAST[self.name]
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Conv2d) and "forward" not in vars(layer) and is_wrong(layer, dtype):
                layer.forward = _in_float32(layer.forward)  # type: ignore[assignment, method-assign]
                print(f"{name} stays in float32: this processor's {dtype} convolution is wrong", file=sys.stderr)

    def scaled(self, loss: Tensor) -> Tensor:
        """What is to be differentiated; with fp16 a larger loss, so that small gradients do not vanish."""
        return self.scaler.scale(loss) if self.scaler else loss

    def update(self, optimizer: torch.optim.Optimizer, clip_norm: float = 0.0) -> None:
        """Clip the gradients' norm (0 does not) and move the weights; with fp16, not if a gradient overflowed."""
        self.average()
        if self.scaler:
            self.scaler.unscale_(optimizer)
        if clip_norm > 0:
            self.clip([p for group in optimizer.param_groups for p in group["params"]], clip_norm)
        if self.scaler:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()


def is_wrong(layer: nn.Conv2d, dtype: torch.dtype) -> bool:
    """Whether a convolution of this shape, of random numbers on the CPU, is more than a tenth off in that precision."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(1, layer.in_channels, *(4 * edge for edge in layer.kernel_size), generator=random)
    weight = torch.randn(layer.weight.shape, generator=random)
    how: Any = None, layer.stride, layer.padding, layer.dilation, layer.groups
    exact, found = (F.conv2d(x.to(kind), weight.to(kind), *how).float() for kind in (torch.float32, dtype))
    return bool((found - exact).norm() > 0.1 * exact.norm())


def _in_float32(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same, whatever autocast says."""

    def spared(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return forward(x.float())

    return spared


def units_for(name: str) -> tuple[str, ...] | None:
    """What this machine has to multiply matrices faster in that precision: flags of its CPU, or its GPU's tensor cores.

    Empty: nothing, and such products are no faster than float32's, or far slower. None: it cannot be told.
    """
    gpus = machine.accelerators()
    if gpus:
        units = gpus[0].tensor_core_dtypes
        return None if units is None else tuple(f"{name} tensor cores" for unit in units if unit == name)
    flags = machine.cpu_units()
    return None if flags is None else tuple(flag for flag in flags if flag in _CPU_UNITS.get(name, ()))
