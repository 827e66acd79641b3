"""Ways to train, compared: they take turns in one process, each with its own model, optimizer and data.

In: recipes and the data. Out: for each the samples per second of every round, the loss after the same number of
updates, the peak of its memory. What is timed is the real training loop. A turn begins with a few updates that do not
count; the first round, in which kernels are chosen and compiled, does not count at all.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from dltutorial.config import Recipe
from dltutorial.data import store
from dltutorial.data.loaders import loader_config
from dltutorial.errors import CourseError
from dltutorial.train.forecasting import batches, build_model, squared_error
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
        peak_bytes: the most memory on the device, the other variants' not counted; None on a CPU ("not available").
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


def compare(
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
        seen: called with a variant's name after each of its turns.

    Raises:
        CourseError: the loss of a variant is not finite, or a variant cannot be here.
    """
    if rounds < 1 or turn_s < 0:
        raise CourseError(f"{rounds} rounds of {turn_s:g} s measure nothing; take at least one round")
    every = max((variant.recipe.log_every for variant in variants.values()), default=1)
    runners = {name: _Runner(variant.recipe, data[variant.layout]) for name, variant in variants.items()}
    for _ in range(rounds + 1):
        for name, runner in runners.items():
            runner.turn(turn_s)
            seen(name)
    common = min(runner.history[-1].step for runner in runners.values()) // every * every
    if common == 0:
        raise CourseError(f"the slowest variant made less than {every} updates, too few to compare; add rounds")
    return {name: runner.result(common, every) for name, runner in runners.items()}


def gains(results: Mapping[str, Result]) -> dict[str, float]:
    """How many times as fast as the first variant each is, by their quickest rounds: others can only slow one down."""
    first = next(iter(results.values()))
    return {name: result.best / first.best for name, result in results.items()}


def loss_difference(results: Mapping[str, Result]) -> float:
    """The largest relative difference of a final loss from the first variant's."""
    first, *others = (result.final_loss for result in results.values())
    return max((abs(loss / first - 1) for loss in others), default=0.0)


class _Runner:
    """One variant between its turns."""

    def __init__(self, recipe: Recipe, split: store.Split) -> None:
        before_bytes = _allocated_bytes()
        model = build_model(recipe)
        device = next(model.parameters()).device
        task = Task(model, lambda skip: batches(split, recipe, device, skip), squared_error)
        self._recipe, self._records = recipe, loop(task, recipe)
        self._settles = 1 + (0 if recipe.loader == "plain" else loader_config(recipe.loader).prefetch)
        self.history: list[Progress] = []
        self._rates: list[float] = []
        self._own_bytes, self._peak_bytes, self._first_s = _allocated_bytes() - before_bytes, 0, 0.0

    def turn(self, turn_s: float) -> None:
        """Some updates that do not count, among them those whose batches were read ahead; then some that do."""
        before_bytes, start_s = _allocated_bytes(), time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        settled = self._updates() + (
            WARMUP_STEPS + 2 if self._recipe.cuda_graph and not self._first_s else self._settles
        )
        while self._updates() < settled:
            self.history.append(next(self._records))
        counted_s, counted = 0.0, 0
        while counted == 0 or counted_s < turn_s:
            before = self._updates()
            self.history.append(next(self._records))
            counted += self._updates() - before
            counted_s += (self._updates() - before) * self.history[-1].step_s
        if self._first_s:
            self._rates.append(counted * self._recipe.global_batch_size / counted_s)
        else:
            self._first_s = time.perf_counter() - start_s
        if torch.cuda.is_available():
            others_bytes = before_bytes - self._own_bytes
            self._peak_bytes = max(self._peak_bytes, torch.cuda.max_memory_allocated() - others_bytes)
            self._own_bytes += _allocated_bytes() - before_bytes

    def result(self, updates: int, every: int) -> Result:
        """With the mean loss of the last ``every`` of the first ``updates``."""
        last = [record.loss for record in self.history if updates - every < record.step <= updates]
        return Result(tuple(self._rates), statistics.mean(last), updates, self._first_s, self._peak_bytes or None)

    def _updates(self) -> int:
        return self.history[-1].step if self.history else 0


def _allocated_bytes() -> int:
    """On the GPU, once its work is done; 0 on a CPU."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()
