"""Measure or estimate the energy of a block of work.

In: a block of work. Out: an ``Energy``, which has the joules, their source, and whether they were measured. The sources
are tried in this order:

- For a GPU, ``nvidia-smi`` reports the power of the boards several times a second. Their mean times the seconds is the
  energy.
- For a CPU, RAPL has counters in ``/sys/class/powercap``. On most machines only the administrator may read them. They
  count complete CPU packages, with all programs that run there.
- The caller may state a power, such as the thermal design power of a data sheet. This power times the measured load is
  an estimate.
- Without any of these, the joules are None, which is shown as "not available".

Source: https://docs.kernel.org/power/powercap/powercap.html
"""

import contextlib
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dltutorial import machine

POWERCAP = Path("/sys/class/powercap")
_INTERVAL_MS = 100  # between two readings of nvidia-smi


@dataclass(frozen=True)
class Energy:
    """The energy of a block of work.

    Attributes:
        joules: None if they are not available.
        how: source of the figure.
        measured: whether a counter was read; otherwise the figure is an estimate.
    """

    joules: float | None
    how: str
    measured: bool = False

    def __str__(self) -> str:
        """The energy in joules, with its source."""
        if self.joules is None:
            return f"{machine.UNKNOWN} ({self.how})"
        kind = "measured" if self.measured else "estimated"
        return f"{self.joules:.3g} J, {kind} ({self.how})"


class Meter:
    """It has its ``energy`` when the block of ``meter()`` has ended."""

    energy = Energy(None, "the work has not ended")


@contextlib.contextmanager
def meter(watt: float = 0.0, whose: str = "stated by you") -> Iterator[Meter]:
    """Measure a block of work: ``with meter() as energy_meter: ...``, then ``energy_meter.energy``.

    Args:
        watt: power of one CPU core or of one GPU at full load, for an estimate without counters; 0 if unknown.
        whose: source of this power.
    """
    result = Meter()
    reader = None
    if machine.device() == "cuda" and shutil.which("nvidia-smi"):
        reader = _start_reader()
    counters = _counters()
    busy_s = _busy_s()
    start_s = time.perf_counter()
    try:
        yield result
    finally:
        seconds = time.perf_counter() - start_s
        busy_s = _busy_s() - busy_s
        if reader is None:
            result.energy = _of_packages(counters, _counters())
        else:
            reader.terminate()
            result.energy = from_readings(reader.communicate()[0], seconds)
        if result.energy.joules is None and watt > 0:
            result.energy = estimated(watt, whose, seconds, busy_s)


def _start_reader() -> "subprocess.Popen[str]":
    """Start nvidia-smi, which prints lines "board, watts" until it is terminated."""
    query = ["nvidia-smi", "--query-gpu=index,power.draw", "--format=csv,noheader,nounits", f"-lms={_INTERVAL_MS}"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        query.append(f"--id={visible}")
    return subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def estimated(watt: float, whose: str, seconds: float, busy_s: float) -> Energy:
    """Estimate the energy from a power.

    For a CPU, the load is measured. For a GPU, the load is not known, so full load is assumed.

    Args:
        watt: power of one CPU core or of one GPU at full load.
        whose: source of this power.
        seconds: duration of the work.
        busy_s: seconds of the work of all CPU cores together.
    """
    if machine.device() == "cuda":
        return Energy(watt * seconds, f"{watt:g} W, {whose}; load unknown, taken as full")
    return Energy(watt * busy_s, f"{watt:g} W a core, {whose}; {busy_s / seconds:.2f} cores busy")


def _busy_s() -> float:
    """Seconds of CPU cores for this process and for those of its child processes that have ended."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def from_readings(lines: str, seconds: float) -> Energy:
    """The energy from lines "board, watts" that were read during the work.

    Args:
        lines: of nvidia-smi. A line without a number, such as "[N/A]" or an incomplete last line, is skipped.
        seconds: duration of the work.
    """
    watts: dict[str, list[float]] = {}
    for line in lines.splitlines():
        with contextlib.suppress(ValueError):
            board, watt = line.split(",")
            watts.setdefault(board, []).append(float(watt))
    if not watts:
        return Energy(None, "the boards do not report their power")
    power = sum(statistics.mean(readings) for readings in watts.values())
    n_readings = sum(len(readings) for readings in watts.values())
    return Energy(power * seconds, f"nvidia-smi, boards: {len(watts)}, readings: {n_readings}", True)


def _counters() -> dict[str, tuple[int, int]]:
    """The RAPL counters of the CPU packages.

    Returns:
        For each package the microjoules so far, and the largest value, after which the counter starts again at 0. It is
        empty if the counters may not be read.
    """
    counters = {}
    for zone in sorted(POWERCAP.glob("intel-rapl:*")):
        try:
            if not (zone / "name").read_text().startswith("package"):
                continue  # such a zone is a part of a package
            microjoules = int((zone / "energy_uj").read_text())
            largest = int((zone / "max_energy_range_uj").read_text())
        except (OSError, ValueError):
            return {}
        counters[zone.name] = (microjoules, largest)
    return counters


def _of_packages(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> Energy:
    """The energy of all CPU packages between two readings. A counter may have started again once."""
    if not before or before.keys() != after.keys():
        return Energy(None, "no counter of this machine may be read")
    microjoules = 0
    for name, (start, largest) in before.items():
        end, _ = after[name]
        microjoules += (end - start) % (largest + 1)
    return Energy(microjoules / 1e6, f"RAPL, {len(before)} complete packages, all programs", True)
