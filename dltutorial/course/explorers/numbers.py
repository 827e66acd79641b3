"""The explorer of chapter 04: gradients on the number line of a format, and a loss scale that moves them.

The input is gradients. The output is an explorer with a histogram over powers of two, and the shares of the gradients
that become 0, lose digits, keep all digits, or overflow. Source: Micikevicius et al. 2018, arXiv:1710.03740.
"""

import math
from typing import Any

import numpy as np
import torch

from dltutorial.course.explorers.explorer import Explorer, choice, int_slider
from dltutorial.record.plots import BLUE, GREEN, ORANGE, PURPLE

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_ZONES = (("become 0", ORANGE), ("lose digits", GREEN), ("keep all digits", BLUE), ("overflow", PURPLE))


def fates(magnitudes: torch.Tensor, dtype: torch.dtype) -> list[float]:
    """Return the shares of numbers that a format makes 0, subnormal (fewer digits), normal and infinite."""
    rounded = magnitudes.to(dtype)
    zero = rounded == 0
    infinite = rounded.isinf()
    subnormal = (rounded < torch.finfo(dtype).tiny) & ~zero
    normal = ~(zero | subnormal | infinite)
    return [kind.double().mean().item() for kind in (zero, subnormal, normal, infinite)]


def numbers(values: Any) -> Explorer:
    """Return an explorer of the loss scale and the format.

    Args:
        values: The gradients, as an array or tensor. Signs do not matter, and one must not be 0.
    """
    magnitudes = torch.as_tensor(values).detach().cpu().double().abs().flatten()
    powers = np.log2(magnitudes[magnitudes > 0].numpy())
    left = min(np.quantile(powers, 0.002) - 2, -36)
    right = 30  # beyond the largest number of fp16, 2¹⁶

    def draw(ax: Any, log2_scale: int, dtype: str) -> str:
        info = torch.finfo(_DTYPES[dtype])
        rounded_to_zero = info.tiny * info.eps / 2  # half of the smallest subnormal number
        edges = [left, math.log2(rounded_to_zero), math.log2(info.tiny), math.log2(info.max), right]
        for (name, colour), low, high in zip(_ZONES, edges[:-1], edges[1:], strict=True):
            ax.axvspan(low, high, color=colour, alpha=0.25, lw=0, label=name)  # a zone may be out of view
        bins = np.arange(math.floor(left), right + 1)
        ax.hist(powers + log2_scale, bins, weights=np.full(len(powers), 1 / len(magnitudes)), color="black", rwidth=0.9)
        ax.set(xlim=(left, right), xlabel="magnitude, as a power of two", ylabel="share of the gradients")
        ax.yaxis.set_major_formatter("{x:.0%}")
        ax.legend(loc="upper right")
        shares = fates(magnitudes * 2.0**log2_scale, _DTYPES[dtype])
        words = ", ".join(f"{share:.2%} {name}" for share, (name, _) in zip(shares, _ZONES, strict=True))
        return f"Gradients times 2^{log2_scale} in {dtype}: {words}."

    largest = min(60, max(24, 18 - int(np.median(powers))))  # moves the median gradient beyond fp16
    return Explorer(
        draw,
        log2_scale=int_slider("Loss scale, power of two", 0, 0, largest),
        dtype=choice("Format", _DTYPES, "fp16"),
    )
