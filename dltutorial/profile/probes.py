"""Short experiments on this machine: matrix products and memory copies.

In: a device, seconds to spend. Out: ``Figure``, the best of several repeats with their median, a unit, and how it was
measured. The best is kept because other work can only make a repeat slower; the median beside it tells by how much.
A warm-up is never counted. torch is loaded inside the functions.
"""

import contextlib
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dltutorial import machine
from dltutorial.profile.timing import call_s, times_s

CPU_DTYPES = ("fp32", "bf16", "fp16", "fp64")
CUDA_DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp64")

_TORCH_NAMES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
_MIB = 1 << 20


@dataclass(frozen=True)
class Figure:
    """One measured figure: the best of ``repeats``, their median, the unit, and how it was measured."""

    best: float
    median: float
    repeats: int
    unit: str
    how: str

    @classmethod
    def of(cls, rates: Sequence[float], unit: str, how: str) -> "Figure":
        """From the rates of several repeats."""
        return cls(max(rates), statistics.median(rates), len(rates), unit, how)

    @property
    def spread(self) -> float:
        """By which part of the best the median falls short of it: 0 on a quiet machine."""
        return 1 - self.median / self.best


def matmul_flops_per_s(dtype: str, device: str, seconds: float) -> Figure | None:
    """FLOP/s of a square matrix product, 2 n³ FLOP; None where this device has no such product.

    On a CPU one thread has a turn too: if other processes hold cores, several threads that wait for each other can be
    hundreds of times slower than one.
    """
    import torch

    all_threads = torch.get_num_threads()
    found: list[Figure] = []
    with contextlib.suppress(RuntimeError), _float32_precision("high" if dtype == "tf32" else "highest"):
        for threads in sorted({1, all_threads}) if device == "cpu" else [all_threads]:
            torch.set_num_threads(threads)
            end = time.perf_counter() + seconds * (0.75 if threads == all_threads else 0.25)
            n, run = _best_size(dtype, device, end)
            rates = [2 * n**3 / product_s for product_s in times_s(run, device, end - time.perf_counter())]
            how = f"{n} × {n} matrices, {device}" + (f", threads: {threads}" if device == "cpu" else "")
            found.append(Figure.of(rates, "FLOP/s", how))
    torch.set_num_threads(all_threads)
    return max(found, key=lambda figure: figure.best, default=None)


def copy_bytes_per_s(device: str, seconds: float) -> Figure | None:
    """Memory bandwidth of a copy between arrays far larger than the last cache, bytes read plus bytes written."""
    import torch

    n_bytes = _copy_bytes(device)
    with contextlib.suppress(RuntimeError, MemoryError):
        source, target = (torch.ones(n_bytes // 4, dtype=torch.float32, device=device) for _ in range(2))
        rates = [2 * n_bytes / copy_s for copy_s in times_s(lambda: target.copy_(source), device, seconds)]
        return Figure.of(rates, "bytes/s", f"copy of {n_bytes // _MIB} MiB, {device}, bytes read + written")
    return None


def last_cache_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Bytes of the largest caches of the cores this process may use, all together; None where it cannot be told."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    sizes: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for cpu in cpus:
            levels = list((root / f"cpu{cpu}" / "cache").glob("index*"))
            last = max(levels, key=lambda level: int((level / "level").read_text()))
            sizes[(last / "shared_cpu_list").read_text()] = int((last / "size").read_text().strip("K\n")) << 10
    return sum(sizes.values()) or None


def _best_size(dtype: str, device: str, end: float) -> tuple[int, Callable[[], object]]:
    """The matrix size with the highest rate, and its product, tried from small to large.

    From small, since without units for a precision a product can take 100 times longer; and on past a size that was
    slow, since a small one is slow too when another process holds a core.
    """
    best: tuple = (0.0, 0, None)
    for n in itertools.takewhile(lambda n: n <= (8192 if device == "cuda" else 4096), (128 << k for k in range(9))):
        run = _matmul(n, dtype, device)
        run()
        product_s = min(call_s(run, 1, device) for _ in range(4))
        best = max(best, (2 * n**3 / product_s, n, run), key=lambda tried: tried[0])
        # Twice the size takes eight times as long: stop if that is too long, or long enough already.
        if product_s > 0.03 or time.perf_counter() + 5 * 8 * product_s > end:
            break
    return best[1:]


def _matmul(n: int, dtype: str, device: str) -> Callable[[], object]:
    import torch

    kind = getattr(torch, _TORCH_NAMES[dtype])
    generator = torch.Generator(device).manual_seed(0)  # the caller's random numbers stay as they were
    a, b = (torch.randn(n, n, device=device, generator=generator).to(kind) for _ in range(2))
    product = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=product)


@contextlib.contextmanager
def _float32_precision(precision: str) -> Iterator[None]:
    """Let float32 products use TF32 ("high") or forbid it ("highest"), for a while."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _copy_bytes(device: str) -> int:
    """Eight times the last cache, at least 256 MiB, at most 1 GiB and an eighth of the free memory."""
    if device == "cuda":
        import torch

        cache, free = 128 * _MIB, torch.cuda.mem_get_info()[0]  # no GPU's L2 was larger when this was written
    else:
        cache, free = last_cache_bytes() or 32 * _MIB, machine.memory_bytes()[1] or 2048 * _MIB
    return min(max(256 * _MIB, 8 * cache), 1024 * _MIB, free // 8) // _MIB * _MIB
