"""Timing that can be trusted: warm-up apart, variants in turn, medians with their spread.

In: functions without arguments. Out: seconds of one call. On CUDA a call returns before its work is done; there the
device's own events tell the time.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dltutorial import machine


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, measured several times."""

    samples_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The middle one: what to expect."""
        return statistics.median(self.samples_s)

    @property
    def best_s(self) -> float:
        """The quickest: what the machine can do when nothing disturbs it."""
        return min(self.samples_s)

    def __str__(self) -> str:
        low, high = min(self.samples_s), max(self.samples_s)
        return f"{duration(self.median_s)} (from {duration(low)} to {duration(high)}, {len(self.samples_s)} times)"


def alternate(
    variants: Mapping[str, Callable[[], object]], repeats: int = 7, sample_s: float = 0.02, device: str | None = None
) -> dict[str, Timing]:
    """Time several functions in turn, so that a slow moment of the machine hits them all alike.

    Each is called once unmeasured, to warm up. A quick one is called several times in a row for one sample, so that
    the sample lasts about ``sample_s``.

    Args:
        variants: name → function.
        repeats: samples of each.
        sample_s: least seconds of a sample.
        device: where the work runs; default: the course's device.
    """
    device = device or machine.device()
    for run in variants.values():
        run()
    calls = {name: _calls(run, device, sample_s) for name, run in variants.items()}
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, run in variants.items():
            samples[name].append(call_s(run, calls[name], device))
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def times_s(run: Callable[[], object], device: str, seconds: float, sample_s: float = 0.003) -> list[float]:
    """Seconds of one call of ``run``, several times, within about ``seconds`` but 3 times at least.

    A sample of ``sample_s`` is long for a clock, yet short enough to fit between two turns of another process on the
    same core.
    """
    end = time.perf_counter() + seconds
    run()
    calls = _calls(run, device, sample_s)
    samples: list[float] = []
    while len(samples) < 3 or (time.perf_counter() < end and len(samples) < 300):
        samples.append(call_s(run, calls, device))
    return samples


def call_s(run: Callable[[], object], calls: int, device: str) -> float:
    """Mean seconds of one of ``calls`` calls in a row."""
    if device != "cuda":
        start_s = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - start_s) / calls
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        run()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3 / calls


def _calls(run: Callable[[], object], device: str, sample_s: float) -> int:
    """How many calls last ``sample_s``."""
    return max(1, math.ceil(sample_s / max(call_s(run, 1, device), 1e-7)))


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: ``1.23 ms``."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= factor:
            return f"{three(seconds / factor)} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def three(value: float) -> str:
    """A number of three digits, or of all those before the point: ``1``, ``25.7``, ``25,657``; ``2.5e+07``."""
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e7 else f"{value:.3g}"


def rate(per_s: float, unit: str) -> str:
    """Something per second with a letter for its power of ten: ``174 GFLOP/s``, ``840 MB/s``."""
    unit = unit.replace("bytes", "B")
    power, letter = next((p for p in ((12, "T"), (9, "G"), (6, "M")) if per_s >= 10 ** p[0]), (6, "M"))
    return f"{per_s / 10**power:.3g} {letter}{unit}"
