"""One attempt: train by a recipe until the target is reached, with a clock that starts before the data are touched.

In: a recipe, a task, a seed. Out: an ``Attempt``: seconds and updates to the target, where the time went, how the
accuracy rose. As in MLPerf HPC's rules the clock includes staging: whatever is read before the first update. Before it
processes start, and torch loads its parts, in one update on zeros. Unlike there, the files may be in the page cache:
emptying that needs the machine's administrator.

An attempt that diverges or runs out of updates has not reached the target: its seconds are those that were lost.

Source: https://github.com/mlcommons/training_policies, hpc_training_rules.adoc
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial import machine, node
from dltutorial.convergence import images, networks
from dltutorial.convergence.ensemble import Order
from dltutorial.convergence.images import Files
from dltutorial.convergence.recipe import SolutionRecipe, Task
from dltutorial.launch import launch
from dltutorial.profile.ranges import annotate
from dltutorial.ranks import RankInfo
from dltutorial.scaling.real_steps import average_gradients
from dltutorial.train.precision import Precision

MOMENTUM = 0.9


@dataclass(frozen=True)
class Attempt:
    """What became of one recipe with one seed.

    Attributes:
        seed: of the initial weights and the order of the images.
        reached: whether the target was.
        diverged: the network's output was no finite number any more.
        steps: updates made.
        seconds: from the start of the clock until the target was seen, or until it was given up.
        staging_s: of these, until the first update could begin: reading, the network, the optimizer.
        input_s: waiting for batches; on a GPU, what the host saw.
        evaluate_s: looking at the validation images.
        ranks: that took part.
        seen: (updates, seconds, accuracy) at each look.
    """

    seed: int
    reached: bool
    diverged: bool
    steps: int
    seconds: float
    staging_s: float
    input_s: float
    evaluate_s: float
    ranks: int
    seen: tuple[tuple[int, float, float], ...]

    @property
    def step_s(self) -> float:
        """Seconds of all updates together: forward, backward, communication, optimizer."""
        return max(0.0, self.seconds - self.staging_s - self.input_s - self.evaluate_s)

    @property
    def device_s(self) -> float:
        """Seconds that devices were held: what is paid for."""
        return self.ranks * self.seconds

    @property
    def accuracy(self) -> float:
        """At the last look; 0 if there was none."""
        return self.seen[-1][2] if self.seen else 0.0


def attempts(recipe: SolutionRecipe, task: Task, seeds: Sequence[int], *, timeout_s: float = 120.0) -> list[Attempt]:
    """One attempt for each seed, one after the other; with several ranks, all on the same ranks.

    Raises:
        RecipeError: the recipe does not suit the task.
        CourseError: the images cannot be had, or the ranks; a login node.
    """
    node.refuse_on_login("training")
    task.check(recipe)
    files = images.prepare(task)
    if recipe.ranks == 1:
        return [attempt(recipe, task, files, seed) for seed in seeds]
    return launch(_on_rank, recipe.ranks, recipe, task, files, tuple(seeds), timeout_s=timeout_s)[0]


def attempt(recipe: SolutionRecipe, task: Task, files: Files, seed: int) -> Attempt:
    """One attempt of this process, or of all ranks of its process group together."""
    with one_thread():
        return _train(recipe, task, files, seed)


def build(task: Task, seed: int, device: str = "cpu") -> nn.Sequential:
    """Chapter 12's network, with two outputs; the same seed gives the same weights, whatever the device."""
    return networks.network((task.n_features, *task.widths, 2), seed).to(device)


def make_optimizer(model: nn.Module, recipe: SolutionRecipe) -> torch.optim.Optimizer:
    """What the recipe names."""
    if recipe.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    return torch.optim.SGD(model.parameters(), lr=recipe.learning_rate, momentum=MOMENTUM)


def batch_numbers(task: Task, recipe: SolutionRecipe, seed: int, rank: int = 0) -> Iterator[Tensor]:
    """Which images each batch of this rank takes, for ever: the order of chapter 12's replica of that seed."""
    order = Order([seed], task.train)
    mine = slice(rank * recipe.rank_batch, (rank + 1) * recipe.rank_batch)
    while True:
        yield order.next(recipe.batch_size)[0, mine]


def own_device(here: RankInfo) -> str:
    """The device of this process: a GPU, shared only if there are fewer than processes, or the CPU."""
    if machine.device() != "cuda":
        return machine.device()
    return f"cuda:{here.local_rank % torch.cuda.device_count()}"


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One core a rank: what more ranks buy is then theirs, not that of more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _on_rank(recipe: SolutionRecipe, task: Task, files: Files, seeds: Sequence[int]) -> list[Attempt]:
    return [attempt(recipe, task, files, seed) for seed in seeds]


def _train(recipe: SolutionRecipe, task: Task, files: Files, seed: int) -> Attempt:
    here = RankInfo.from_env()
    device, rank = own_device(here), here.rank if recipe.ranks > 1 else 0
    _warm_up(recipe, task, device)
    if recipe.ranks > 1:
        dist.barrier()
    start_s, input_s, evaluate_s, seen = time.perf_counter(), 0.0, 0.0, []
    load = images.make_loader(recipe.loader, files, task, device)
    model = build(task, seed, device)
    update = Update(model, recipe, device)
    look = Look(task, files, recipe, device, rank)
    staging_s = time.perf_counter() - start_s
    for step, chosen_B in enumerate(batch_numbers(task, recipe, seed, rank)):
        before_s = time.perf_counter()
        batch = load(chosen_B)
        input_s += time.perf_counter() - before_s
        update(batch, step)
        if (step + 1) % recipe.evaluate_every == 0 or step + 1 == recipe.max_steps:
            _finish(device)
            before_s = time.perf_counter()
            accuracy, diverged = look(model)
            now_s = time.perf_counter()
            evaluate_s += now_s - before_s
            seen.append((step + 1, now_s - start_s, accuracy))
            reached = accuracy >= task.target and not diverged
            if reached or diverged or step + 1 == recipe.max_steps:
                break
    times = (now_s - start_s, staging_s, input_s, evaluate_s)
    return Attempt(seed, reached, diverged, step + 1, *times, recipe.ranks, tuple(seen))


def _warm_up(recipe: SolutionRecipe, task: Task, device: str) -> None:
    """One update of a network that is thrown away: what a process does once in its life is no part of the recipe."""
    x_BF = torch.zeros(recipe.rank_batch, task.n_features, device=device)
    Update(build(task, 0, device), recipe, device)((x_BF, torch.zeros(len(x_BF), dtype=torch.int64, device=device)))
    _finish(device)


class Update:
    """One update of the weights, in the recipe's precision and, with several ranks, by all of them."""

    def __init__(self, model: nn.Module, recipe: SolutionRecipe, device: str) -> None:
        self.model, self.recipe = model, recipe
        self.precision = Precision(recipe.precision, device)
        self.optimizer = make_optimizer(model, recipe)

    def __call__(self, batch: tuple[Tensor, Tensor], step: int = 0) -> None:
        """Train on a batch of this rank."""
        x_BF, y_B = batch
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * self.recipe.rate_factor(step)
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision.products(), annotate("update"):
            with self.precision.autocast():
                loss = F.cross_entropy(self.model(x_BF), y_B)
            self.precision.scaled(loss).backward()
            if self.recipe.ranks > 1:
                average_gradients(self.model)
            self.precision.update(self.optimizer)


class Look:
    """Accuracy on the validation images; each rank looks at its share, and all learn the sum."""

    def __init__(self, task: Task, files: Files, recipe: SolutionRecipe, device: str, rank: int = 0) -> None:
        x_NF, y_N = images.whole(files, "valid", task, device)
        self.x_NF, self.y_N = x_NF[rank :: recipe.ranks], y_N[rank :: recipe.ranks]
        self.several, self.n = recipe.ranks > 1, task.valid

    @torch.inference_mode()
    def __call__(self, model: nn.Module) -> tuple[float, bool]:
        """(accuracy, whether the outputs are not all finite)."""
        scores_N2 = model(self.x_NF)
        right = (scores_N2.argmax(1) == self.y_N).sum()
        found = torch.stack([right.double(), (~torch.isfinite(scores_N2)).any().double()])
        if self.several:
            dist.all_reduce(found)
        right_n, bad = found.tolist()
        return right_n / self.n, bad > 0


def _finish(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
