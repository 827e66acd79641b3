"""The explorer of chapter 04: gradients on the number line of a format, and a loss scale that moves them.

The input is gradients. The output is an explorer with a histogram over powers of two, and the shares of the gradients
that become 0, lose digits, keep all digits, or overflow. Source: Micikevicius et al. 2018, arXiv:1710.03740.
"""

import math
from typing import Any

import numpy as np
import torch

from dltutorial.course.explorers.explorer import Explorer, choice, slider, whole
from dltutorial.errors import CourseError
from dltutorial.record.plots import BLUE, GREEN, GREY, ORANGE

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_RIGHT = 30  # exponent at the right end of the number line, beyond the largest number of fp16, 2¹⁶
_ZONES = (("0", ORANGE, "xx"), ("few digits", GREEN, "//"), ("all digits", BLUE, ""), ("overflow", ORANGE, ".."))


def numbers(values: Any, log2_scale: int = 0) -> Explorer:
    """Return an explorer of the loss scale and the format.

    Args:
        values: The gradients, as an array or tensor. Signs do not matter.
        log2_scale: The power of two at which the scale starts.

    Raises:
        CourseError: All numbers are 0, or one of them is not finite.
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().double()
    magnitudes = np.abs(np.asarray(values, dtype=np.float64)).ravel()
    if not (magnitudes.any() and np.isfinite(magnitudes).all()):
        raise CourseError(f"{magnitudes.size} numbers, none of them positive, or one not finite: give others to draw")
    powers = np.frexp(magnitudes[magnitudes > 0])[1] - 1
    exponents, counts = np.unique(powers, return_counts=True)
    left_end = min(int(np.quantile(powers, 0.002)) - 2, -36)

    def draw(ax: Any, controls: Any) -> str:
        dtype = _DTYPES[controls.dtype]
        shares = fates(magnitudes * 2.0**controls.log2_scale, dtype)
        edges = _edges(dtype, left_end)
        moved = exponents + controls.log2_scale
        for zone, share, left, right in zip(_ZONES, shares, edges[:-1], edges[1:], strict=True):
            name, colour, hatch = zone
            inside = (moved >= left - 0.5) & (moved < right - 0.5)
            ax.bar(moved[inside], counts[inside] / magnitudes.size, 0.9, align="edge", color=colour, hatch=hatch)
            _draw_zone(ax, f"{name}\n{_percent(share)}", *np.clip((left, right), left_end, _RIGHT))
        ax.set(xlim=(left_end, _RIGHT), xlabel="magnitude, as a power of two", ylabel="share of the gradients")
        ax.yaxis.set_major_formatter("{x:.0%}")
        ax.figure.subplots_adjust(top=0.87)
        zero, few_digits, all_digits, infinite = (_percent(share) for share in shares)
        return (
            f"Scaled by 2^{controls.log2_scale}, in {controls.dtype}: {zero} of the gradients are 0, {few_digits} keep "
            f"only some of their digits, {all_digits} keep all that {controls.dtype} has, {infinite} overflow."
        )

    # The largest scale moves the median gradient beyond fp16.
    largest = min(60, max(24, 18 - int(np.median(powers))))
    return Explorer(
        "Gradients on a number line",
        draw,
        log2_scale=slider("Loss scale, as a power of two", "It multiplies all.", log2_scale, whole(0, largest)),
        dtype=choice("Format", "The gradients are rounded to it.", _DTYPES.keys(), "fp16"),
    )


def fates(magnitudes: np.ndarray, dtype: torch.dtype) -> list[float]:
    """Return the shares of numbers that a format makes 0, subnormal (fewer digits), normal and infinite."""
    rounded = torch.from_numpy(magnitudes).to(dtype)
    smallest_normal = torch.finfo(dtype).tiny
    zero = rounded == 0
    infinite = rounded.isinf()
    subnormal = (rounded < smallest_normal) & ~zero
    normal = (rounded >= smallest_normal) & ~infinite
    return [kind.double().mean().item() for kind in (zero, subnormal, normal, infinite)]


def _edges(dtype: torch.dtype, left_end: int) -> list[float]:
    """Return the edges of the four zones of a format, as powers of two."""
    info = torch.finfo(dtype)
    rounded_to_zero = info.tiny * info.eps / 2  # half of the smallest subnormal number
    return [left_end, math.log2(rounded_to_zero), math.log2(info.tiny), math.log2(info.max), _RIGHT]


def _draw_zone(ax: Any, text: str, left: float, right: float) -> None:
    """Draw the left edge of a zone, and its text if there is room."""
    ax.axvline(left, color=GREY, ls="--", lw=1)
    if right - left > 6:
        ax.text((left + right) / 2, 1.02, text, ha="center", transform=ax.get_xaxis_transform())


def _percent(share: float) -> str:
    """Return whole percents. 0% means none, and 100% means all; other shares are <1% and >99%."""
    if share in (0, 1) or 0.01 <= share <= 0.99:
        return f"{share:.0%}"
    return "<1%" if share < 0.5 else ">99%"
