"""The throughput split: how fast the loader is alone, the step alone, and both together.

Input: any iterable of batches of one size, and any function of one batch.
Output: a frozen :class:`Throughput`, in seconds per batch.

    I/O        batches are loaded and moved to the device, and nothing is done with them
    synthetic  the step runs on one batch that stays on the device
    full       both, as in training

The three phases alternate, round after round, so that a slow moment of the machine affects all of them equally.

Two bounds follow. If loading is hidden behind the step, a batch of full takes at least as long as the slower one of the
other two. If nothing overlaps, it takes as long as both together.

Source: the tutorials of NERSC at SC21 and SC22, which measure the same three phases with benchy.
"""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from dltutorial import machine
from dltutorial.errors import CourseError
from dltutorial.profile import cpu_time

_LEAD_BATCHES = 3  # before each phase, not measured: workers start, and queues fill
_MIN_BATCHES = 3  # measured in each phase
_MAX_OVERLAPPED_WAIT = 0.7  # as a share of the time that loading takes alone
_MIN_MORE_CORES = 0.15  # as a share of the cores of the busier phase; a process that sleeps uses a little, too


class Phase(NamedTuple):
    """One of the three phases: I/O, synthetic or full.

    Attributes:
        batch_s: Seconds of a batch.
        wait_s: Seconds per batch in which the loop waits for the batch. The rest of the time is the step.
        cores: Mean number of cores that this process and its workers want.
        thread_share: Share of the time in which the thread of the loop computes or wants to compute, from 0 to 1.
    """

    batch_s: float
    wait_s: float
    cores: float
    thread_share: float


@dataclass(frozen=True)
class Throughput:
    """The three phases of a run, and the number of cores that this process may use."""

    io: Phase
    synthetic: Phase
    full: Phase
    cores: int

    @property
    def share_of_limit(self) -> float:
        """The throughput of full as a share of min(I/O, synthetic)."""
        return max(self.io.batch_s, self.synthetic.batch_s) / self.full.batch_s

    @property
    def queueing(self) -> float:
        """Core seconds that a batch of the full run wants, divided by those that loading and step want alone.

        It is 1 if loader and step never want the same core at the same time. It is larger if they compete.
        """
        alone_core_s = self.io.cores * self.io.batch_s + self.synthetic.cores * self.synthetic.batch_s
        return self.full.cores * self.full.batch_s / alone_core_s

    @property
    def slowdown(self) -> float:
        """How many times as long as alone the step takes in the full run."""
        return max(0.0, self.full.batch_s - self.full.wait_s) / self.synthetic.batch_s

    @property
    def overlapped(self) -> bool:
        """Whether loading runs beside the step.

        If it does, the full run waits for less than the loading time, or it uses clearly more cores than either phase
        alone.
        """
        max_cores = max(self.io.cores, self.synthetic.cores)
        more_cores = self.full.cores - max_cores
        is_wait_short = self.full.wait_s < _MAX_OVERLAPPED_WAIT * self.io.batch_s
        return is_wait_short or more_cores > _MIN_MORE_CORES * max(1.0, max_cores)


def measure(loader: Iterable, step: Callable[[Any], object], *, rounds: int = 5, phase_s: float = 0.3) -> Throughput:
    """Measure the throughput split of a loader and a step.

    Args:
        loader: The batches. A loader that ends is started again, and the time of its start counts. Worker processes
            are ended after each phase, so that none of them works during another phase.
        step: Trains on one batch that is on the device of the course.
        rounds: How often each phase is measured.
        phase_s: The shortest time of one phase, in seconds.

    Returns:
        The split. Each value is the median of all rounds.

    Raises:
        CourseError: The loader gave no batch.
    """
    device = machine.device()
    with batches_of(loader, device) as batches:
        first_batch = next(batches)
    lead = _LEAD_BATCHES + made_ahead(loader)
    io, synthetic, full = [], [], []
    for _ in range(rounds):
        with batches_of(loader, device) as batches:
            io.append(_run_phase(batches, _no_step, lead, phase_s, device))
        synthetic.append(_run_phase(itertools.repeat(first_batch), step, lead, phase_s, device))
        with batches_of(loader, device) as batches:
            full.append(_run_phase(batches, step, lead, phase_s, device))
    return Throughput(_median(io), _median(synthetic), _median(full), machine.cores())


def _median(phases: list[Phase]) -> Phase:
    """The median of each value over the rounds of one phase."""
    return Phase(*(statistics.median(values) for values in zip(*phases, strict=True)))


def _no_step(batch: Any) -> None:
    """Do nothing with a batch."""


def _run_phase(batches: Iterator, step: Callable, lead: int, phase_s: float, device: str) -> Phase:
    """Run ``lead`` batches without measuring, then batches for at least ``phase_s`` seconds."""
    for batch in itertools.islice(batches, lead):
        step(batch)
    synchronise(device)
    count = 0
    wait_s = 0.0
    cpu_start_s = cpu_time.wanted_s()
    thread_start_s = cpu_time.thread_wanted_s()
    start_s = time.perf_counter()
    while count < _MIN_BATCHES or time.perf_counter() - start_s < phase_s:
        wait_start_s = time.perf_counter()
        batch = next(batches)
        wait_s += time.perf_counter() - wait_start_s
        step(batch)
        count += 1
    synchronise(device)
    elapsed_s = time.perf_counter() - start_s
    thread_s = cpu_time.thread_wanted_s() - thread_start_s
    cpu_s = cpu_time.wanted_s() - cpu_start_s
    return Phase(elapsed_s / count, wait_s / count, cpu_s / elapsed_s, min(1.0, thread_s / elapsed_s))


def synchronise(device: str | torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def batches_of(loader: Iterable, device: str) -> Iterator[Iterator]:
    """Yield an iterator over the batches of a loader, which starts the loader again whenever it ends.

    Args:
        loader: The batches.
        device: The batches are moved to this device.

    Yields:
        The iterator. The worker processes of the loader end with the ``with`` block.

    Raises:
        CourseError: The loader gives no batch.
    """
    with contextlib.closing(_endless(loader)) as batches:
        yield (to_device(batch, device) for batch in batches)


def _endless(loader: Iterable) -> Generator:
    """Yield the batches of a loader, and start it again whenever it ends."""
    has_batches = True
    while has_batches:
        has_batches = False
        for batch in loader:
            has_batches = True
            yield batch
    raise CourseError("the loader gave no batch; give a list or a DataLoader, which can start more than once")


def to_device(batch: Any, device: str) -> Any:
    """Move the tensors of a batch to a device. Lists, tuples and dictionaries keep their form."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device, non_blocking=True), batch)


def made_ahead(loader: Any) -> int:
    """How many batches the workers of a ``DataLoader`` prepare ahead. It is 0 for any other loader."""
    n_workers = getattr(loader, "num_workers", 0)
    prefetch_factor = getattr(loader, "prefetch_factor", None) or 0
    return n_workers * prefetch_factor
