"""The throughput split: how fast the loader is alone, the step alone, and both together.

In: any iterable of batches and any function of one batch. Out: a frozen :class:`Throughput` in samples per second. The
three take turns in one run, round after round, so that a slow moment of the machine hits them alike.

    I/O        batches are loaded and moved to the device, and nothing is done with them
    synthetic  the step runs on one batch that stays on the device
    full       both, as in training

Two bounds follow. If loading hides behind the step, full is at most min(I/O, synthetic). If nothing hides, the times
add up: 1/full = 1/(I/O) + 1/synthetic.

Source: the tutorials of NERSC at SC21 and SC22, which measure the same three with benchy.
"""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from dltutorial import machine
from dltutorial.errors import CourseError
from dltutorial.profile import cpu_time

_LEAD = 3  # batches before each turn that do not count: workers start, queues fill
_LEAST_BATCHES = 3  # of one turn
_MORE_CORES = 0.15  # than the busier one wants, as a share of that or of one core: even what sleeps wants a little


@dataclass(frozen=True)
class Phase:
    """One of the three: I/O, synthetic or full. All but the rates are of the middle round.

    Attributes:
        batch_size: samples in a batch.
        samples_per_s: once for each round.
        wait_s: seconds per batch until it was there; the rest is the step.
        cores: that this process and its workers wanted at a time.
        thread: the share of the time in which this thread computed or wanted to; the rest it waited.
    """

    batch_size: int
    samples_per_s: tuple[float, ...]
    wait_s: float
    cores: float
    thread: float

    @property
    def median(self) -> float:
        """Samples/s of the middle round: what to expect."""
        return statistics.median(self.samples_per_s)

    @property
    def batch_s(self) -> float:
        """Seconds of a batch."""
        return self.batch_size / self.median


@dataclass(frozen=True)
class Throughput:
    """Loader, step, and both, measured; ``cores`` is how many this process may use."""

    io: Phase
    synthetic: Phase
    full: Phase
    cores: int

    @property
    def of_limit(self) -> float:
        """Full as a share of min(I/O, synthetic), the median over rounds of the share in each."""
        rounds = zip(*(phase.samples_per_s for phase in (self.io, self.synthetic, self.full)), strict=True)
        return statistics.median(full / min(io, synthetic) for io, synthetic, full in rounds)

    @property
    def core_s(self) -> float:
        """Core seconds wanted for a batch: for its loading and its step, each alone."""
        return self.io.cores * self.io.batch_s + self.synthetic.cores * self.synthetic.batch_s

    @property
    def queueing(self) -> float:
        """Core seconds wanted for a batch of the full run, over those wanted alone.

        1 if the two never wanted the same core; above, they stood in each other's way.
        """
        return self.full.cores * self.full.batch_s / self.core_s if self.core_s else 1.0

    @property
    def slowed(self) -> float:
        """How many times longer the step takes in the full run than alone."""
        return max(0.0, self.full.batch_s - self.full.wait_s) / self.synthetic.batch_s

    @property
    def overlapped(self) -> bool:
        """Whether loading goes on beside the step.

        Then the full run waits for less than the loading time, or both together want more cores than either alone, by
        a sizeable part of a core.
        """
        most_cores = max(self.io.cores, self.synthetic.cores)
        more_cores = self.full.cores - most_cores > _MORE_CORES * max(1.0, most_cores)
        return self.full.wait_s < 0.7 * self.io.batch_s or more_cores


def measure(
    loader: Iterable | Callable[[], Iterable],
    step: Callable[[Any], object],
    *,
    rounds: int = 5,
    phase_s: float = 0.3,
    device: str | None = None,
) -> Throughput:
    """Measure the split of a loader and a step.

    Args:
        loader: batches, or a function that makes an iterable of them. What has ended is started again, and its
            start counts; worker processes are ended after each phase, so that none works in another's time. An
            iterator, which can start only once, must have batches enough.
        step: trains on one batch that is on the device.
        rounds: how often each of the three has its turn.
        phase_s: least seconds of one turn.
        device: where the step runs; default: the course's.

    Raises:
        CourseError: no batch, an iterator that ended, or a batch whose samples cannot be counted.
    """
    if rounds < 1:
        raise CourseError(f"cannot measure {rounds} rounds; give at least 1")
    device = device or machine.device()
    with batches_of(loader, device) as batches:
        kept = next(batches)
    n_samples, lead = samples_in(kept), _LEAD + made_ahead(loader)
    turns = []
    for _ in range(rounds):
        with batches_of(loader, device) as batches:
            io = _turn(batches, None, lead, phase_s, device)
        synthetic = _turn(itertools.repeat(kept), step, lead, phase_s, device)
        with batches_of(loader, device) as batches:
            turns.append((io, synthetic, _turn(batches, step, lead, phase_s, device)))
    io_phase, step_phase, full_phase = (_phase(n_samples, phase) for phase in zip(*turns, strict=True))
    return Throughput(io_phase, step_phase, full_phase, machine.cores())


def _phase(batch_size: int, turns: Iterable[tuple[float, ...]]) -> Phase:
    batch_s, *others = zip(*turns, strict=True)
    return Phase(batch_size, tuple(batch_size / seconds for seconds in batch_s), *map(statistics.median, others))


def _turn(
    batches: Iterator, step: Callable | None, lead: int, phase_s: float, device: str
) -> tuple[float, float, float, float]:
    """Run batches for at least ``phase_s`` seconds: seconds of a batch and of waiting for it, cores, thread's share."""
    for batch in itertools.islice(batches, lead):
        if step is not None:
            step(batch)
    synchronise(device)
    count, wait_s = 0, 0.0
    cpu_s, thread_s, start_s = cpu_time.wanted_s(), cpu_time.thread_wanted_s(), time.perf_counter()
    while count < _LEAST_BATCHES or time.perf_counter() - start_s < phase_s:
        before_s = time.perf_counter()
        batch = next(batches)
        wait_s += time.perf_counter() - before_s
        if step is not None:
            step(batch)
        count += 1
    synchronise(device)
    whole_s = time.perf_counter() - start_s
    thread_s, cpu_s = cpu_time.thread_wanted_s() - thread_s, cpu_time.wanted_s() - cpu_s
    return whole_s / count, wait_s / count, cpu_s / whole_s, min(1.0, thread_s / whole_s)


def synchronise(device: str | torch.device) -> None:
    """Wait until a GPU has done its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def batches_of(loader: Iterable | Callable[[], Iterable], device: str) -> Iterator[Iterator]:
    """Batches of any loader for ever, on the device; worker processes end with the block.
    CourseError: no batch, or an iterator that has ended.
    """
    with contextlib.closing(_endless(loader)) as endless:
        yield (to_device(batch, device) for batch in endless)


def _endless(loader: Any) -> Generator:
    """The loader's batches, over and over."""
    starts_once, count = False, 1
    while count and not starts_once:
        iterator, count = iter(loader if hasattr(loader, "__iter__") else loader()), 0
        starts_once = iterator is loader
        try:
            for batch in iterator:
                count += 1
                yield batch
        finally:
            if not starts_once and hasattr(iterator, "close"):
                iterator.close()
    what = "is an iterator, and it has ended" if count else "gave no batch"
    raise CourseError(f"the loader {what}; give a list, a DataLoader, or a function that makes an iterator of batches")


def to_device(batch: Any, device: Any) -> Any:
    """The batch with its tensors on the device; lists, tuples and dictionaries keep their form."""
    return tree_map(lambda x: x.to(device, non_blocking=True) if isinstance(x, torch.Tensor) else x, batch)


def samples_in(batch: Any) -> int:
    """Samples in a batch: the length of the first tensor or array in it. CourseError: there is none."""
    for leaf in tree_leaves(batch):
        if getattr(leaf, "ndim", 0):
            return int(leaf.shape[0])
    raise CourseError(f"cannot count the samples of a batch of type {type(batch).__name__}: it holds no tensor")


def made_ahead(loader: Any) -> int:
    """How many batches the workers of a ``DataLoader`` make ahead; 0 for anything else, which does not tell."""
    return getattr(loader, "num_workers", 0) * (getattr(loader, "prefetch_factor", None) or 0)
