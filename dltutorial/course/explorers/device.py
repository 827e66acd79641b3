"""Explorers of one device: its roofline (chapter 00), its loader (03) and its number formats (04)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from dltutorial.course.explorers.explorer import Explorer, around, choice, slider, whole
from dltutorial.errors import CourseError
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.timing import duration, three
from dltutorial.record.plots import BLUE, GREEN, GREY, ORANGE

_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}  # of a number in memory
_INTENSITY_N = np.geomspace(0.05, 1e4, 101)  # FLOP per byte
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_RIGHT = 30  # exponent at the right end of the number line: beyond fp16's largest number, 2¹⁶
_ZONES = (("0", ORANGE, "xx"), ("few digits", GREEN, "//"), ("all digits", BLUE, ""), ("overflow", ORANGE, ".."))
_SHOWN = 6  # so many batches fit into the picture when loading and step take turns
_LONG_RUN = 480  # batches; the second half is counted


def roofline(peaks: Peaks, measured: Mapping[str, tuple[float, float]]) -> Explorer:
    """A linear layer under the roof of one machine. Williams, Waterman, Patterson 2009, doi:10.1145/1498765.1498785.

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
        ax.axvline(ridge, color=GREY, ls="--", lw=1.2, label=f"ridge {three(ridge)}")
        ax.plot(intensity, reached * peak, "D", ms=9, color=ORANGE, label="the layer, at best")
        for name, (x, flop_per_s) in measured.items() if v.dtype == "fp32" else ():
            ax.plot(x, flop_per_s / 1e9, "o", ms=8, mfc="none", color=GREEN)
            ax.annotate(name, (x, flop_per_s / 1e9), xytext=(7, -12), textcoords="offset points")
        ax.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="GFLOP/s")
        ax.set(xlim=_INTENSITY_N[[0, -1]], ylim=(min(0.05 * slope, top) / 3, 3 * top))
        ax.legend(loc="lower right")
        return (
            f"{v.samples:,} sample{'s' * (v.samples > 1)} through a layer {v.width:,} wide in {v.dtype}: "
            f"{three(intensity)} FLOP per byte, with the ridge at {three(ridge)}. Bound by "
            f"{'memory' if intensity < ridge else 'arithmetic'}: at most {reached:.0%} of the peak, at least "
            f"{duration(time_s)}{f', {duration(time_s / v.samples)} a sample' * (v.samples > 1)}."
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


def pipeline(load_s: float, step_s: float) -> Explorer:
    """Loader and step on a time axis, with workers to add: what they hide, and what they cannot.

    Args:
        load_s, step_s: of one batch, each alone: where the sliders start.
    """

    def draw(ax: Any, v: Any) -> str:
        window, names = _SHOWN * (v.load + v.step), [f"worker {n + 1}" for n in range(v.workers)] or ["loading"]
        seen = passages(_loads(v.load, v.slow, 20 * _SHOWN), v.step, v.workers, v.ahead)
        for batch in (batch for batch in seen if batch.load_s < window):
            loading, working = (batch.load_s, batch.loaded_s - batch.load_s), (batch.step_s, v.step)
            ax.broken_barh([loading], (batch.worker + 0.65, 0.7), fc="white", ec=BLUE, hatch="///")
            ax.broken_barh([working], (-0.35, 0.7), fc=ORANGE, ec="white")
        done = sum(batch.done_s <= window * (1 + 1e-9) for batch in seen)
        ax.set_yticks(range(len(names) + 1), ["device", *names])
        ax.set(xlim=(0, window), xlabel=f"time, ms: {done} steps done (filled)")
        ax.grid(False, axis="y")
        ax.figure.subplots_adjust(left=0.14)
        each, turns = (long_run(v.load, v.step, workers, v.ahead, v.slow) for workers in (v.workers, 0))
        busy = f"the device works {v.step / each:.0%} of the time"
        if v.workers == 0:
            return f"In turns: a batch takes {duration(1e-3 * each)}, and {busy}."
        return (
            f"{v.workers} worker{'s' * (v.workers > 1)}, {v.ahead} ahead each: in the long run a batch takes "
            f"{duration(1e-3 * each)}, in turns {duration(1e-3 * turns)}, so {turns / each:.2f} × as fast; {busy}"
            f"{'; loading decides' if each > 1.02 * v.step else ''}."
        )

    load_ms, step_ms = 1e3 * load_s, 1e3 * step_s
    return Explorer(
        "Loader and step",
        draw,
        load=slider("Load a batch", "What one worker needs for a batch.", load_ms, around(load_ms, 20), "ms"),
        step=slider("Step", "What the device needs for a batch.", step_ms, around(step_ms, 20), "ms"),
        workers=slider("Workers", "They load beside the step; with 0 the two take turns.", 0, whole(0, 8)),
        ahead=slider("Ahead", "Batches of a worker that may wait: prefetch_factor.", 2, whole(1, 8), "batches each"),
        slow=slider("One batch in eight", "Some take longer: a new file, a busy disk.", 1, whole(1, 10), "× slower"),
    )


class Passage(NamedTuple):
    """One batch: the worker that loaded it, when loading began and ended, when the device took it and was done."""

    worker: int
    load_s: float
    loaded_s: float
    step_s: float
    done_s: float


def passages(load_s: Sequence[float], step_s: float, workers: int, ahead: int = 2) -> list[Passage]:
    """When each batch is loaded and used. Two rules make all of it.

    A worker loads a batch when it is free and there is room ahead; the device takes a batch when it is there and the
    step before it is done. Without a worker the two take turns. As in torch's ``DataLoader``, the workers take the
    batches in turn, and the device gets them in order. Left out: cores. Workers that must share a core with each other
    or with the step are slower than this.

    Args:
        load_s: seconds to load each of them.
        step_s: seconds of a step.
        workers: that load beside the step; 0: loading and step take turns.
        ahead: batches of each worker that are in the making or wait, 1 or more; torch's ``prefetch_factor``.
    """
    found: list[Passage] = []
    for k, seconds in enumerate(load_s):
        idle_s = found[-1].done_s if found else 0.0
        if workers == 0:
            begin_s = idle_s
        else:
            free_s = found[k - workers].loaded_s if k >= workers else 0.0
            room_s = found[k - workers * ahead].step_s if k >= workers * ahead else 0.0
            begin_s = max(free_s, room_s)
        loaded_s = begin_s + seconds
        taken_s = max(loaded_s, idle_s)
        found.append(Passage(k % max(1, workers), begin_s, loaded_s, taken_s, taken_s + step_s))
    return found


def long_run(load: float, step: float, workers: int, ahead: int, slow: int) -> float:
    """Time of a batch once the start is over, slow batches among the others."""
    seen = passages(_loads(load, slow, _LONG_RUN), step, workers, ahead)
    return (seen[-1].done_s - seen[_LONG_RUN // 2 - 1].done_s) / (_LONG_RUN - _LONG_RUN // 2)


def _loads(load: float, slow: int, batches: int) -> list[float]:
    """One in eight is slow: the fourth, then another of each eight, as otherwise the same worker had them all."""
    places = (divmod(k, 8) for k in range(batches))
    return [load * (slow if place == 3 * (1 + eight) % 8 else 1) for eight, place in places]


def numbers(values: Any, log2_scale: int = 0) -> Explorer:
    """Gradients on the number line of a format, and a loss scale that moves them, out of zero and towards infinity.

    Args:
        values: an array, or a tensor; signs do not matter.
        log2_scale: where the scale starts, as a power of two.

    Raises:
        CourseError: there is no number but 0, or one that is not finite.
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().double()
    magnitudes = np.abs(np.asarray(values, dtype=np.float64)).ravel()
    if not (magnitudes.any() and np.isfinite(magnitudes).all()):
        raise CourseError(f"{magnitudes.size} numbers, none of them positive, or one not finite: give others to draw")
    powers = np.frexp(magnitudes[magnitudes > 0])[1] - 1
    exponents, counts = np.unique(powers, return_counts=True)
    low = min(int(np.quantile(powers, 0.002)) - 2, -36)

    def draw(ax: Any, v: Any) -> str:
        form, found = fates(magnitudes * 2.0**v.log2_scale, _DTYPES[v.dtype])
        edges = (low, *map(math.log2, (form.tiny * form.eps / 2, form.tiny, form.max)), _RIGHT)
        moved = exponents + v.log2_scale
        for (name, colour, hatch), share, left, right in zip(_ZONES, found, edges[:-1], edges[1:], strict=True):
            inside = (moved >= left - 0.5) & (moved < right - 0.5)
            ax.bar(moved[inside], counts[inside] / magnitudes.size, 0.9, align="edge", color=colour, hatch=hatch)
            left, right = np.clip((left, right), low, _RIGHT)
            ax.axvline(left, color=GREY, ls="--", lw=1)
            if right - left > 6:
                told, middle = f"{name}\n{_percent(share)}", (left + right) / 2
                ax.text(middle, 1.02, told, ha="center", transform=ax.get_xaxis_transform())
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
        dtype=choice("Format", "The gradients are rounded to it.", _DTYPES, "fp16"),
    )


def fates(magnitudes: np.ndarray, dtype: str) -> tuple[Any, list[float]]:
    """A format, and the shares of some numbers that it makes 0, short of digits (subnormal), normal and infinite."""
    import torch

    rounded = torch.from_numpy(magnitudes).to(getattr(torch, dtype))
    form, zero, infinite = torch.finfo(rounded.dtype), rounded == 0, rounded.isinf()
    few, normal = (rounded < form.tiny) & ~zero, (rounded >= form.tiny) & ~infinite
    return form, [kind.double().mean().item() for kind in (zero, few, normal, infinite)]


def _percent(share: float) -> str:
    """Whole percents; what is not nothing never reads 0%, what is not all never 100%."""
    return f"{share:.0%}" if share in (0, 1) or 0.01 <= share <= 0.99 else "<1%" if share < 0.5 else ">99%"
