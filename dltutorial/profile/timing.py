"""Timing that can be trusted: warm-up apart, variants in turn, medians with their spread.

In: functions without arguments. Out: seconds of one call. On CUDA a call returns before its work is done; there the
device's own events tell the time.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dltutorial import machine
from dltutorial.profile import probes


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
    once_s = {name: probes.call_s(run, 1, device) for name, run in variants.items()}
    calls = {name: max(1, math.ceil(sample_s / max(seconds, 1e-7))) for name, seconds in once_s.items()}
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, run in variants.items():
            samples[name].append(probes.call_s(run, calls[name], device))
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: ``1.23 ms``."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def rate(per_s: float, unit: str) -> str:
    """Something per second with a letter for its power of ten: ``174 GFLOP/s``, ``840 MB/s``."""
    unit = unit.replace("bytes", "B")
    power, letter = next((p for p in ((12, "T"), (9, "G"), (6, "M")) if per_s >= 10 ** p[0]), (6, "M"))
    return f"{per_s / 10**power:.3g} {letter}{unit}"
