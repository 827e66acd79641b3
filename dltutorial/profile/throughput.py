"""The throughput split: how fast the loader is alone, the step alone, and both together.

In: any iterable of batches and any function of one batch. Out: a frozen :class:`Split` in samples per second, with
what the first two predict for the third. The three take turns in one run, round after round, so that a slow moment of
the machine hits them alike.

    I/O        batches are loaded and moved to the device, and nothing is done with them
    synthetic  the step runs on one batch that stays on the device
    full       both, as in training

Two bounds follow. If loading hides behind the step, full is at most min(I/O, synthetic). If nothing hides, the times
add up: 1/full = 1/(I/O) + 1/synthetic.

Source: the tutorials of NERSC at SC20 to SC25, which measure the same three with benchy.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dltutorial import machine
from dltutorial.errors import CourseError
from dltutorial.profile import cpu
from dltutorial.profile.batches import batches_of, made_ahead, samples_in
from dltutorial.record.table import Table

_LEAST_BATCHES = 3  # of one turn
_MORE_CORES = 0.15  # than the busier one wants, as a share of that or of one core: even what sleeps wants a little


@dataclass(frozen=True)
class Rate:
    """Samples per second, once for each round."""

    samples_per_s: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one: what to expect."""
        return statistics.median(self.samples_per_s)

    @property
    def spread(self) -> float:
        """From the slowest round to the quickest, as a share of the median."""
        return (max(self.samples_per_s) - min(self.samples_per_s)) / self.median

    def __str__(self) -> str:
        return f"{_number(self.median)} samples/s ± {self.spread / 2:.0%}"


@dataclass(frozen=True)
class Split:
    """Loader, step, and both: measured, with the two predictions.

    Attributes:
        io, synthetic, full: the three rates.
        batch_size: samples in a batch.
        wait_s: of the full run, seconds per batch until it was there; the rest is the step.
        io_cores, step_cores, full_cores: cores that loading alone, the step alone, and both together wanted at a time.
        step_thread: of the step's own time, the share in which its thread computed or wanted to; the rest it waited.
        cores: that this process may use.
    """

    io: Rate
    synthetic: Rate
    full: Rate
    batch_size: int
    wait_s: float
    io_cores: float
    step_cores: float
    full_cores: float
    step_thread: float
    cores: int

    @property
    def io_s(self) -> float:
        """Seconds to load a batch."""
        return self.batch_size / self.io.median

    @property
    def synthetic_s(self) -> float:
        """Seconds of a step by itself."""
        return self.batch_size / self.synthetic.median

    @property
    def full_s(self) -> float:
        """Seconds a batch of the full run took."""
        return self.batch_size / self.full.median

    @property
    def limit(self) -> float:
        """Samples/s if all of the quicker one hides behind the slower one: min(I/O, synthetic)."""
        return min(self.io.median, self.synthetic.median)

    @property
    def serial(self) -> float:
        """Samples/s if nothing hides: 1 / (1/I/O + 1/synthetic)."""
        return 1 / (1 / self.io.median + 1 / self.synthetic.median)

    @property
    def queueing(self) -> float:
        """Core seconds wanted for a batch of the full run, over those wanted for its loading and its step alone.

        1 if the two never wanted the same core; above, they stood in each other's way.
        """
        alone_s = self.io_cores * self.io_s + self.step_cores * self.synthetic_s
        return self.full_cores * self.full_s / alone_s if alone_s else 1.0

    @property
    def core_limit(self) -> float:
        """Samples/s that the cores allow when loader and step share them: all cores busy all the time."""
        wanted_s = self.io_cores * self.io_s + self.step_cores * self.synthetic_s
        return self.cores * self.batch_size / wanted_s if wanted_s else float("inf")

    @property
    def of_limit(self) -> float:
        """Full as a share of min(I/O, synthetic), the median over rounds of the share in each."""
        return self._median_ratio(min)

    @property
    def of_serial(self) -> float:
        """Full as a share of what the formula without overlap says, the median over rounds."""
        return self._median_ratio(lambda io, synthetic: 1 / (1 / io + 1 / synthetic))

    @property
    def overlapped(self) -> bool:
        """Whether loading goes on beside the step.

        Then the full run waits for less than the loading time, or both together want more cores than either alone, by
        a sizeable part of a core.
        """
        most_cores = max(self.io_cores, self.step_cores)
        return self.wait_s < 0.7 * self.io_s or self.full_cores - most_cores > _MORE_CORES * max(1.0, most_cores)

    @property
    def slowed(self) -> float:
        """How many times longer the step takes in the full run than alone."""
        return max(0.0, self.full_s - self.wait_s) / self.synthetic_s

    def _median_ratio(self, predict: Callable[[float, float], float]) -> float:
        rounds = zip(*(rate.samples_per_s for rate in (self.io, self.synthetic, self.full)), strict=True)
        return statistics.median(full / predict(io, synthetic) for io, synthetic, full in rounds)

    def table(self) -> Table:
        """Measured and predicted rates."""
        lines = [
            (name, _number(rate.median), f"{_number(min(rate.samples_per_s))} to {_number(max(rate.samples_per_s))}")
            for name, rate in (("I/O", self.io), ("synthetic", self.synthetic), ("full", self.full))
        ]
        lines.append(("predicted, all overlapped: min(I/O, synthetic)", _number(self.limit), ""))
        lines.append(("predicted, nothing overlapped", _number(self.serial), ""))
        return Table.of(("what", "samples/s", "rounds"), lines)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def __str__(self) -> str:
        return str(self.table())


def measure(
    loader: Iterable | Callable[[], Iterable],
    step: Callable[[Any], object],
    *,
    rounds: int = 5,
    phase_s: float = 0.3,
    lead: int = 3,
    batch_size: int | None = None,
    device: str | None = None,
) -> Split:
    """Measure the split of a loader and a step.

    Args:
        loader: batches, or a function that makes an iterable of them. What has ended is started again, and its
            start counts; worker processes are ended after each phase, so that none works in another's time. An
            iterator, which can start only once, must have batches enough.
        step: trains on one batch that is on the device.
        rounds: how often each of the three has its turn.
        phase_s: least seconds of one turn.
        lead: batches before each turn that do not count: workers start, queues fill. Those that a DataLoader makes
            ahead come on top.
        batch_size: samples in a batch; default: the length of its first tensor.
        device: where the step runs; default: the course's.

    Raises:
        CourseError: no batch, an iterator that ended, or a batch whose samples cannot be counted.
    """
    if rounds < 1 or lead < 1 or phase_s <= 0:
        raise CourseError(f"cannot measure {rounds} rounds of {phase_s:g} s after {lead} batches; give at least 1 each")
    device = device or machine.device()
    with batches_of(loader, device) as batches:
        kept = next(batches)
    batch_size = batch_size or samples_in(kept)
    lead += made_ahead(loader)
    turns = [_round(loader, step, kept, (lead, phase_s, device)) for _ in range(rounds)]
    io, synthetic, full = zip(*turns, strict=True)
    return Split(
        *(Rate(tuple(batch_size / turn.batch_s for turn in kind)) for kind in (io, synthetic, full)),
        batch_size=batch_size,
        wait_s=statistics.median(turn.wait_s for turn in full),
        io_cores=statistics.median(turn.cores for turn in io),
        step_cores=statistics.median(turn.cores for turn in synthetic),
        full_cores=statistics.median(turn.cores for turn in full),
        step_thread=statistics.median(turn.thread for turn in synthetic),
        cores=machine.cores(),
    )


class _Turn(NamedTuple):
    """One measurement: seconds of a batch and of waiting for it, cores wanted, share in which this thread worked."""

    batch_s: float
    wait_s: float
    cores: float
    thread: float


def _round(loader: Any, step: Callable, kept: Any, how: tuple[int, float, str]) -> tuple[_Turn, _Turn, _Turn]:
    """One turn of each: I/O, synthetic, full."""
    with batches_of(loader, how[2]) as batches:
        io = _turn(batches, None, *how)
    synthetic = _turn(itertools.repeat(kept), step, *how)
    with batches_of(loader, how[2]) as batches:
        full = _turn(batches, step, *how)
    return io, synthetic, full


def _turn(batches: Iterator, step: Callable | None, lead: int, phase_s: float, device: str) -> _Turn:
    """Run batches for at least ``phase_s`` seconds and some number of them."""
    for batch in itertools.islice(batches, lead):
        if step is not None:
            step(batch)
    _synchronise(device)
    count, wait_s = 0, 0.0
    cpu_s, thread_s, start_s = cpu.wanted_s(), cpu.thread_wanted_s(), time.perf_counter()
    while count < _LEAST_BATCHES or time.perf_counter() - start_s < phase_s:
        before_s = time.perf_counter()
        batch = next(batches)
        wait_s += time.perf_counter() - before_s
        if step is not None:
            step(batch)
        count += 1
    _synchronise(device)
    whole_s = time.perf_counter() - start_s
    thread_s, cpu_s = cpu.thread_wanted_s() - thread_s, cpu.wanted_s() - cpu_s
    return _Turn(whole_s / count, wait_s / count, cpu_s / whole_s, min(1.0, thread_s / whole_s))


def _synchronise(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
