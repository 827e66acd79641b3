"""The roofline of a machine, and a linear layer to move along it: by its batch, its width and its number format."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dltutorial.course.explorers.explorer import Explorer, choice, slider, span, whole
from dltutorial.course.show import number
from dltutorial.errors import CourseError
from dltutorial.profile.peaks import Peaks
from dltutorial.record.plots import BLUE, GREEN, GREY, ORANGE

_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}  # of a number in memory
_INTENSITY_N = np.geomspace(0.05, 1e4, 101)  # FLOP per byte


def roofline(peaks: Peaks, measured: Mapping[str, tuple[float, float]] | None = None) -> Explorer:
    """A layer under the roof of one machine. Williams, Waterman, Patterson 2009, doi:10.1145/1498765.1498785.

    Args:
        peaks: as ``peaks.measure`` returns them.
        measured: name → (FLOP per byte, FLOP/s) of operations in fp32, drawn as rings.

    Raises:
        CourseError: the machine has no measured product, or no memory bandwidth.
    """
    formats = [name for name, figure in peaks.matmul.items() if figure and name in _BYTES]
    if not formats:
        raise CourseError(f"no matrix product was measured on {peaks.machine}; call peaks.measure(refresh=True)")
    top, slope = max(map(peaks.peak_flops_per_s, formats)) / 1e9, peaks.memory_bytes_per_s / 1e9

    def draw(ax: Any, v: Any) -> str:
        flop, n_bytes = layer_counts(v.samples, v.width, v.dtype)
        intensity, ridge, peak = flop / n_bytes, peaks.ridge(v.dtype), peaks.peak_flops_per_s(v.dtype) / 1e9
        reached, time_s = min(1.0, intensity / ridge), peaks.predict_s(flop, n_bytes, v.dtype)
        roof_N = np.minimum(_INTENSITY_N * slope, peak)
        ax.plot(_INTENSITY_N, roof_N, color=BLUE, label=f"{v.dtype} {peak:,.0f} GFLOP/s")
        ax.axvline(ridge, color=GREY, ls="--", lw=1.2, label=f"ridge {number(ridge)}")
        ax.plot(intensity, reached * peak, "D", ms=9, color=ORANGE, label="the layer, at best")
        for name, (x, flop_per_s) in (measured or {}).items() if v.dtype == "fp32" else ():
            ax.plot(x, flop_per_s / 1e9, "o", ms=8, mfc="none", color=GREEN)
            ax.annotate(name, (x, flop_per_s / 1e9), xytext=(7, -12), textcoords="offset points")
        ax.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="GFLOP/s")
        ax.set(xlim=_INTENSITY_N[[0, -1]], ylim=(min(0.05 * slope, top) / 3, 3 * top))
        ax.legend(loc="lower right")
        samples = "1 sample" if v.samples == 1 else f"{v.samples:,} samples"
        return (
            f"{samples} through a layer {v.width:,} wide in {v.dtype}: {number(intensity)} FLOP per byte, with the "
            f"ridge at {number(ridge)}. Bound by {'memory' if intensity < ridge else 'arithmetic'}: at most "
            f"{reached:.0%} of the peak, at least {span(time_s)}"
            f"{f', {span(time_s / v.samples)} a sample' if v.samples > 1 else ''}."
        )

    return Explorer(
        "Roofline of this machine and a linear layer",
        draw,
        samples=slider("Batch", "How many samples share the weights.", 1, whole(1, 65536), "samples"),
        width=slider("Width of the layer", "Inputs, and as many outputs.", 4096, whole(16, 16384), "numbers"),
        dtype=choice("Format", "Of weights, inputs and outputs.", formats, max(formats, key="fp32".__eq__)),
    )


def layer_counts(samples: int, width: int, dtype: str) -> tuple[int, int]:
    """FLOP and bytes of a linear layer, ``width`` numbers in and as many out: n² weights, B n inputs, B n outputs."""
    return 2 * samples * width**2, _BYTES[dtype] * (width**2 + 2 * samples * width)
