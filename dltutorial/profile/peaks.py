"""The peaks of this machine, measured once and cached. They are the roofline of every later prediction.

Input: nothing but the machine. ``probes`` and ``disk`` do the experiments.
Output: a frozen :class:`Peaks`, in FLOP/s and bytes/s. What could not be measured is None, shown as "not available".

The peaks are cached as JSON. The name of the file depends on the machine, the cores of this process, the version of
torch and the disk. Reading it takes milliseconds and does not import torch.

The roofline: an operation of F FLOP that moves M bytes takes at least max(F / peak, M / bandwidth) seconds.
Source: Williams, Waterman, Patterson, "Roofline", Communications of the ACM 52 (2009), 65.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dltutorial import machine, paths
from dltutorial.errors import CourseError
from dltutorial.profile import disk, probes
from dltutorial.profile.probes import Figure

_LAYOUT = 3  # of the JSON file; a new number makes every machine measure again
_SECONDS = 4.0  # how long to measure, without the import of torch
_MAX_DISTURBED_AGE_S = 600  # peaks that were measured on a busy machine are used for this time


@dataclass(frozen=True)
class Peaks:
    """Measured peaks of one machine. A figure that is None is not available here.

    Attributes:
        machine: Label of the machine, without the host's name.
        device: cuda or cpu: where products and copies ran.
        time: When it was measured, in UTC and the format of ISO 8601.
        matmul: FLOP/s of a matrix product, by dtype: fp32, tf32, bf16, fp16, fp64.
        memory: Bytes/s of a copy, bytes read plus bytes written.
        disk: Bytes/s of reads, by kind: cold_sequential, cold_random_4k, warm_sequential.
    """

    machine: str
    device: str
    time: str
    matmul: Mapping[str, Figure | None]
    memory: Figure
    disk: Mapping[str, Figure | None]

    def peak_flops_per_s(self, dtype: str) -> float:
        """The peak of matrix products.

        Args:
            dtype: A key of ``matmul``.

        Returns:
            FLOP/s.

        Raises:
            CourseError: It was not measured here.
        """
        figure = self.matmul.get(dtype)
        if figure is None:
            raise CourseError(f"the peak of {dtype} is not available on this machine: {self.machine}")
        return figure.best

    @property
    def memory_bytes_per_s(self) -> float:
        """The memory bandwidth."""
        return self.memory.best

    def ridge(self, dtype: str) -> float:
        """The arithmetic intensity, in FLOP/byte, above which compute limits an operation instead of memory."""
        return self.peak_flops_per_s(dtype) / self.memory_bytes_per_s

    def predict_s(self, flop: float, n_bytes: float, dtype: str) -> float:
        """The shortest time of an operation in seconds, by the roofline."""
        return max(flop / self.peak_flops_per_s(dtype), n_bytes / self.memory_bytes_per_s)

    @property
    def steady(self) -> bool:
        """Whether the machine was undisturbed, so that each median is within 25% of its best rate."""
        return all(figure.spread < 0.25 for figure in (self.memory, *self.matmul.values()) if figure)

    def figures(self) -> dict[str, Figure | None]:
        """All figures by name, in the order of a table."""
        matmul = {f"matmul {dtype}": figure for dtype, figure in self.matmul.items()}
        reads = {f"disk {kind.replace('_', ' ')}": figure for kind, figure in self.disk.items()}
        return {**matmul, "memory copy": self.memory, **reads}


def measure(refresh: bool = False) -> Peaks:
    """Return the peaks of this machine, from the cache if possible. Otherwise measure and cache them.

    Peaks that were measured while other programs held the cores are used for ten minutes, then measured again.

    Args:
        refresh: Measure even if the cache has them.

    Returns:
        The peaks.
    """
    cached = None if refresh else load()
    if cached is not None and (cached.steady or _age_s(cached) < _MAX_DISTURBED_AGE_S):
        return cached
    peaks = _measure()
    with contextlib.suppress(CourseError, OSError):  # without a cache, the next call only takes longer
        paths.write_text(cache_file(), json.dumps(dataclasses.asdict(peaks), indent=1))
    return peaks


def load() -> Peaks | None:
    """Read the peaks from the cache. Return None if this machine was not measured yet."""
    try:
        content = json.loads(cache_file().read_text(encoding="utf-8"))
    except OSError:
        return None
    content["memory"] = Figure(**content["memory"])
    for group in ("matmul", "disk"):
        content[group] = {name: _figure_from_json(figure) for name, figure in content[group].items()}
    return Peaks(**content)


def _figure_from_json(content: dict[str, Any] | None) -> Figure | None:
    """Make a figure from parsed JSON."""
    if content is None:
        return None
    return Figure(**content)


def _age_s(peaks: Peaks) -> float:
    """Seconds since the measurement."""
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(peaks.time)
    return age.total_seconds()


def cache_file() -> Path:
    """The file with the peaks of this machine and of the disk of the data folder."""
    folder = paths.data_dir().absolute()
    existing = [place for place in (folder, *folder.parents) if place.exists()]
    key = (
        _LAYOUT,
        machine.label(),
        machine.rank_cores(),
        machine.package_version("torch"),
        existing[0].stat().st_dev,  # the number of the disk
    )
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    return paths.cache_dir() / "machine" / f"peaks-{name}.json"


def _measure() -> Peaks:
    """Run all experiments. Each data type and the memory get one share of the time, and the disk gets three."""
    import torch
    from tqdm.auto import tqdm

    device = machine.device()
    dtypes = _dtypes(device)
    share_s = _SECONDS / (len(dtypes) + 4)
    matmul: dict[str, Figure | None] = {}
    threads_before = torch.get_num_threads()
    machine.use_cores()
    with tqdm(total=len(dtypes) + 2, desc="measuring this machine", unit="peak") as bar:
        for dtype in dtypes:
            matmul[dtype] = probes.matmul_flops_per_s(dtype, device, share_s)
            bar.update()
        memory = probes.copy_bytes_per_s(device, share_s)
        bar.update()
        reads = disk.read_bytes_per_s(paths.data_dir(), 3 * share_s)
        bar.update()
    torch.set_num_threads(threads_before)
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Peaks(machine.label(), device, time, matmul, memory, reads)


def _dtypes(device: str) -> tuple[str, ...]:
    """The data types of the products that a device may have."""
    if device == "cpu":
        return probes.CPU_DTYPES
    gpu = machine.accelerators()[0]
    if "tf32" in (gpu.tensor_core_dtypes or ()):
        return probes.CUDA_DTYPES
    # Without units for TF32, the product would be one of fp32.
    return tuple(dtype for dtype in probes.CUDA_DTYPES if dtype != "tf32")
