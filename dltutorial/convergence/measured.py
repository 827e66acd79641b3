"""What short measurements tell of this machine at this task: everything a prediction of the whole run needs.

In: a task. Out: a ``MeasuredMachine``: seconds of a batch by loader, of an update by precision and optimizer, of
staging, of a look at the validation images, of an all-reduce, and how many updates the task takes. None of these trains
by any recipe that is predicted later: batches are loaded without training, updates train on noise.

Legend: M batch sizes measured, B images in a batch.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dltutorial import machine
from dltutorial.comm.stopwatch import MeasuredNetwork
from dltutorial.convergence import images, learning
from dltutorial.convergence.attempt import Look, Update, build, one_thread, own_device
from dltutorial.convergence.images import Files
from dltutorial.convergence.learning import Learning
from dltutorial.convergence.recipe import CHOICES, SolutionRecipe, Task
from dltutorial.launch import launch
from dltutorial.profile.timing import alternate
from dltutorial.ranks import RankInfo

BATCHES = (32, 128, 512, 2048)
_MESSAGES = (2**12, 2**15, 2**18, 2**20)


@dataclass(frozen=True)
class Line:
    """Seconds of something that has a fixed part and a part for each image."""

    fixed_s: float
    image_s: float

    def seconds(self, n_images: float) -> float:
        """For so many images."""
        return self.fixed_s + n_images * self.image_s

    @classmethod
    def through(cls, seconds: Mapping[int, float]) -> "Line":
        """Least squares of relative errors, no part negative."""
        sizes_M, seconds_M = np.array(list(seconds), float), np.array(list(seconds.values()))
        design_M2 = np.stack([np.ones_like(sizes_M), sizes_M], axis=1) / seconds_M[:, None]
        fixed, slope = np.linalg.lstsq(design_M2, np.ones_like(sizes_M), rcond=None)[0]
        if fixed < 0:
            fixed, slope = 0.0, float(np.median(seconds_M / sizes_M))
        return cls(float(fixed), max(0.0, float(slope)))


@dataclass(frozen=True)
class MeasuredMachine:
    """This machine at one task.

    Attributes:
        task: at which it was measured.
        label: what the machine is.
        input_s: loader → seconds of a batch.
        update_s: (precision, optimizer) → seconds of an update on one rank.
        staging_s: loader → seconds before the first update.
        look_s: one look at all validation images, on one rank.
        message_s, bytes_per_s: α and β of an all-reduce between computing; 0 and infinity with one rank.
        learning: optimizer → updates to the target.
    """

    task: Task
    label: str
    input_s: Mapping[str, Line]
    update_s: Mapping[tuple[str, str], Line]
    staging_s: Mapping[str, float]
    look_s: float
    message_s: float
    bytes_per_s: float
    learning: Mapping[str, Learning]

    def all_reduce_s(self, ranks: int, n_bytes: float) -> float:
        """Seconds of one ring all-reduce: 2 (P − 1) α + 2 (P − 1) / P · n / β."""
        return 2 * (ranks - 1) * self.message_s + 2 * (ranks - 1) / ranks * n_bytes / self.bytes_per_s


def measure(
    task: Task,
    *,
    precisions: Sequence[str] = ("fp32",),
    optimizers: Sequence[str] = ("sgd",),
    ranks: int = 1,
    seeds: Sequence[int] = range(1000, 1003),
    repeats: int = 5,
) -> MeasuredMachine:
    """Measure all of it; some seconds to half a minute.

    Args:
        task: what is to be trained.
        precisions, optimizers: to be told of.
        ranks: the most that a recipe will have.
        seeds: for tuning; no attempt that counts should have them.
        repeats: of every short measurement.

    Raises:
        CourseError: the images cannot be had, or the target is out of reach.
    """
    files, device = images.prepare(task), own_device(RankInfo())
    message_s, bytes_per_s = network(ranks, repeats) if ranks > 1 else (0.0, float("inf"))
    sizes = tuple(b for b in BATCHES if b <= task.train)
    with one_thread():
        wanted = [(precision, optimizer) for precision in precisions for optimizer in optimizers]
        return MeasuredMachine(
            task,
            machine.label(),
            {name: _loading(name, files, task, device, sizes, repeats) for name in CHOICES["loader"]},
            {pair: _updating(*pair, task, device, sizes, repeats) for pair in wanted},
            {name: _best_s(lambda name=name: _start(name, files, task, device), repeats) for name in CHOICES["loader"]},
            _looking(task, files, device, repeats),
            message_s,
            bytes_per_s,
            {optimizer: learning.measure(task, files, optimizer, seeds) for optimizer in optimizers},
        )


def yardstick(task: Task) -> Callable[[], float]:
    """A function that does a fixed piece of work, loading and updates, and returns its seconds.

    Called before and during a race, it tells whether the machine as a whole has become slower, and by how much.
    """
    device = own_device(RankInfo())
    load = images.make_loader("naive", images.prepare(task), task, device)
    update = Update(build(task, 0, device), SolutionRecipe(learning_rate=1e-6), device)
    chosen_B = torch.arange(min(64, task.train))

    def pace_s() -> float:
        with one_thread():
            start_s = time.perf_counter()
            for _ in range(10):
                update(load(chosen_B))
            _settle(device)
            return time.perf_counter() - start_s

    pace_s()  # warm
    return pace_s


def network(ranks: int, repeats: int = 5) -> tuple[float, float]:
    """(α, β) of all-reduces among ranks that compute in between, as they do in training."""
    found = launch(_all_reduces, ranks, 10 * repeats)
    by_size = {n: float(np.median([times[n] for times in found])) for n in _MESSAGES}
    return MeasuredNetwork({ranks: by_size}).link(ranks)


def _all_reduces(repeats: int) -> dict[int, list[float]]:
    """On every rank: seconds of all-reduces, each after half a millisecond of work or so. Not after a barrier: ranks
    that come from computing are never quite in step, their threads have gone to sleep, and training pays for both."""
    import torch.distributed as dist

    device = own_device(RankInfo.from_env())
    torch.set_num_threads(1)
    square = torch.randn(256, 256, device=device)
    arrays = {n: torch.zeros(n // 4, device=device) for n in _MESSAGES}
    times: dict[int, list[float]] = {n: [] for n in _MESSAGES}
    for turn in range(repeats + 3):
        for n_bytes, array in arrays.items():
            square @ square
            _settle(device)
            start_s = time.perf_counter()
            dist.all_reduce(array)
            _settle(device)
            if turn >= 3:
                times[n_bytes].append(time.perf_counter() - start_s)
    return times


def _loading(name: str, files: Files, task: Task, device: str, sizes: Sequence[int], repeats: int) -> Line:
    """Batches of random images; small ones in a row, so that a turn lasts a while."""
    load, generator = images.make_loader(name, files, task, device), torch.Generator().manual_seed(0)

    def batch(size: int) -> Callable[[], object]:
        return lambda: load(torch.randint(task.train, (size,), generator=generator))

    sizes = (
        sizes[:-1] if name == "naive" and len(sizes) > 2 else sizes
    )  # the largest would take longest, and tell least
    return _line({size: batch(size) for size in sizes}, repeats, device)


def _updating(precision: str, optimizer: str, task: Task, device: str, sizes: Sequence[int], repeats: int) -> Line:
    """Updates on noise."""
    recipe = SolutionRecipe(precision=precision, optimizer=optimizer, learning_rate=1e-6)
    update = Update(build(task, 0, device), recipe, device)

    def on(size: int) -> Callable[[], object]:
        batch = torch.randn(size, task.n_features, device=device), torch.zeros(size, dtype=torch.int64, device=device)
        return lambda: update(batch)

    return _line({size: on(size) for size in sizes}, repeats, device)


def _looking(task: Task, files: Files, device: str, repeats: int) -> float:
    model, look = build(task, 0, device), Look(task, files, SolutionRecipe(), device)
    return alternate({"look": lambda: look(model)}, repeats, device=torch.device(device).type)["look"].median_s


def _start(name: str, files: Files, task: Task, device: str) -> None:
    """All that an attempt does before its first update."""
    images.make_loader(name, files, task, device)
    Update(build(task, 0, device), SolutionRecipe(), device)
    Look(task, files, SolutionRecipe(), device)
    _settle(device)


def _line(variants: Mapping[int, Callable[[], object]], repeats: int, device: str) -> Line:
    times = alternate(variants, repeats, device=torch.device(device).type)
    return Line.through({size: timing.median_s for size, timing in times.items()})


def _best_s(work: Callable[[], object], repeats: int) -> float:
    """The median of a few calls that each begin anew."""
    found = []
    for _ in range(max(3, repeats // 2)):
        start_s = time.perf_counter()
        work()
        found.append(time.perf_counter() - start_s)
    return float(np.median(found))


def _settle(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
