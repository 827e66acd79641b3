"""What this machine achieves, measured once and kept: the roofline of every later prediction.

In: nothing but the machine (``probes`` and ``disk`` do the experiments). Out: a frozen ``Peaks``, kept as JSON in
the cache folder under a key made of CPU model, cores, accelerator, threads, torch version and disk, and loaded
again in milliseconds without torch. What could not be measured is None, shown as "not available".

The roofline: an operation of F FLOP that moves M bytes needs at least max(F / peak, M / bandwidth) seconds.
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

_LAYOUT = 1  # of the JSON file; raise it when Peaks or a probe changes, and machines are measured again
_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


@dataclass(frozen=True)
class Peaks:
    """Measured peaks of one machine. A figure that is None is not available here.

    Attributes:
        machine: label of the machine, without the host's name.
        device: cuda or cpu; where products and copies ran.
        threads: threads torch computed with on the CPU.
        time: when it was measured, ISO 8601, UTC.
        waited: which part of the time threads waited for a core that other processes held; None if unknown.
        versions: of python, torch, numpy, dltutorial.
        matmul: FLOP/s of a matrix product, by dtype: fp32, tf32, bf16, fp16, fp64.
        memory: bytes/s of a copy, bytes read + bytes written.
        disk: bytes/s of reads, by kind: cold_sequential, cold_random_sample, cold_random_4k, warm_sequential.
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
        """The matrix-product peak of a dtype, named "bf16" or "bfloat16", or given as ``torch.bfloat16``.

        Raises:
            CourseError: it was not measured here.
        """
        name = str(dtype).removeprefix("torch.")
        figure = self.matmul.get(_SHORT.get(name, name))
        if figure is None:
            there = ", ".join(name for name, figure in self.matmul.items() if figure) or "none"
            raise CourseError(f"no {name} peak on {self.machine}: not available; choose one of: {there}")
        return figure.best

    @property
    def memory_bytes_per_s(self) -> float:
        """Memory bandwidth. CourseError: it was not measured here."""
        if self.memory is None:
            raise CourseError(f"no memory bandwidth on {self.machine}: free some memory, then measure(refresh=True)")
        return self.memory.best

    def ridge(self, dtype: Any = "fp32") -> float:
        """The arithmetic intensity, in FLOP/byte, from which on compute limits rather than memory."""
        return self.peak_flops_per_s(dtype) / self.memory_bytes_per_s

    def predict_s(self, flop: float, n_bytes: float, dtype: Any = "fp32") -> float:
        """The least time of an operation: whichever takes longer, its FLOP at the peak or its bytes."""
        return max(flop / self.peak_flops_per_s(dtype), n_bytes / self.memory_bytes_per_s)

    @property
    def steady(self) -> bool:
        """Whether nothing much disturbed the measurement: cores were free, no median is 25% below its best."""
        spreads = (figure.spread for figure in (*self.matmul.values(), self.memory) if figure)
        return (self.waited or 0) < 0.1 and all(spread < 0.25 for spread in spreads)

    def figures(self) -> dict[str, Figure | None]:
        """Every figure by name, in the order in which a table shows them."""
        matmul = {f"matmul {dtype}": figure for dtype, figure in self.matmul.items()}
        reads = {f"disk {kind.replace('_', ' ')}": figure for kind, figure in self.disk.items()}
        return {**matmul, "memory copy": self.memory, **reads}


def measure(refresh: bool = False, progress: bool = True, *, seconds: float = 4.0) -> Peaks:
    """Peaks of this machine: from the cache if there, else measured now and kept.

    Peaks that were taken while other programs held the cores are used for ten minutes, then measured again.

    Args:
        refresh: measure even if the cache has them.
        progress: show a progress bar while measuring.
        seconds: about how long to measure, torch's loading apart.
    """
    known = None if refresh else load()
    if known is not None and (known.steady or _age_s(known) < 600):
        return known
    peaks = _measure(seconds, progress)
    with contextlib.suppress(CourseError, OSError):  # a cache that cannot be written only costs time
        paths.write_text(cache_file(), json.dumps({"layout": _LAYOUT, **dataclasses.asdict(peaks)}, indent=1))
    return peaks


def load() -> Peaks | None:
    """Peaks from the cache; None if this machine was not measured yet, or the file is damaged."""
    try:
        return _from_json(json.loads(cache_file().read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def cache_file() -> Path:
    """Where the peaks of this machine, with the disk of the data folder, are kept."""
    folder = paths.data_dir().absolute()
    there = next((place for place in (folder, *folder.parents) if place.exists()), None)
    key = (
        *(machine.cpu_model(), machine.cores(), machine.rank_cores(), machine.label()),
        *(machine.versions()["torch"], os.environ.get("CUDA_VISIBLE_DEVICES")),
        there.stat().st_dev if there else None,  # the disk's number
    )
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    return paths.cache_dir() / "machine" / f"peaks-{name}.json"


def _measure(seconds: float, progress: bool) -> Peaks:
    import torch
    from tqdm.auto import tqdm

    device = machine.device()
    dtypes = probes.CUDA_DTYPES if device == "cuda" else probes.CPU_DTYPES
    # Without TF32 units the product would be an fp32 one.
    has_tf32 = any("tf32" in (gpu.tensor_core_dtypes or ()) for gpu in machine.accelerators()[:1])
    share_s = seconds / (len(dtypes) + 4)  # one share a dtype, one for memory, three for the disk
    experiments: dict[str, Callable[[], Any]] = {
        dtype: functools.partial(probes.matmul_flops_per_s, dtype, device, share_s)
        for dtype in dtypes
        if dtype != "tf32" or has_tf32
    }
    experiments["memory"] = functools.partial(probes.copy_bytes_per_s, device, share_s)
    experiments["disk"] = functools.partial(disk.read_bytes_per_s, paths.data_dir(), 3 * share_s)
    threads_before, threads = torch.get_num_threads(), machine.use_cores()
    before = cpu_time.of_threads(os.getpid())
    try:
        shown = tqdm(experiments.items(), desc="measuring this machine", unit="peak", disable=not progress)
        found = {name: experiment() for name, experiment in shown}
    finally:
        torch.set_num_threads(threads_before)
    after, waited = cpu_time.of_threads(os.getpid()), None
    if before and after:
        computed_s, queued_s = (max(0.0, late - early) for early, late in zip(before, after, strict=True))
        waited = round(queued_s / max(computed_s + queued_s, 1e-9), 3)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    matmul = {dtype: found.get(dtype) for dtype in dtypes}
    about = (machine.label(), device, threads, now, waited, machine.versions())
    return Peaks(*about, matmul, found["memory"], found["disk"])


def _age_s(peaks: Peaks) -> float:
    return (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(peaks.time)).total_seconds()


def _from_json(found: dict[str, Any]) -> Peaks:
    """Peaks from parsed JSON; raises whatever Python raises if it is not what ``measure`` writes."""

    def figure(of: dict[str, Any] | None) -> Figure | None:
        made = Figure(**of) if of else None
        if made and not 0 < made.median <= made.best < math.inf:
            raise ValueError("not a rate")
        return made

    if found.pop("layout") != _LAYOUT:
        raise ValueError("another layout")
    found["memory"] = figure(found["memory"])
    for group in ("matmul", "disk"):
        found[group] = {name: figure(one) for name, one in found[group].items()}
    peaks = Peaks(**found)
    if _age_s(peaks) < 0:
        raise ValueError("not a time")
    return peaks
