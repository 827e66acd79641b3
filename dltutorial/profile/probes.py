"""Measure the peaks of this machine by short experiments: matrix products and copies in memory.

Input: a device, and seconds to spend.
Output: a :class:`Figure`: the best rate of several repeats, their median, a unit, and how it was measured.

The best rate counts because other programs can only make a repeat slower. The median beside it shows by how much. The
warm-up is not measured. torch is imported inside the functions, so that importing this file is fast.

Source: a product of two n × n matrices has 2 n³ FLOP; a copy reads and writes each byte once.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dltutorial import machine
from dltutorial.profile.timing import call_s, times_s

CPU_DTYPES = ("fp32", "bf16", "fp16", "fp64")
CUDA_DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp64")

_TORCH_NAMES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
_MIB = 1 << 20
_MIN_SIZE = 128  # rows of the smallest matrix
_MAX_SIZE = {"cpu": 4096, "cuda": 8192}
_LONG_PRODUCT_S = 0.03  # no larger matrix is tried after a product that takes longer
_SINGLE_THREAD_SHARE = 0.25  # of the time that a CPU is measured
_GPU_CACHE_BYTES = 128 * _MIB  # the L2 cache of GPUs until 2026 is smaller


@dataclass(frozen=True)
class Figure:
    """One measured rate.

    Attributes:
        best: The best rate of all repeats.
        median: The median rate.
        unit: FLOP/s or bytes/s.
        how: How it was measured.
    """

    best: float
    median: float
    unit: str
    how: str

    @classmethod
    def of(cls, rates: Sequence[float], unit: str, how: str) -> "Figure":
        """Combine the rates of several repeats."""
        return cls(max(rates), statistics.median(rates), unit, how)

    @property
    def spread(self) -> float:
        """The difference of best and median as a share of the best. It is near 0 if nothing disturbed the machine."""
        return 1 - self.median / self.best


def matmul_flops_per_s(dtype: str, device: str, seconds: float) -> Figure | None:
    """Measure the peak of square matrix products.

    On a CPU one thread is measured as well as all threads. If other processes hold cores, several threads that wait for
    each other can be hundreds of times slower than one.

    Args:
        dtype: One of ``CUDA_DTYPES``.
        device: Where the product runs.
        seconds: How long to measure.

    Returns:
        FLOP/s, or None where the device has no product of this data type.
    """
    import torch

    all_threads = torch.get_num_threads()
    seconds_by_threads = {all_threads: seconds}
    if device == "cpu" and all_threads > 1:
        single_s = _SINGLE_THREAD_SHARE * seconds
        seconds_by_threads = {1: single_s, all_threads: seconds - single_s}
    figures: list[Figure] = []
    precision_before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    with contextlib.suppress(RuntimeError):  # the device has no product of this data type
        for n_threads, share_s in seconds_by_threads.items():
            torch.set_num_threads(n_threads)
            figures.append(_matmul_figure(dtype, device, share_s, n_threads))
    torch.set_num_threads(all_threads)
    torch.set_float32_matmul_precision(precision_before)
    return max(figures, key=lambda figure: figure.best, default=None)


def _matmul_figure(dtype: str, device: str, seconds: float, n_threads: int) -> Figure:
    """Measure the product of matrices of the size with the highest rate."""
    end = time.perf_counter() + seconds
    best = _best_size(dtype, device, end)
    samples_s = times_s(best.run, device, end - time.perf_counter())
    how = f"{best.n} × {best.n} matrices, {device}"
    if device == "cpu":
        how += f", fastest number of threads: {n_threads}"
    return Figure.of([2 * best.n**3 / product_s for product_s in samples_s], "FLOP/s", how)


class _Product(NamedTuple):
    """A matrix product of n × n matrices, and its rate in a short measurement."""

    flops_per_s: float
    n: int
    run: Callable[[], object]


def _best_size(dtype: str, device: str, end: float) -> _Product:
    """Find the size with the highest rate, from small to large matrices.

    We begin with a small size because a product without units for its precision can take 100 times as long. We do not
    stop at a slow size because a small product is slow, too, while another process holds a core.
    """
    tried: list[_Product] = []
    n = _MIN_SIZE
    while n <= _MAX_SIZE[device]:
        run = _matmul(n, dtype, device)
        run()
        product_s = min(call_s(run, 1, device) for _ in range(4))
        tried.append(_Product(2 * n**3 / product_s, n, run))
        next_product_s = 8 * product_s  # twice the size
        if product_s > _LONG_PRODUCT_S or time.perf_counter() + 5 * next_product_s > end:
            break
        n *= 2
    return max(tried, key=lambda product: product.flops_per_s)


def _matmul(n: int, dtype: str, device: str) -> Callable[[], object]:
    """Make a function that multiplies two random n × n matrices."""
    import torch

    torch_dtype = getattr(torch, _TORCH_NAMES[dtype])
    generator = torch.Generator(device).manual_seed(0)  # does not change the random numbers of the caller
    a = torch.randn(n, n, device=device, generator=generator).to(torch_dtype)
    b = torch.randn(n, n, device=device, generator=generator).to(torch_dtype)
    product = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=product)


def copy_bytes_per_s(device: str, seconds: float) -> Figure:
    """Measure the memory bandwidth by a copy between arrays that are far larger than the last cache.

    Args:
        device: Where the arrays are.
        seconds: How long to measure.

    Returns:
        Bytes read plus bytes written per second.
    """
    import torch

    n_mib = _copy_mib(device)
    source = torch.ones(n_mib, _MIB // 4, dtype=torch.float32, device=device)
    target = torch.ones_like(source)
    samples_s = times_s(lambda: target.copy_(source), device, seconds)
    how = f"copy of {n_mib} MiB, {device}, bytes read + written"
    return Figure.of([2 * n_mib * _MIB / copy_s for copy_s in samples_s], "bytes/s", how)


def _copy_mib(device: str) -> int:
    """Choose the MiB to copy: 8 times the last cache, 256 to 1024 MiB, at most an eighth of the free memory."""
    if device == "cuda":
        import torch

        cache_bytes = _GPU_CACHE_BYTES
        free_bytes, _ = torch.cuda.mem_get_info()
    else:
        cache_bytes = last_cache_bytes() or 32 * _MIB
        free_bytes = machine.memory_bytes()[1] or 2048 * _MIB
    n_mib = min(max(256, 8 * cache_bytes // _MIB), 1024)
    return max(1, min(n_mib, free_bytes // 8 // _MIB))


def last_cache_bytes() -> int | None:
    """Sum of the last caches of the cores that this process may use. None where the system does not report them."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    sizes: dict[str, int] = {}  # by the list of cores that share the cache
    with contextlib.suppress(OSError, ValueError):
        for cpu in os.sched_getaffinity(0):
            caches = Path(f"/sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")
            last = max(caches, key=lambda cache: int((cache / "level").read_text()))
            n_kib = int((last / "size").read_text().strip("K\n"))
            sizes[(last / "shared_cpu_list").read_text()] = n_kib << 10
    return sum(sizes.values()) or None
