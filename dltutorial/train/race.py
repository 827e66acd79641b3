"""A race of variants: many ways to train take turns in one process, each with its own model, optimizer and data.

In: recipes and the data. Out: for each the samples per second of every round, the loss after the same number of
updates, the peak of its memory. What is timed is the real training loop. In its turn a variant makes a few updates
that do not count (caches, queues and clocks settle), then those that do; the first round, in which kernels are
chosen and compiled, does not count at all.

Legend: B samples.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dltutorial.data import store
from dltutorial.errors import CourseError
from dltutorial.train import forecasting
from dltutorial.train.graphs import WARMUP_STEPS
from dltutorial.train.ladder import Variant
from dltutorial.train.loop import Progress, loop
from dltutorial.train.task import Task


@dataclass(frozen=True)
class Result:
    """What one variant did.

    Attributes:
        samples_per_s: one for each round that counts.
        final_loss: the mean over the last updates that all variants made.
        updates: how many updates that loss is after; the same for all.
        first_s: seconds of its first turn: warm-up, compilation and capture.
        peak_bytes: the most memory on the device; None on a CPU ("not available").
    """

    samples_per_s: tuple[float, ...]
    final_loss: float
    updates: int
    first_s: float
    peak_bytes: int | None

    @property
    def median(self) -> float:
        """Samples per second, the middle round: what to expect."""
        return statistics.median(self.samples_per_s)

    @property
    def best(self) -> float:
        """Samples per second, the quickest round: what it can do when nothing disturbs it."""
        return max(self.samples_per_s)


def measure(
    variants: Mapping[str, Variant],
    data: Mapping[str, store.Split],
    *,
    rounds: int = 5,
    turn_s: float = 0.5,
    seen: Callable[[str], object] = lambda name: None,
) -> dict[str, Result]:
    """Let the variants take turns; name → result.

    Args:
        variants: name → knobs and layout. Their ``log_every`` may differ, but each must divide the largest.
        data: layout → training data.
        rounds: that count; one more warms up.
        turn_s: least seconds of the updates that count in a turn.
        seen: called with a variant's name after each of its turns: to show progress.

    Raises:
        CourseError: the loss of a variant is not finite, or a variant cannot be here.
    """
    if rounds < 1 or turn_s < 0:
        raise CourseError(f"a race of {rounds} rounds of {turn_s:g} s measures nothing; take at least one round")
    every = max((variant.recipe.log_every for variant in variants.values()), default=1)
    runners = {name: _Runner(variant, data[variant.layout]) for name, variant in variants.items()}
    try:
        for _ in range(rounds + 1):
            for name, runner in runners.items():
                runner.turn(turn_s)
                seen(name)
        common = min(runner.updates for runner in runners.values()) // every * every
        if common == 0:
            raise CourseError(
                f"the slowest variant made less than {every} updates, too few to compare; race more rounds"
            )
        return {name: runner.result(common, every) for name, runner in runners.items()}
    finally:
        for runner in runners.values():
            runner.close()


def gains(results: Mapping[str, Result]) -> dict[str, float]:
    """How many times as fast as the first variant each is, by their quickest rounds.

    Other programs can only slow a round down, so of several rounds the quickest tells most about the variant.
    """
    first = next(iter(results.values()))
    return {name: result.best / first.best for name, result in results.items()}


def loss_difference(results: Mapping[str, Result]) -> float:
    """The largest relative difference of a final loss from the first variant's."""
    first, *others = (result.final_loss for result in results.values())
    return max((abs(loss / first - 1) for loss in others), default=0.0)


class _Runner:
    """One variant between its turns."""

    def __init__(self, variant: Variant, split: store.Split) -> None:
        model = forecasting.build_model(variant.recipe)
        device = next(model.parameters()).device
        self._batches = _Batches(split, variant, device)
        task = Task(model, lambda skip: self._batches, forecasting.squared_error)
        self._records = loop(task, variant.recipe)
        self._settled = WARMUP_STEPS + 2 if variant.recipe.cuda_graph else 0  # captured in the first turn, too
        self._size = variant.recipe.global_batch_size
        self._history: list[Progress] = []
        self._rates: list[float] = []
        self._memory = _Memory(model)
        self.first_s = 0.0

    @property
    def updates(self) -> int:
        """Made so far."""
        return self._history[-1].step

    def turn(self, turn_s: float) -> None:
        """One record that does not count, then at least one that does."""
        start_s = time.perf_counter()
        with self._memory:
            self._next()
            counted_s, counted = 0.0, 0
            while counted == 0 or counted_s < turn_s or self.updates < self._settled:
                before, record = self.updates, self._next()
                counted += record.step - before
                counted_s += (record.step - before) * record.step_s
            self._batches.pause()
        if self.first_s:
            self._rates.append(counted * self._size / counted_s)
        else:
            self.first_s = time.perf_counter() - start_s

    def result(self, updates: int, every: int) -> Result:
        """With the mean loss of the last ``every`` of the first ``updates``."""
        last = [record.loss for record in self._history if updates - every < record.step <= updates]
        return Result(tuple(self._rates), statistics.mean(last), updates, self.first_s, self._memory.peak_bytes)

    def close(self) -> None:
        """Let go of files, threads and memory."""
        self._batches.pause()
        self._records.close()

    def _next(self) -> Progress:
        self._history.append(next(self._records))
        return self._history[-1]


class _Batches:
    """A variant's batches, without end. Paused, it holds no file, no thread and no memory, and knows where it was."""

    def __init__(self, split: store.Split, variant: Variant, device: torch.device) -> None:
        self._split, self._recipe, self._device = split, variant.recipe, device
        self._taken = 0
        self._open: Iterator[tuple[Tensor, Tensor]] | None = None

    def __iter__(self) -> "_Batches":
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self._open is None:
            self._open = forecasting.batches(self._split, self._recipe, self._device, self._taken)
        self._taken += 1
        return next(self._open)

    def pause(self) -> None:
        """Close the loader; the next batch opens it again where it was."""
        if self._open is not None:
            self._open.close()
            self._open = None


class _Memory:
    """The most that one variant has on the GPU, the others' weights not counted."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._cuda = next(model.parameters()).is_cuda
        self._own_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.peak_bytes: int | None = 0 if self._cuda else None

    def __enter__(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
            self._before_bytes = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()

    def __exit__(self, *error: object) -> None:
        if self._cuda:
            torch.cuda.synchronize()
            others_bytes = self._before_bytes - self._own_bytes
            self.peak_bytes = max(self.peak_bytes or 0, torch.cuda.max_memory_allocated() - others_bytes)
            self._own_bytes += torch.cuda.memory_allocated() - self._before_bytes
