"""Gradients on the number line of a format: a loss scale moves them, out of zero and towards infinity.

In: numbers, such as gradients. Out: their histogram by magnitude, at a scale and in a format, with the shares that
become 0, lose digits, stay whole, or overflow. The formats are those of ``training.number_formats``.
"""

import math
from typing import Any

from dltutorial.course.explorers import svg
from dltutorial.course.explorers.parts import Choice, Drawing, Explorer, Slider
from dltutorial.errors import CourseError
from dltutorial.train.number_formats import FORMATS, Fates, Format, fates

_RIGHT = 30  # exponent at the right end of the number line: beyond fp16's largest number, 2¹⁶
_MOST_SCALE = 60  # a loss scale of 2⁶⁰: more than any loss needs
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def numbers(values: Any, log2_scale: int = 0) -> None:
    """Show numbers on a format's number line, and a scale that moves them; arguments as of :func:`make`."""
    make(values, log2_scale).explore()


def make(values: Any, log2_scale: int = 0) -> Explorer:
    """Numbers on the number line, and a scale to move them.

    Args:
        values: an array, or a tensor on the CPU; signs do not matter.
        log2_scale: where the scale starts, as a power of two.

    Raises:
        CourseError: there is no number but 0, or one that is not finite.
    """
    import numpy as np

    try:
        magnitudes = np.sort(np.abs(np.asarray(values, dtype=np.float64)).ravel())
    except (TypeError, ValueError, RuntimeError) as error:
        raise CourseError("not an array of numbers; give an array, or a tensor as tensor.detach().cpu()") from error
    if not (magnitudes.size and magnitudes[-1] > 0 and math.isfinite(magnitudes[-1])):
        raise CourseError(f"{magnitudes.size} numbers, none of them positive, or one not finite: give others to draw")
    exponents, counts = np.unique(np.frexp(magnitudes[magnitudes > 0])[1] - 1, return_counts=True)
    shares = {int(e): float(c) / magnitudes.size for e, c in zip(exponents, counts, strict=True)}
    middle = int(exponents[np.searchsorted(np.cumsum(counts), counts.sum() / 2)])
    most = min(_MOST_SCALE, max(24, 18 - middle))  # so far that the middle one leaves fp16

    def draw(log2_scale: int, dtype: str) -> Drawing:
        found = fates(magnitudes, FORMATS[dtype], 2.0**log2_scale)
        return Drawing(_words(found, log2_scale, dtype), _picture(shares, log2_scale, FORMATS[dtype], found))

    controls = [
        Slider("log2_scale", "Loss scale, as a power of two", value=log2_scale, low=0, high=most, integer=True,
               help="Every gradient is multiplied by 2 to this power."),
        Choice("dtype", "Format", tuple(FORMATS), value="fp16", help="The gradients are rounded to it."),
    ]  # fmt: skip
    return Explorer("Gradients on a number line", controls, draw)


def example() -> Explorer:
    """A thousand numbers around 2⁻³⁰, a factor of four wide."""
    from statistics import NormalDist

    middle = NormalDist(-30, 4)
    return make([2 ** middle.inv_cdf((n + 0.5) / 1000) for n in range(1000)], log2_scale=16)


def _words(found: Fates, log2_scale: int, dtype: str) -> str:
    scale = f"Scaled by 2{str(log2_scale).translate(_SUPERSCRIPTS)}" if log2_scale else "Unscaled (2⁰ = 1)"
    zero, few, all_of_them, infinite = map(_percent, (found.zero, found.subnormal, found.normal, found.infinite))
    return (
        f"{scale}, in {dtype}: {zero} of the gradients are 0, {few} keep only some of their digits, {all_of_them} keep "
        f"all that {dtype} has, {infinite} overflow."
    )


def _percent(share: float, below: str = "under ", above: str = "over ") -> str:
    """Whole percents; what is not nothing never reads 0%, what is not all never 100%."""
    if 0 < share < 0.01:
        return f"{below}1%"
    return f"{above}99%" if 0.99 < share < 1 else f"{share:.0%}"


def _picture(shares: dict[int, float], log2_scale: int, form: Format, found: Fates) -> list[str]:
    """The histogram, a bar for each doubling; behind it the zones of the format, each with its share."""
    low = min(_low(shares), -36)
    ticks = {float(e): "2" + str(e).translate(_SUPERSCRIPTS) for e in range(10 * math.ceil(low / 10), _RIGHT, 10)}
    axes = svg.Axes(
        (low, _RIGHT), (0, 1.05 * max(shares.values())), labels=("magnitude", "share of gradients"),
        margins=(64, 16, 52, 48), ticks_x=ticks, ticks_y=_share_ticks(max(shares.values())),
    )  # fmt: skip
    edges = [
        -math.inf,
        math.log2(form.smallest) - 1,
        math.log2(form.smallest_normal),
        math.log2(form.largest),
        math.inf,
    ]
    parts = axes.frame()
    for exponent, share in shares.items():
        x, y = exponent + log2_scale, axes.y(share)
        if low <= x and x + 1 <= _RIGHT:
            colour, fill = _LOOKS[next(n for n in range(4) if x < edges[n + 1] - 0.5)]
            parts.append(svg.bar(axes.x(x), y, axes.x(x + 1) - axes.x(x) - 1, axes.bottom - y, colour, fill))
    names = ("0", "few digits", "all digits", "overflow")
    told = (found.zero, found.subnormal, found.normal, found.infinite)
    for n, (name, share) in enumerate(zip(names, told, strict=True)):
        left, right = axes.x(edges[n]), axes.x(edges[n + 1])
        if n and axes.left < left < axes.right:
            parts.append(svg.line([(left, axes.top), (left, axes.bottom)], svg.GREY, svg.DASHED, 1.5))
        if right - left > 50:
            parts.append(svg.text((left + right) / 2, 22, name, anchor="middle"))
            parts.append(svg.text((left + right) / 2, 42, _percent(share, "<", ">"), anchor="middle", bold=True))
    return parts


# Of a bar in each zone: becomes 0, keeps few digits, keeps all, overflows.
_LOOKS = ((svg.RED, "none"), (svg.GREEN, "striped"), (svg.BLUE, "solid"), (svg.RED, "striped"))


def _low(shares: dict[int, float]) -> int:
    """The exponent above which nearly all of the numbers lie."""
    below = 0.0
    for exponent in sorted(shares):
        below += shares[exponent]
        if below > 0.002:
            return exponent - 2
    return min(shares)


def _share_ticks(most: float) -> dict[float, str]:
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if most / step <= 5)
    return {n * step: f"{n * step:.0%}" for n in range(int(most / step) + 1)}
