"""What an all-reduce costs on this machine, measured by itself: the one ingredient of every prediction of a step.

In: numbers of ranks, numbers of bytes. Out: a ``MeasuredNetwork``, which the simulator takes in place of a cluster's
data sheet, and the link that an ideal ring would need for the same times. All-reduces go through gloo, so that any
number of ranks fits on any machine.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dltutorial.errors import CourseError
from dltutorial.launch import launch

MIB = 2**20


def all_reduces(sizes: Sequence[int], repeats: int) -> dict[int, list[float]]:
    """On every rank: seconds of single all-reduces, for each number of bytes; the first of each does not count."""
    import torch
    import torch.distributed as dist

    arrays = {n_bytes: torch.zeros(max(1, n_bytes // 4)) for n_bytes in sizes}
    found: dict[int, list[float]] = {n_bytes: [] for n_bytes in sizes}
    for _ in range(repeats + 1):
        for n_bytes, array in arrays.items():
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(array)
            found[n_bytes].append(time.perf_counter() - start)
    return {n_bytes: times[1:] for n_bytes, times in found.items()}


@dataclass(frozen=True)
class MeasuredNetwork:
    """What all-reduces cost here: for each number of ranks, seconds at some sizes; between sizes, a straight line.

    Attributes:
        by_ranks: ranks → bytes → seconds.
    """

    by_ranks: Mapping[int, Mapping[int, float]]

    def all_reduce_s(self, ranks_P: np.ndarray, n_bytes: float) -> np.ndarray:
        """Seconds of one all-reduce; 0 for one rank.

        Raises:
            CourseError: so many ranks were not measured.
        """
        return np.array([self._one_s(int(ranks), n_bytes) for ranks in np.atleast_1d(ranks_P)])

    def _one_s(self, ranks: int, n_bytes: float) -> float:
        if ranks == 1:
            return 0.0
        if ranks not in self.by_ranks:
            raise CourseError(f"no all-reduce among {ranks} ranks was measured; there are: {list(self.by_ranks)}")
        sizes = sorted(self.by_ranks[ranks])
        return float(np.interp(n_bytes, sizes, [self.by_ranks[ranks][size] for size in sizes]))

    def link(self, ranks: int = 2) -> tuple[float, float]:
        """(seconds of a hop, bytes/s) of a ring that would take these times, by least squares of relative errors."""
        points = self.by_ranks[ranks]
        sizes, seconds = np.array(list(points), dtype=float), np.array(list(points.values()))
        hops, share = 2 * (ranks - 1), 2 * (ranks - 1) / ranks
        design = np.stack([np.full_like(sizes, hops), share * sizes], axis=1) / seconds[:, None]
        (hop_s, byte_s), *_ = np.linalg.lstsq(design, np.ones_like(seconds), rcond=None)
        return max(float(hop_s), 1e-9), 1 / max(float(byte_s), 1e-15)


def measure(ranks: Sequence[int], repeats: int, sizes: Sequence[int] = (MIB // 4, MIB, 4 * MIB)) -> MeasuredNetwork:
    """All-reduces on some numbers of ranks of this machine, through gloo: the medians, as a ``MeasuredNetwork``."""
    by_ranks = {}
    for n in ranks:
        found = launch(all_reduces, n, sizes, repeats, backend="gloo")
        by_ranks[n] = {size: float(np.median([times[size] for times in found])) for size in sizes}
    return MeasuredNetwork(by_ranks)
