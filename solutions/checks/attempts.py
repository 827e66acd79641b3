"""The attempts of chapter 15's exercise: train by a recipe until the target is reached.

In: a recipe, a task, a seed. Out: an ``Attempt``: seconds and steps to the target, where the time went, and how the
accuracy rose. As in MLPerf HPC's rules the clock includes staging, namely everything that is read before the first
step. Before the clock starts, processes start and torch loads its kernels in one step on noise. Unlike there, the files
may be in the page cache, because only the machine's administrator can empty it.

An attempt that diverges or runs out of steps has not reached the target. Its seconds are those that were lost. Three
loaders give the same images, up to rounding: one image after another (naive), a batch at once (lean), or all images
read and pooled before the first step (staged).

Legend: N images, B of a batch, H × W pixels, F features (pooled pixels, flattened).

Farrell et al. 2021, arXiv:2110.11466; https://github.com/mlcommons/training_policies, hpc_training_rules.adoc
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from dltutorial import machine, node, paths
from dltutorial.convergence import networks
from dltutorial.convergence.ensemble import Order
from dltutorial.data import lenses
from dltutorial.errors import DataError, RecipeError
from dltutorial.launch import launch
from dltutorial.profile.throughput import synchronise
from dltutorial.ranks import RankInfo

Load = Callable[[Tensor], tuple[Tensor, Tensor]]  # numbers of images (B,) → features (B, F), labels (B,)

LOADERS = ("naive", "lean", "staged")
OPTIMIZERS = ("sgd", "adamw")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZE = 32  # pixels of an image's edge


@dataclass(frozen=True)
class SolutionTask:
    """What every attempt must do: distinguish simulated strong lenses from other galaxies, with this accuracy.

    Data, network and target are the same for all, so that nobody can win by training on the validation images or
    by lowering the target.

    Attributes:
        target: accuracy on the validation images that counts as solved.
        train, valid: images.
        pool: edge of the square of pixels that becomes one feature.
        widths: of the hidden layers.
        seed: of the images. The weights and the order have the seed of an attempt.
    """

    target: float = 0.90
    train: int = 20_000
    valid: int = 2_000
    pool: int = 2
    widths: tuple[int, ...] = (64, 32)
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises: RecipeError: The target is not between guessing and perfection."""
        if not 0.5 < self.target < 1:
            raise RecipeError(f"task: target={self.target!r} is not between 0.5 (guessing) and 1; choose such as 0.9")

    @property
    def n_features(self) -> int:
        """Features of one image."""
        return (SIZE // self.pool) ** 2


def prepare(task: SolutionTask) -> Path:
    """The file of a task's images, labels and training mean. It is simulated and written if it does not exist.

    Raises:
        CourseError: The file cannot be written.
    """
    file = paths.data_dir() / f"solution-{task.seed}-{task.train}-{task.valid}.pt"
    if not file.exists():
        images_NHW, labels_N = lenses.simulate(task.train + task.valid, SIZE, task.seed, progress=False)
        arrays = {"mean": images_NHW[: task.train].mean(0)}
        for split, part in (("train", slice(task.train)), ("valid", slice(task.train, None))):
            arrays |= {split: images_NHW[part].clone(), f"{split}_labels": labels_N[part].clone()}
        with paths.atomic(file) as temporary:
            torch.save(arrays, temporary)
    return file


def read(file: Path) -> Mapping[str, Tensor]:
    """The arrays "train", "train_labels", "valid", "valid_labels" and "mean", mapped into memory.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        return torch.load(file, mmap=True, weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"cannot read the images in {file} ({error}); rename that file, and run again") from error


@dataclass(frozen=True)
class SolutionRecipe:
    """How to train to the target. After the warm-up the learning rate is constant.

    Attributes:
        loader: a name in ``LOADERS``.
        batch_size: images in one step, over all ranks.
        learning_rate: of each step after the warm-up.
        warmup_steps: steps in which the learning rate rises linearly.
        optimizer: sgd (with momentum 0.9) or adamw (without weight decay).
        precision: of the matrix products. The weights have 32 bits.
        ranks: processes that share each batch. Each has a device of its own: a core, or a GPU.
        steps: the steps after which an attempt is given up.
        eval_every: steps between two validations.
    """

    loader: str = "naive"
    batch_size: int = 64
    learning_rate: float = 2**-5
    warmup_steps: int = 0
    optimizer: str = "sgd"
    precision: str = "fp32"
    ranks: int = 1
    steps: int = 1500
    eval_every: int = 10

    def __post_init__(self) -> None:
        """Raises: RecipeError: A value is not possible. The line names the knob, its value and the rule."""
        choices = {"loader": LOADERS, "optimizer": OPTIMIZERS, "precision": tuple(PRECISIONS)}
        for name, allowed in choices.items():
            self._require(getattr(self, name) in allowed, name, f"must be one of {', '.join(allowed)}")
        for name in ("batch_size", "ranks", "steps", "eval_every"):
            value = getattr(self, name)
            self._require(isinstance(value, int) and value >= 1, name, "must be an integer of at least 1")
        self._require(0 < self.learning_rate < math.inf, "learning_rate", "must be finite and greater than 0")
        self._require(0 <= self.warmup_steps < self.steps, "warmup_steps", f"must be smaller than steps={self.steps}")
        self._require(self.batch_size % self.ranks == 0, "batch_size", f"must be divisible by ranks={self.ranks}")

    def _require(self, holds: bool, name: str, rule: str) -> None:
        if not holds:
            raise RecipeError(f"recipe: {name}={getattr(self, name)!r}, but {name} {rule}; change it")

    @property
    def rank_batch(self) -> int:
        """Images of one step on each rank."""
        return self.batch_size // self.ranks

    def describe(self) -> str:
        """The knobs that differ from their defaults, in words."""
        defaults = dataclasses.asdict(SolutionRecipe())
        changed = {name: value for name, value in dataclasses.asdict(self).items() if value != defaults[name]}
        words = [f"{name} {v:g}" if isinstance(v, float) else f"{name} {v}" for name, v in changed.items()]
        return ", ".join(words) or "none"


def check_fits(recipe: SolutionRecipe, task: SolutionTask) -> None:
    """Raises: RecipeError: The recipe's batch is larger than the data."""
    if recipe.batch_size > task.train:
        raise RecipeError(
            f"recipe: batch_size={recipe.batch_size}, but there are {task.train} training images; choose fewer"
        )


def pooled(images_BHW: Tensor, pool: int) -> Tensor:
    """Means over squares of pixels, flattened: (B, F)."""
    return F.avg_pool2d(images_BHW[:, None], pool).flatten(1)


def naive_batch(images_NHW: Tensor, chosen_B: Tensor, mean_HW: Tensor, pool: int) -> Tensor:
    """Features (B, F): one image after another, in double precision."""
    features = []
    for number in chosen_B.tolist():
        image_HW = images_NHW[number].double() - mean_HW.double()
        features.append(image_HW.reshape(SIZE // pool, pool, SIZE // pool, pool).mean((1, 3)).flatten().float())
    return torch.stack(features)


def lean_batch(images_NHW: Tensor, chosen_B: Tensor, mean_HW: Tensor, pool: int) -> Tensor:
    """Features (B, F): all of them at once."""
    return pooled(images_NHW[chosen_B] - mean_HW, pool)


def make_loader(name: str, file: Path, task: SolutionTask, device: str = "cpu") -> Load:
    """A function that loads batches. To make the staged one takes as long as to read everything."""
    if name == "staged":
        x_NF, y_N = all_features(file, "train", task, device)
        return lambda chosen_B: (x_NF[chosen_B.to(device)], y_N[chosen_B.to(device)])
    arrays, batch = read(file), {"naive": naive_batch, "lean": lean_batch}[name]

    def load(chosen_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BF = batch(arrays["train"], chosen_B, arrays["mean"], task.pool)
        return x_BF.to(device), arrays["train_labels"][chosen_B].to(device)

    return load


def all_features(file: Path, split: str, task: SolutionTask, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """All features (N, F) and labels (N,) of a split, read, pooled and copied to the device."""
    arrays = read(file)
    x_NF = pooled(arrays[split] - arrays["mean"], task.pool)
    return x_NF.to(device), arrays[f"{split}_labels"].clone().to(device)


@dataclass(frozen=True)
class Attempt:
    """The result of one recipe with one seed.

    Attributes:
        seed: of the initial weights and of the order of the images.
        reached: whether the accuracy reached the target.
        diverged: whether the loss was no longer finite.
        steps: training steps.
        seconds: from the start of the clock to the validation that reached the target, or to the end.
        staging_s: of these, the time before the first step: reading, the network, the optimizer.
        input_s: of these, the time that the host waited for batches.
        evaluate_s: of these, the time of the validations.
        ranks: that took part.
        looks: (steps, seconds, accuracy) at each validation.
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
    looks: tuple[tuple[int, float, float], ...]

    @property
    def step_s(self) -> float:
        """Seconds of all steps together: forward, backward, communication, optimizer."""
        return max(0.0, self.seconds - self.staging_s - self.input_s - self.evaluate_s)

    @property
    def device_s(self) -> float:
        """Seconds for which devices were occupied: what is paid for."""
        return self.ranks * self.seconds

    @property
    def accuracy(self) -> float:
        """At the last validation; 0 if there was none."""
        return self.looks[-1][2] if self.looks else 0.0


class Training:
    """All that exists before the first step: loader, network, optimizer, validation images.

    Attributes:
        step: steps made.
        input_s, evaluate_s: seconds in loading and in validation.
    """

    def __init__(self, recipe: SolutionRecipe, task: SolutionTask, file: Path, seed: int, device: str) -> None:
        """Read what the recipe reads before the first step. All ranks of one attempt do this together."""
        self.recipe, self.task = recipe, task
        self.rank = dist.get_rank() if recipe.ranks > 1 else 0
        self.load = make_loader(recipe.loader, file, task, device)
        x_NF, y_N = all_features(file, "valid", task, device)
        self.valid = x_NF[self.rank :: recipe.ranks], y_N[self.rank :: recipe.ranks]
        self.order = Order([seed], task.train)
        self.model = build(task, seed, device)
        self.update = make_update(self.model, recipe)
        self.losses: list[Tensor] = []
        self.step, self.input_s, self.evaluate_s = 0, 0.0, 0.0

    def run(self) -> Iterator[tuple[int, float, float]]:
        """Train, and yield (steps, loss, accuracy) at each validation. The caller decides when it is enough."""
        while self.step < self.recipe.steps:
            self.losses.append(self.update(self.step, *self._next_batch()))
            self.step += 1
            if self.step % self.recipe.eval_every == 0 or self.step == self.recipe.steps:
                yield self.step, *self._validate()
                self.losses.clear()

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        """This rank's share of the next batch, in the order of chapter 12's replica of this seed."""
        before_s, n = time.perf_counter(), self.recipe.rank_batch
        batch = self.order.next(self.recipe.batch_size)[0]
        share = self.load(batch[self.rank * n : (self.rank + 1) * n])
        self.input_s += time.perf_counter() - before_s
        return share

    @torch.inference_mode()
    def _validate(self) -> tuple[float, float]:
        """The mean loss since the last validation, and the accuracy on all validation images, on every rank."""
        x_NF, y_N = self.valid
        synchronise(x_NF.device)
        before_s = time.perf_counter()
        n_correct = (self.model(x_NF).argmax(1) == y_N).sum().double()
        sums = torch.stack([torch.stack(self.losses).mean().double(), n_correct])
        if self.recipe.ranks > 1:
            dist.all_reduce(sums)
        loss_sum, n_correct_of_all = sums.tolist()
        self.evaluate_s += time.perf_counter() - before_s
        return loss_sum / self.recipe.ranks, n_correct_of_all / self.task.valid


def make_update(model: nn.Module, recipe: SolutionRecipe) -> Callable[[int, Tensor, Tensor], Tensor]:
    """A function ``update(step, x_BF, y_B)`` that makes one training step and returns its loss on the device."""
    device = next(model.parameters()).device.type
    replica = DistributedDataParallel(model) if recipe.ranks > 1 else model
    if recipe.optimizer == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    else:
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    dtype = PRECISIONS[recipe.precision]
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)

    def update(step: int, x_BF: Tensor, y_B: Tensor) -> Tensor:
        warm_up = min(1.0, (step + 1) / max(1, recipe.warmup_steps))
        optimizer.param_groups[0]["lr"] = recipe.learning_rate * warm_up
        optimizer.zero_grad()
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            loss = F.cross_entropy(replica(x_BF), y_B)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return update


def attempts(
    recipe: SolutionRecipe, task: SolutionTask, seeds: Sequence[int], *, timeout_s: float = 120.0
) -> list[Attempt]:
    """One attempt for each seed, one after the other. With several ranks, all attempts run on the same ranks.

    Raises:
        RecipeError: The recipe does not suit the task.
        CourseError: The images cannot be written or read, or the ranks cannot start, or this is a login node.
    """
    node.refuse_on_login("training")
    check_fits(recipe, task)
    file = prepare(task)
    if recipe.ranks == 1:
        return _attempts_of_rank(recipe, task, file, seeds)
    return launch(_attempts_of_rank, recipe.ranks, recipe, task, file, tuple(seeds), timeout_s=timeout_s)[0]


def _attempts_of_rank(recipe: SolutionRecipe, task: SolutionTask, file: Path, seeds: Sequence[int]) -> list[Attempt]:
    return [attempt(recipe, task, file, seed) for seed in seeds]


def attempt(recipe: SolutionRecipe, task: SolutionTask, file: Path, seed: int) -> Attempt:
    """One attempt of this process, or of all ranks of its process group together, each on a core or a GPU."""
    device, looks, diverged, reached = own_device(), [], False, False
    with one_thread():
        make_update(build(task, 0, device), recipe)(0, *noise(task, recipe.rank_batch, device))
        synchronise(device)
        if recipe.ranks > 1:
            dist.barrier()
        start_s = time.perf_counter()
        training = Training(recipe, task, file, seed, device)
        staging_s = time.perf_counter() - start_s
        for step, loss, accuracy in training.run():
            seconds = time.perf_counter() - start_s
            diverged = not math.isfinite(loss)
            if diverged:
                break
            looks.append((step, seconds, accuracy))
            reached = accuracy >= task.target
            if reached:
                break
    times = (seconds, staging_s, training.input_s, training.evaluate_s)
    return Attempt(seed, reached, diverged, training.step, *times, recipe.ranks, tuple(looks))


def build(task: SolutionTask, seed: int, device: str = "cpu") -> nn.Sequential:
    """Chapter 12's network, with two outputs. The same seed gives the same weights on every device."""
    return networks.network((task.n_features, *task.widths, 2), seed).to(device)


def noise(task: SolutionTask, n: int, device: str) -> tuple[Tensor, Tensor]:
    """A batch of random features (n, F) with labels (n,) of 0."""
    return torch.randn(n, task.n_features, device=device), torch.zeros(n, dtype=torch.int64, device=device)


def own_device() -> str:
    """The device of this process: a GPU, which is shared only if there are fewer GPUs than processes, or the CPU."""
    if machine.device() != "cuda":
        return machine.device()
    return f"cuda:{RankInfo.from_env().local_rank % torch.cuda.device_count()}"


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One core for each rank, so that more ranks are compared with fewer, not with more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
