"""What a piece of work cost in energy.

In: a block of work. Out: ``Energy``: joules, how they were found, whether that was a measurement. Sources, in order:

- a GPU: the sum that ``nvidia-smi`` gives of the boards' power, several times a second, times the seconds;
- a CPU: RAPL, the counters in ``/sys/class/powercap`` (on most machines only the administrator may read them); they
  count whole processor packages, whoever keeps them busy;
- a power that the caller states, such as a data sheet's TDP: that power times the measured load, an estimate;
- nothing: None, which is shown as "not available".

A job that has ended: what Slurm's accounting kept of it.

Sources: https://docs.kernel.org/power/powercap/powercap.html, https://slurm.schedmd.com/sacct.html
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
_EVERY_MS = 100


@dataclass(frozen=True)
class Energy:
    """Joules of a piece of work.

    Attributes:
        joules: None if nothing here can tell.
        how: where the figure comes from.
        measured: read from a counter; else estimated.
    """

    joules: float | None
    how: str
    measured: bool = False

    def __str__(self) -> str:
        if self.joules is None:
            return f"{machine.UNKNOWN} ({self.how})"
        return f"{self.joules:.3g} J, {'measured' if self.measured else 'estimated'} ({self.how})"


class Meter:
    """Has its ``energy`` when the block of ``meter()`` ends."""

    energy = Energy(None, "the work has not ended")


@contextlib.contextmanager
def meter(watt: float = 0.0, whose: str = "stated by you") -> Iterator[Meter]:
    """``with meter() as found:`` work; then ``found.energy``.

    Args:
        watt: what one core or GPU takes at full load, for an estimate where no counter can be read; 0 if unknown.
        whose: where that figure comes from.
    """
    found, reader = Meter(), None
    if machine.device() == "cuda" and shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=index,power.draw", "--format=csv,noheader,nounits", f"-lms={_EVERY_MS}"]
        if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
            query.append(f"--id={visible}")
        reader = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    before, start_s, start_busy_s = _counters(), time.perf_counter(), _busy_s()
    try:
        yield found
    finally:
        seconds, busy_s = time.perf_counter() - start_s, _busy_s() - start_busy_s
        if reader is None:
            found.energy = _of_packages(before, _counters())
        else:
            reader.terminate()
            found.energy = from_readings(reader.communicate()[0], seconds)
        if found.energy.joules is None and watt > 0:
            found.energy = estimated(watt, whose, seconds, busy_s)


def estimated(watt: float, whose: str, seconds: float, busy_s: float) -> Energy:
    """Stated watts times load: of a CPU the measured one, busy core-seconds; a GPU, whose load is not known, all on."""
    if machine.device() == "cuda":
        return Energy(watt * seconds, f"{watt:g} W, {whose}; load unknown, taken as full")
    return Energy(watt * busy_s, f"{watt:g} W a core, {whose}; {busy_s / seconds:.2f} cores busy")


def of_job(job: str) -> Energy:
    """What Slurm kept of a job that has ended. Its steps run at the same time: the largest counts, not their sum."""
    command = ["sacct", "--noheader", "--parsable2", f"--jobs={job}", "--format=ConsumedEnergyRaw"]
    try:
        rows = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return Energy(None, "no answer from sacct here")
    joules = max((int(row) for row in rows if row.isdecimal() and int(row) < 2**63), default=0)  # 2⁶⁴ - 2: no value
    if not joules:
        return Energy(None, f"Slurm has kept no energy of job {job}")
    return Energy(float(joules), f"sacct, whole nodes of job {job}", True)


def _busy_s() -> float:
    """Seconds that cores have worked for this process and for those of its children that have ended."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def from_readings(lines: str, seconds: float) -> Energy:
    """Energy from lines "board, watts" that were read while the work ran; None where no board tells."""
    watts: dict[str, list[float]] = {}
    for line in lines.splitlines():
        with contextlib.suppress(ValueError):  # "[N/A]", or a line cut short by the end
            board, watt = line.split(",")
            watts[board] = [*watts.get(board, ()), float(watt)]
    if not watts:
        return Energy(None, "the boards do not tell their power")
    power = sum(statistics.mean(found) for found in watts.values())
    return Energy(power * seconds, f"nvidia-smi, boards: {len(watts)}, readings: {sum(map(len, watts.values()))}", True)


def _counters() -> dict[str, tuple[int, int]]:
    """Package → (microjoules so far, where the counter starts again at 0); empty if none may be read."""
    found = {}
    for zone in sorted(POWERCAP.glob("intel-rapl:*")):
        try:
            if (zone / "name").read_text().startswith("package"):  # others are parts of a package
                so_far, most = (int((zone / name).read_text()) for name in ("energy_uj", "max_energy_range_uj"))
                found[zone.name] = so_far, most
        except (OSError, ValueError):
            return {}
    return found


def _of_packages(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> Energy:
    """RAPL: what all processor packages took between two readings; a counter may have started again once."""
    if not before or before.keys() != after.keys():
        return Energy(None, "no counter of this machine may be read")
    joules = sum((after[name][0] - start) % (most + 1) / 1e6 for name, (start, most) in before.items())
    return Energy(joules, f"RAPL, {len(before)} whole packages, all programs", True)
