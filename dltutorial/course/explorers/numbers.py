"""Gradients on the number line of a format: a loss scale moves them, out of zero and towards infinity."""

import math
from typing import Any

import numpy as np

from dltutorial.course.explorers.explorer import Explorer, choice, slider, whole
from dltutorial.errors import CourseError
from dltutorial.record.plots import BLUE, GREEN, GREY, ORANGE
from dltutorial.train.number_formats import FORMATS, fates

_RIGHT = 30  # exponent at the right end of the number line: beyond fp16's largest number, 2¹⁶
_ZONES = (("0", ORANGE, "xx"), ("few digits", GREEN, "//"), ("all digits", BLUE, ""), ("overflow", ORANGE, ".."))


def numbers(values: Any, log2_scale: int = 0) -> Explorer:
    """Numbers on the number line, and a scale to move them. The formats are those of ``train.number_formats``.

    Args:
        values: an array, or a tensor on the CPU; signs do not matter.
        log2_scale: where the scale starts, as a power of two.

    Raises:
        CourseError: there is no number but 0, or one that is not finite.
    """
    magnitudes = np.sort(np.abs(np.asarray(values, dtype=np.float64)).ravel())
    if not (magnitudes.size and magnitudes[-1] > 0 and math.isfinite(magnitudes[-1])):
        raise CourseError(f"{magnitudes.size} numbers, none of them positive, or one not finite: give others to draw")
    powers = np.frexp(magnitudes[magnitudes > 0])[1] - 1
    exponents, counts = np.unique(powers, return_counts=True)
    low = min(int(np.quantile(powers, 0.002)) - 2, -36)

    def draw(ax: Any, v: Any) -> str:
        form, moved = FORMATS[v.dtype], exponents + v.log2_scale
        edges = (low, *map(math.log2, (form.smallest / 2, form.smallest_normal, form.largest)), _RIGHT)
        found = fates(magnitudes.tolist(), form, 2.0**v.log2_scale)
        for (name, colour, hatch), share, left, right in zip(_ZONES, found, edges[:-1], edges[1:], strict=True):
            inside = (moved >= left - 0.5) & (moved < right - 0.5)
            ax.bar(moved[inside], counts[inside] / magnitudes.size, 0.9, align="edge", color=colour, hatch=hatch)
            left, right = np.clip((left, right), low, _RIGHT)
            ax.axvline(left, color=GREY, ls="--", lw=1)
            if right - left > 6:
                told = f"{name}\n{_percent(share, '<', '>')}"
                ax.text((left + right) / 2, 1.02, told, ha="center", transform=ax.get_xaxis_transform())
        ax.set(xlim=(low, _RIGHT), xlabel="magnitude, as a power of two", ylabel="share of the gradients")
        ax.yaxis.set_major_formatter("{x:.0%}")
        ax.figure.subplots_adjust(top=0.87)
        zero, few, kept, infinite = map(_percent, found)
        return (
            f"Scaled by 2^{v.log2_scale}, in {v.dtype}: {zero} of the gradients are 0, {few} keep only some of their "
            f"digits, {kept} keep all that {v.dtype} has, {infinite} overflow."
        )

    most = min(60, max(24, 18 - int(np.median(powers))))  # so far that the middle one leaves fp16
    return Explorer(
        "Gradients on a number line",
        draw,
        log2_scale=slider("Loss scale, as a power of two", "It multiplies all.", log2_scale, whole(0, most)),
        dtype=choice("Format", "The gradients are rounded to it.", FORMATS, "fp16"),
    )


def _percent(share: float, below: str = "under ", above: str = "over ") -> str:
    """Whole percents; what is not nothing never reads 0%, what is not all never 100%."""
    if 0 < share < 0.01:
        return f"{below}1%"
    return f"{above}99%" if 0.99 < share < 1 else f"{share:.0%}"
