"""What a piece of work cost in energy: read from the machine's own counters where it has them, else estimated.

In: a block of work. Out: ``Energy``: joules, how they were found, whether that was a measurement. Sources, in order:

- a GPU: the sum that ``nvidia-smi`` gives of the boards' power, several times a second, times the seconds;
- a CPU: RAPL, the counters in ``/sys/class/powercap`` (on most machines only the administrator may read them); they
  count whole processor packages, whoever keeps them busy;
- a stated power, such as a data sheet's: an estimate, and labelled so;
- nothing: None, which is shown as "not available".

Source: https://docs.kernel.org/power/powercap/powercap.html; data sheets: ``reference/accelerators.csv``.
"""

import contextlib
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dltutorial import machine
from dltutorial.errors import CourseError
from dltutorial.record import plots

POWERCAP = Path("/sys/class/powercap")
JOULES_PER_KWH = 3.6e6
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

    @property
    def kwh(self) -> float | None:
        """The same in kilowatt hours."""
        return None if self.joules is None else self.joules / JOULES_PER_KWH

    def __str__(self) -> str:
        if self.joules is None:
            return f"{machine.UNKNOWN} ({self.how})"
        return f"{self.joules:.3g} J, {'measured' if self.measured else 'estimated'} ({self.how})"


@dataclass
class Meter:
    """Filled in when the block of ``meter()`` ends."""

    energy: Energy = field(default_factory=lambda: Energy(None, "the work has not ended"))


@contextlib.contextmanager
def meter(device: str | None = None, powercap: Path = POWERCAP) -> Iterator[Meter]:
    """``with meter() as found:`` work; then ``found.energy``.

    Args:
        device: cuda or cpu; default: the course's device.
        powercap: where the counters of processors are.
    """
    found = Meter()
    device = device or machine.device()
    on_boards = device.startswith("cuda") and shutil.which("nvidia-smi")
    with _boards(found) if on_boards else _packages(found, powercap):
        yield found


def stated_watt(accelerator: str) -> tuple[float, str] | None:
    """(watts, source) that the data sheet of an accelerator states; None if it is not in the table."""
    for row in plots.reference("accelerators"):
        if _same_model(row["accelerator"], accelerator) and row.get("board_watt"):
            return float(row["board_watt"]), row["source"]
    return None


def estimate(device_s: float, watt: float | None, source: str) -> Energy:
    """Energy of devices that were held for so long, as if each took its stated power all the time.

    Raises:
        CourseError: a power or a time that is not positive.
    """
    if watt is None:
        return Energy(None, source)
    if watt <= 0 or device_s < 0:
        raise CourseError(f"{watt} W for {device_s} s is no energy; give a positive power")
    return Energy(watt * device_s, f"{watt:g} W stated for each device: {source}")


def of_device(device_s: float) -> Energy:
    """The estimate for this machine's own device, from its data sheet; None where the course knows of none."""
    gpus = machine.accelerators()
    stated = stated_watt(gpus[0].name) if gpus else None
    if stated is None:
        return estimate(device_s, None, "no counter that may be read, no stated power in the table")
    return estimate(device_s, *stated)


@contextlib.contextmanager
def _packages(found: Meter, powercap: Path) -> Iterator[None]:
    """RAPL: what all processor packages took, between two readings."""
    before = _counters(powercap)
    try:
        yield
    finally:
        after = _counters(powercap)
        if before and before.keys() == after.keys():
            joules = sum(_difference(before[name], after[name]) for name in before)
            found.energy = Energy(joules, f"RAPL, {len(before)} whole packages, all programs", True)
        else:
            found.energy = Energy(None, "no counter of this machine may be read")


def _counters(powercap: Path) -> dict[str, tuple[int, int]]:
    """Package → (microjoules so far, where the counter starts again at 0); empty if none may be read."""
    found = {}
    for zone in sorted(powercap.glob("intel-rapl:*")):
        try:
            if (zone / "name").read_text().startswith("package"):  # others are parts of a package
                values = (int((zone / name).read_text()) for name in ("energy_uj", "max_energy_range_uj"))
                found[zone.name] = tuple(values)
        except (OSError, ValueError):
            return {}
    return found


def _difference(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Joules between two readings of one counter, which may have started again once."""
    return ((after[0] - before[0]) % (before[1] + 1)) / 1e6


@contextlib.contextmanager
def _boards(found: Meter) -> Iterator[None]:
    """``nvidia-smi`` beside the work: the mean of the boards' power, times the seconds."""
    query = ["nvidia-smi", "--query-gpu=index,power.draw", "--format=csv,noheader,nounits", f"-lms={_EVERY_MS}"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query.append(f"--id={visible}")
    start_s = time.perf_counter()
    with subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as reader:
        try:
            yield
        finally:
            seconds = time.perf_counter() - start_s
            reader.terminate()
            found.energy = from_readings(reader.communicate()[0], seconds)


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


def _same_model(listed: str, found: str) -> bool:
    """Whether a board's reported name is that of a row; those rows are of SXM boards, others take less power."""
    model = listed.upper().removeprefix("NVIDIA ").split()[0]
    return model in found.upper() and not any(word in found.upper() for word in ("PCIE", "NVL", "MIG"))
