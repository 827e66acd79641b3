"""The peaks of this machine, measured once and cached. They are the roofline of every later prediction.

Input: nothing but the machine. ``probes`` and ``disk`` do the experiments.
Output: a frozen :class:`Peaks`, in FLOP/s and bytes/s. What could not be measured is None, shown as "not available".

The peaks are cached as JSON. The name of the file depends on CPU model, cores, accelerator, version of torch and disk.
Reading it takes milliseconds and does not import torch.

The roofline: an operation of F FLOP that moves M bytes takes at least max(F / peak, M / bandwidth) seconds.
Source: Williams, Waterman, Patterson, "Roofline", Communications of the ACM 52 (2009), 65.
"""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dltutorial import machine, paths
from dltutorial.errors import CourseError
from dltutorial.profile import cpu_time, disk, probes
from dltutorial.profile.probes import Figure

_LAYOUT = 1  # of the JSON file; a new number makes every machine measure again
_SHORT_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_MAX_DISTURBED_AGE_S = 600  # peaks that were measured on a busy machine are used for this time


@dataclass(frozen=True)
class Peaks:
    """Measured peaks of one machine. A figure that is None is not available here.

    Attributes:
        machine: Label of the machine, without the host's name.
        device: cuda or cpu: where products and copies ran.
        threads: The number of threads that torch used on the CPU.
        time: When it was measured, in UTC and the format of ISO 8601.
        waited: Share of the time in which threads waited for a core that other processes held; None if unknown.
        versions: Versions of python, torch, numpy and dltutorial.
        matmul: FLOP/s of a matrix product, by dtype: fp32, tf32, bf16, fp16, fp64.
        memory: Bytes/s of a copy, bytes read plus bytes written.
        disk: Bytes/s of reads, by kind: cold_sequential, cold_random_sample, cold_random_4k, warm_sequential.
    """

    machine: str
    device: str
    threads: int
    time: str
    waited: float | None
    versions: Mapping[str, str | None]
    matmul: Mapping[str, Figure | None]
    memory: Figure | None
    disk: Mapping[str, Figure | None]

    def peak_flops_per_s(self, dtype: Any = "fp32") -> float:
        """The peak of matrix products.

        Args:
            dtype: A data type, named "bf16" or "bfloat16", or given as ``torch.bfloat16``.

        Returns:
            FLOP/s.

        Raises:
            CourseError: It was not measured here.
        """
        name = str(dtype).removeprefix("torch.")
        figure = self.matmul.get(_SHORT_NAMES.get(name, name))
        if figure is None:
            available = ", ".join(name for name, figure in self.matmul.items() if figure) or "none"
            raise CourseError(f"no {name} peak on {self.machine}: not available; choose one of: {available}")
        return figure.best

    @property
    def memory_bytes_per_s(self) -> float:
        """The memory bandwidth.

        Raises:
            CourseError: It was not measured here.
        """
        if self.memory is None:
            raise CourseError(f"no memory bandwidth on {self.machine}: free some memory, then measure(refresh=True)")
        return self.memory.best

    def ridge(self, dtype: Any = "fp32") -> float:
        """The arithmetic intensity, in FLOP/byte, above which compute limits an operation instead of memory."""
        return self.peak_flops_per_s(dtype) / self.memory_bytes_per_s

    def predict_s(self, flop: float, n_bytes: float, dtype: Any = "fp32") -> float:
        """The shortest time of an operation in seconds, by the roofline."""
        return max(flop / self.peak_flops_per_s(dtype), n_bytes / self.memory_bytes_per_s)

    @property
    def steady(self) -> bool:
        """Whether the machine was undisturbed: cores were free, and each median is within 25% of its best rate."""
        figures = [figure for figure in (*self.matmul.values(), self.memory) if figure]
        return (self.waited or 0) < 0.1 and all(figure.spread < 0.25 for figure in figures)

    def figures(self) -> dict[str, Figure | None]:
        """All figures by name, in the order of a table."""
        matmul = {f"matmul {dtype}": figure for dtype, figure in self.matmul.items()}
        reads = {f"disk {kind.replace('_', ' ')}": figure for kind, figure in self.disk.items()}
        return {**matmul, "memory copy": self.memory, **reads}


def measure(refresh: bool = False, progress: bool = True, *, seconds: float = 4.0) -> Peaks:
    """Return the peaks of this machine, from the cache if possible. Otherwise measure and cache them.

    Peaks that were measured while other programs held the cores are used for ten minutes, then measured again.

    Args:
        refresh: Measure even if the cache has them.
        progress: Show a progress bar during the measurement.
        seconds: About how long to measure, without the import of torch.

    Returns:
        The peaks.
    """
    cached = None if refresh else load()
    if cached is not None and (cached.steady or _age_s(cached) < _MAX_DISTURBED_AGE_S):
        return cached
    peaks = _measure(seconds, progress)
    content = json.dumps({"layout": _LAYOUT, **dataclasses.asdict(peaks)}, indent=1)
    with contextlib.suppress(CourseError, OSError):  # without a cache, the next call only takes longer
        paths.write_text(cache_file(), content)
    return peaks


def load() -> Peaks | None:
    """Read the peaks from the cache. Return None if this machine was not measured yet, or the file is damaged."""
    try:
        return _from_json(json.loads(cache_file().read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def cache_file() -> Path:
    """The file with the peaks of this machine and of the disk of the data folder."""
    folder = paths.data_dir().absolute()
    existing = [place for place in (folder, *folder.parents) if place.exists()]
    key = (
        machine.cpu_model(),
        machine.cores(),
        machine.rank_cores(),
        machine.label(),
        machine.versions()["torch"],
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        existing[0].stat().st_dev,  # the number of the disk
    )
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    return paths.cache_dir() / "machine" / f"peaks-{name}.json"


def _measure(seconds: float, progress: bool) -> Peaks:
    """Run all experiments in about ``seconds``."""
    import torch
    from tqdm.auto import tqdm

    device = machine.device()
    threads_before = torch.get_num_threads()
    threads = machine.use_cores()
    cpu_before_s = cpu_time.of_threads(os.getpid())
    try:
        experiments = tqdm(
            _experiments(device, seconds).items(), desc="measuring this machine", unit="peak", disable=not progress
        )
        results = {name: experiment() for name, experiment in experiments}
    finally:
        torch.set_num_threads(threads_before)
    cpu_after_s = cpu_time.of_threads(os.getpid())
    return Peaks(
        machine=machine.label(),
        device=device,
        threads=threads,
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        waited=_waited_share(cpu_before_s, cpu_after_s),
        versions=machine.versions(),
        matmul={dtype: results.get(dtype) for dtype in _dtypes(device)},
        memory=results["memory"],
        disk=results["disk"],
    )


def _dtypes(device: str) -> tuple[str, ...]:
    """The data types of the products that a device may have."""
    if device == "cuda":
        return probes.CUDA_DTYPES
    return probes.CPU_DTYPES


def _experiments(device: str, seconds: float) -> dict[str, Callable[[], Any]]:
    """The experiments by name. Each data type and the memory get one share of the time, and the disk three."""
    dtypes = _dtypes(device)
    share_s = seconds / (len(dtypes) + 4)
    has_tf32 = any("tf32" in (gpu.tensor_core_dtypes or ()) for gpu in machine.accelerators()[:1])
    experiments: dict[str, Callable[[], Any]] = {}
    for dtype in dtypes:
        if dtype == "tf32" and not has_tf32:
            continue  # without units for TF32, the product would be one of fp32
        experiments[dtype] = functools.partial(probes.matmul_flops_per_s, dtype, device, share_s)
    experiments["memory"] = functools.partial(probes.copy_bytes_per_s, device, share_s)
    experiments["disk"] = functools.partial(disk.read_bytes_per_s, paths.data_dir(), 3 * share_s)
    return experiments


def _waited_share(before_s: tuple[float, float] | None, after_s: tuple[float, float] | None) -> float | None:
    """The share of queued time between two readings of (computed, queued) seconds; None without readings."""
    if before_s is None or after_s is None:
        return None
    computed_s = max(0.0, after_s[0] - before_s[0])
    queued_s = max(0.0, after_s[1] - before_s[1])
    return round(queued_s / max(computed_s + queued_s, 1e-9), 3)


def _age_s(peaks: Peaks) -> float:
    """Seconds since the measurement."""
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(peaks.time)
    return age.total_seconds()


def _from_json(content: dict[str, Any]) -> Peaks:
    """Make peaks from parsed JSON. Content that ``measure`` does not write raises any error."""
    if content.pop("layout") != _LAYOUT:
        raise ValueError("another layout")
    content["memory"] = _figure_from_json(content["memory"])
    for group in ("matmul", "disk"):
        content[group] = {name: _figure_from_json(figure) for name, figure in content[group].items()}
    peaks = Peaks(**content)
    if _age_s(peaks) < 0:
        raise ValueError("not a time")
    return peaks


def _figure_from_json(content: dict[str, Any] | None) -> Figure | None:
    """Make a figure from parsed JSON."""
    if content is None:
        return None
    figure = Figure(**content)
    if not 0 < figure.median <= figure.best < math.inf:
        raise ValueError("not a rate")
    return figure
