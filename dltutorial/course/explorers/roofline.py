"""The explorer of chapter 00: a linear layer below the roofline of this machine.

The input is the measured peaks of a machine. The output is an explorer with two logarithmic axes: FLOP per byte, and
GFLOP/s.
Source: Williams, Waterman, Patterson 2009, doi.org/10.1145/1498765.1498785.
"""

from typing import Any

from dltutorial.course.explorers.explorer import Explorer, choice, power_slider
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.timing import duration, three
from dltutorial.record import plots

_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}  # of a number in memory


def layer_counts(samples: int, width: int, dtype: str) -> tuple[int, int]:
    """Return FLOP and bytes of a linear layer with n = ``width``: n² weights, B n inputs and B n outputs."""
    return 2 * samples * width**2, _BYTES[dtype] * (width**2 + 2 * samples * width)


def roofline(peaks: Peaks) -> Explorer:
    """Return an explorer of the batch, the width and the dtype of a linear layer.

    Args:
        peaks: The peaks of the machine, as ``peaks.measure`` returns them.
    """

    def draw(ax: Any, samples: int, width: int, dtype: str) -> str:
        flop, n_bytes = layer_counts(samples, width, dtype)
        layer_s = peaks.predict_s(flop, n_bytes, dtype)
        intensity = flop / n_bytes
        ridge = peaks.ridge(dtype)
        plots.roofline(ax, peaks.memory_bytes_per_s, {dtype: peaks.peak_flops_per_s(dtype)})
        ax.axvline(ridge, color=plots.GREY, ls="--", lw=1.2, label="ridge")
        ax.plot(intensity, flop / layer_s / 1e9, "D", ms=9, color=plots.ORANGE, label="the layer at best")
        ax.legend(loc="lower right")
        limit = "arithmetic" if intensity >= ridge else "memory"
        return (
            f"Batch {samples:,}, width {width:,}, {dtype}: {three(intensity)} FLOP per byte. The ridge is at "
            f"{three(ridge)}, so the layer is bound by {limit}. It reaches at most {min(1, intensity / ridge):.0%} of "
            f"the peak, and takes at least {duration(layer_s)}, or {duration(layer_s / samples)} per sample."
        )

    formats = [name for name, figure in peaks.matmul.items() if figure and name in _BYTES]
    return Explorer(
        draw,
        samples=power_slider("Batch [samples]", 1, 1, 65_536),
        width=power_slider("Width of the layer", 4096, 16, 16_384),
        dtype=choice("Format", formats, "fp32"),
    )
