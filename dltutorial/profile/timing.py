"""Measure how long functions take: after a warm-up, alternating between variants, as a median with its spread.

Input: functions without arguments.
Output: seconds of one call. On CUDA a call returns before its work is done, so there CUDA events measure the time.

Source: docs.pytorch.org, torch.cuda.Event.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dltutorial import machine

_MIN_SAMPLES = 3
_SAMPLE_S = 0.003  # long compared with the resolution of the clock, and seldom interrupted by another process


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, measured several times."""

    samples_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median, which is what to expect."""
        return statistics.median(self.samples_s)

    @property
    def best_s(self) -> float:
        """The shortest time, which the machine reaches when nothing disturbs it."""
        return min(self.samples_s)


def alternate(
    variants: Mapping[str, Callable[[], object]], repeats: int = 7, sample_s: float = 0.02, device: str | None = None
) -> dict[str, Timing]:
    """Time several functions alternately, so that a slow moment of the machine affects all of them equally.

    Each function is first called once without measuring. A fast function is called several times for one sample, so
    that the sample lasts about ``sample_s``.

    Args:
        variants: Functions by name.
        repeats: The number of samples of each function.
        sample_s: The shortest time of a sample, in seconds.
        device: Where the work runs. None means the device of the course.

    Returns:
        The timings by name.
    """
    device = device or machine.device()
    for run in variants.values():
        run()
    n_calls = {name: _calls_per_sample(run, device, sample_s) for name, run in variants.items()}
    samples_s: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, run in variants.items():
            samples_s[name].append(call_s(run, n_calls[name], device))
    return {name: Timing(tuple(samples)) for name, samples in samples_s.items()}


def times_s(run: Callable[[], object], device: str, seconds: float) -> list[float]:
    """Measure one function repeatedly for about ``seconds``, and at least 3 times.

    Args:
        run: The function.
        device: Where the work runs.
        seconds: How long to measure.

    Returns:
        Seconds of one call, for each sample.
    """
    end = time.perf_counter() + seconds
    run()
    n_calls = _calls_per_sample(run, device, _SAMPLE_S)
    samples: list[float] = []
    while len(samples) < _MIN_SAMPLES or time.perf_counter() < end:
        samples.append(call_s(run, n_calls, device))
    return samples


def call_s(run: Callable[[], object], calls: int, device: str) -> float:
    """Mean seconds of one call, over a number of calls in a row."""
    if device == "cuda":
        return _call_on_cuda_s(run, calls)
    start_s = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start_s) / calls


def _call_on_cuda_s(run: Callable[[], object], calls: int) -> float:
    """Mean seconds of one call on a GPU, measured by its own clock."""
    import torch

    start = torch.cuda.Event(enable_timing=True)
    stop = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        run()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3 / calls


def _calls_per_sample(run: Callable[[], object], device: str, sample_s: float) -> int:
    """The number of calls that last about ``sample_s``."""
    return max(1, math.ceil(sample_s / max(call_s(run, 1, device), 1e-7)))


def duration(seconds: float) -> str:
    """Write seconds in a suitable unit, such as ``1.23 ms``."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= factor:
            return f"{three(seconds / factor)} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def three(value: float) -> str:
    """Write a number with three digits, or with all digits before the point: ``1``, ``25.7``, ``25,657``."""
    if 999.5 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def rate(per_s: float, unit: str) -> str:
    """Write a rate with the prefix of its unit, such as ``174 GFLOP/s`` or ``840 MB/s``."""
    unit = unit.replace("bytes", "B")
    for prefix, factor in (("T", 1e12), ("G", 1e9)):
        if per_s >= factor:
            return f"{per_s / factor:.3g} {prefix}{unit}"
    return f"{per_s / 1e6:.3g} M{unit}"
