"""The roofline of a machine, and a linear layer to move along it: by its batch, its width and its number format.

In: measured peaks. Out: the roof, and where the layer lies under it, with its time. A layer from n to n numbers does
2 B n² FLOP for B samples and moves n² weights, B n inputs and B n outputs. Williams, Waterman, Patterson 2009
(doi:10.1145/1498765.1498785).
"""

from collections.abc import Mapping

from dltutorial.course.explorers import svg
from dltutorial.course.explorers.parts import Choice, Drawing, Explorer, Slider
from dltutorial.course.explorers.words import span
from dltutorial.course.show import number
from dltutorial.errors import CourseError
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.probes import Figure

_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}  # of a number in memory
_INTENSITIES = (0.05, 1e4)  # FLOP per byte; the axis
_GIGA = 1e9
Measured = Mapping[str, tuple[float, float]]


def roofline(peaks: Peaks, measured: Measured | None = None) -> None:
    """Show a machine's roofline and a layer to move; arguments as of :func:`make`."""
    make(peaks, measured).explore()


def make(peaks: Peaks, measured: Measured | None = None) -> Explorer:
    """A layer under the roof of one machine.

    Args:
        peaks: as ``peaks.measure`` returns them.
        measured: name → (FLOP per byte, FLOP/s) of operations in fp32, drawn as rings.

    Raises:
        CourseError: the machine has no measured product, or no memory bandwidth.
    """
    formats = [name for name, figure in peaks.matmul.items() if figure and name in _BYTES]
    if not formats:
        raise CourseError(f"no matrix product was measured on {peaks.machine}; call peaks.measure(refresh=True)")
    first = "fp32" if "fp32" in formats else formats[0]
    axes = _axes(peaks, formats)

    def draw(samples: int, width: int, dtype: str) -> Drawing:
        rings = (measured or {}) if dtype == "fp32" else {}
        return Drawing(_words(peaks, samples, width, dtype), _picture(axes, peaks, samples, width, dtype, rings))

    controls = [
        Slider("samples", "Batch", value=1, low=1, high=65536, log=True, integer=True, unit="samples",
               help="How many samples share the weights that were fetched."),
        Slider("width", "Width of the layer", value=4096, low=16, high=16384, log=True, integer=True, unit="numbers",
               help="Inputs of the layer, and as many outputs."),
        Choice("dtype", "Format", formats, value=first, help="Of weights, inputs and outputs."),
    ]  # fmt: skip
    return Explorer("Roofline of this machine and a linear layer", controls, draw)


def example() -> Explorer:
    """A machine of round numbers: 200 GFLOP/s in fp32, 400 in bf16, 20 GB/s."""
    figures = {name: Figure(best, best, 1, "FLOP/s", "an example") for name, best in (("fp32", 2e11), ("bf16", 4e11))}
    memory = Figure(2e10, 2e10, 1, "bytes/s", "an example")
    machine = Peaks("example", "cpu", 2, "2026-01-01T00:00:00+00:00", None, {}, figures, memory, {})
    return make(machine, {"add": (1 / 12, 1.5e9), "layer, batch of 256": (110, 1.7e11)})


def layer_counts(samples: int, width: int, dtype: str) -> tuple[int, int]:
    """FLOP and bytes of a linear layer, ``width`` numbers in and as many out."""
    return 2 * samples * width**2, _BYTES[dtype] * (width**2 + 2 * samples * width)


def _words(peaks: Peaks, samples: int, width: int, dtype: str) -> str:
    flop, n_bytes = layer_counts(samples, width, dtype)
    intensity, ridge, time_s = flop / n_bytes, peaks.ridge(dtype), peaks.predict_s(flop, n_bytes, dtype)
    share = peaks.attainable_flops_per_s(intensity, dtype) / peaks.peak_flops_per_s(dtype)
    bound = "memory" if intensity < ridge else "arithmetic"
    many, each = ("1 sample", "") if samples == 1 else (f"{samples:,} samples", f", {span(time_s / samples)} a sample")
    return (
        f"{many} through a layer {width:,} wide in {dtype}: {number(intensity)} FLOP per byte, with the ridge at "
        f"{number(ridge)}. Bound by {bound}: at most {share:.0%} of the peak, at least {span(time_s)}{each}."
    )


def _axes(peaks: Peaks, formats: list[str]) -> svg.Axes:
    top = 3 * max(peaks.peak_flops_per_s(name) for name in formats) / _GIGA
    low = min(_INTENSITIES[0] * peaks.memory_bytes_per_s, *(peaks.peak_flops_per_s(name) for name in formats)) / _GIGA
    return svg.Axes(_INTENSITIES, (low / 3, top), log_x=True, log_y=True, labels=("FLOP per byte", "GFLOP/s"))


def _picture(axes: svg.Axes, peaks: Peaks, samples: int, width: int, dtype: str, measured: Measured) -> list[str]:
    """The roof of one format, its ridge, rings for what was measured, and the layer as a diamond."""
    flop, n_bytes = layer_counts(samples, width, dtype)
    ridge, peak = peaks.ridge(dtype), peaks.peak_flops_per_s(dtype) / _GIGA
    corners = (_INTENSITIES[0], min(max(ridge, _INTENSITIES[0]), _INTENSITIES[1]), _INTENSITIES[1])
    roof = [(x, peaks.attainable_flops_per_s(x, dtype) / _GIGA) for x in corners]
    x, y = axes.x(flop / n_bytes), axes.y(peaks.attainable_flops_per_s(flop / n_bytes, dtype) / _GIGA)
    key = [(svg.diamond(0, 0, svg.RED), "the layer, at best"), (svg.ring(0, 0, svg.GREEN), "measured")]
    parts = [
        *axes.frame(),
        axes.curve(roof, svg.BLUE),
        axes.upright(ridge, svg.GREY),
        svg.text(axes.x(ridge) + 5, axes.bottom - 8, f"ridge {number(ridge)}"),
        svg.text(axes.right, axes.y(peak) - 12, f"{dtype} {peak:,.0f} GFLOP/s", anchor="end"),
        svg.diamond(x, y, svg.RED),
        *svg.legend(key if measured else key[:1], axes.left + 20, axes.top + 12),
    ]
    for name, (intensity, flop_per_s) in measured.items():
        x, y = axes.x(intensity), axes.y(flop_per_s / _GIGA)
        parts.append(svg.ring(x, y, svg.GREEN))
        parts.append(svg.text(min(x + 9, axes.right - 0.55 * svg.FONT * len(name)), y + 20, name))
    return parts
