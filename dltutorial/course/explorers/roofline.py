"""The explorer of chapter 00: a linear layer below the roofline of this machine.

The input is the measured peaks of a machine and some measured operations. The output is an explorer with two
logarithmic axes: FLOP per byte, and GFLOP/s.
Source: Williams, Waterman, Patterson 2009, doi.org/10.1145/1498765.1498785.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dltutorial.course.explorers.explorer import Explorer, choice, count, slider, whole
from dltutorial.errors import CourseError
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.timing import duration, three
from dltutorial.record.plots import BLUE, GREEN, GREY, ORANGE

_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}  # of a number in memory
_INTENSITIES = np.geomspace(0.05, 1e4, 101)  # FLOP per byte


def roofline(peaks: Peaks, measured: Mapping[str, tuple[float, float]]) -> Explorer:
    """Return an explorer of the batch, the width and the format of a linear layer.

    Args:
        peaks: The peaks of the machine, as ``peaks.measure`` returns them.
        measured: FLOP per byte and FLOP/s of operations in fp32 by name, which are drawn as rings.

    Raises:
        CourseError: The machine has no measured matmul, or no memory bandwidth.
    """
    formats = [name for name, figure in peaks.matmul.items() if figure and name in _BYTES]
    if not formats:
        raise CourseError(f"no matrix product was measured on {peaks.machine}; call peaks.measure(refresh=True)")
    highest_flops_per_s = max(peaks.peak_flops_per_s(name) for name in formats)
    lowest_flops_per_s = min(0.05 * peaks.memory_bytes_per_s, highest_flops_per_s)

    def draw(ax: Any, values: Any) -> str:
        flop, n_bytes = layer_counts(values.samples, values.width, values.dtype)
        _draw_roof(ax, peaks, values.dtype)
        peak = peaks.peak_flops_per_s(values.dtype)
        reached = min(1.0, flop / n_bytes / peaks.ridge(values.dtype))
        ax.plot(flop / n_bytes, reached * peak / 1e9, "D", ms=9, color=ORANGE, label="the layer, at best")
        if values.dtype == "fp32":
            _draw_measured(ax, measured)
        ax.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="GFLOP/s")
        ax.set(xlim=_INTENSITIES[[0, -1]], ylim=(lowest_flops_per_s / 3e9, 3e-9 * highest_flops_per_s))
        ax.legend(loc="lower right")
        return _in_words(peaks, values)

    return Explorer(
        "Roofline of this machine and a linear layer",
        draw,
        samples=slider("Batch", "How many samples share the weights.", 1, whole(1, 65536), "samples"),
        width=slider("Width of the layer", "Inputs, and as many outputs.", 4096, whole(16, 16384), "numbers"),
        dtype=choice("Format", "Of weights, inputs and outputs.", formats, "fp32" if "fp32" in formats else formats[0]),
    )


def layer_counts(samples: int, width: int, dtype: str) -> tuple[int, int]:
    """Return FLOP and bytes of a linear layer with n = ``width``: n² weights, B n inputs and B n outputs."""
    return 2 * samples * width**2, _BYTES[dtype] * (width**2 + 2 * samples * width)


def _draw_roof(ax: Any, peaks: Peaks, dtype: str) -> None:
    """Draw the roof of the machine for one format, and its ridge."""
    gflops_per_s = peaks.peak_flops_per_s(dtype) / 1e9
    roof = np.minimum(_INTENSITIES * peaks.memory_bytes_per_s / 1e9, gflops_per_s)
    ax.plot(_INTENSITIES, roof, color=BLUE, label=f"{dtype} {gflops_per_s:,.0f} GFLOP/s")
    ridge = peaks.ridge(dtype)
    ax.axvline(ridge, color=GREY, ls="--", lw=1.2, label=f"ridge {three(ridge)}")


def _draw_measured(ax: Any, measured: Mapping[str, tuple[float, float]]) -> None:
    """Draw the measured operations as rings with their names."""
    for name, (intensity, flops_per_s) in measured.items():
        ax.plot(intensity, flops_per_s / 1e9, "o", ms=8, mfc="none", color=GREEN)
        ax.annotate(name, (intensity, flops_per_s / 1e9), xytext=(7, -12), textcoords="offset points")


def _in_words(peaks: Peaks, values: Any) -> str:
    """Say what binds the layer, and how long it takes at least."""
    flop, n_bytes = layer_counts(values.samples, values.width, values.dtype)
    intensity = flop / n_bytes
    ridge = peaks.ridge(values.dtype)
    bound = "memory" if intensity < ridge else "arithmetic"
    layer_s = peaks.predict_s(flop, n_bytes, values.dtype)
    per_sample = f", {duration(layer_s / values.samples)} a sample" if values.samples > 1 else ""
    return (
        f"{count(values.samples, 'sample')} through a layer {values.width:,} wide in {values.dtype}: "
        f"{three(intensity)} FLOP per byte, with the ridge at {three(ridge)}. Bound by {bound}: at most "
        f"{min(1.0, intensity / ridge):.0%} of the peak, at least {duration(layer_s)}{per_sample}."
    )
