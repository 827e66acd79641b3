"""The attempts of chapter 15's exercise: train by a recipe until the target is reached.

The input is a recipe, a task and a seed. The output is an ``Attempt``: the seconds and the steps to the target, where
the time went, and how the accuracy rose. As in the rules of MLPerf HPC, the clock includes staging, which is everything
that is read before the first step. Before the clock starts, the processes start, and torch loads its kernels in one
step on noise. The rules of MLPerf HPC require an empty page cache. Here the files may be in it, because only the
administrator of a machine can empty it.

An attempt that diverges or runs out of steps has not reached the target. Three loaders give the same images, up to
rounding. The loader "one by one" loads one image after another, "batched" loads a batch at once, and "staged" reads and
pools all images before the first step.

Legend: N images, B of a batch, H × W pixels, F features (pooled pixels, flattened).

Source: Farrell et al. 2021, arXiv:2110.11466, and the file hpc_training_rules.adoc in
https://github.com/mlcommons/training_policies
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

LOADERS = ("one by one", "batched", "staged")
OPTIMIZERS = ("sgd", "adamw")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZE = 32  # pixels of an image's edge


@dataclass(frozen=True)
class SolutionTask:
    """The task of every attempt: distinguish simulated strong lenses from other galaxies, with this accuracy.

    Data, network and target are the same for all recipes.

    Attributes:
        target: The accuracy on the validation images that an attempt must reach.
        train, valid: The numbers of training and validation images.
        pool: The edge of the square of pixels whose mean is one feature.
        widths: The widths of the hidden layers.
        seed: The seed of the images. The weights and the order have the seed of an attempt.
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
        """The number of features of one image."""
        return (SIZE // self.pool) ** 2


def prepare(task: SolutionTask) -> Path:
    """Return the file of a task's images, labels and training mean. The first call simulates and writes it.

    Raises:
        CourseError: The file cannot be written.
    """
    file = paths.data_dir() / f"solution-{task.seed}-{task.train}-{task.valid}.pt"
    if not file.exists():
        images_NHW, labels_N = lenses.simulate(task.train + task.valid, SIZE, task.seed, progress=False)
        arrays = {"mean": images_NHW[: task.train].mean(0)}
        for split, images in (("train", slice(task.train)), ("valid", slice(task.train, None))):
            arrays[split] = images_NHW[images].clone()
            arrays[f"{split}_labels"] = labels_N[images].clone()
        with paths.atomic(file) as temporary:
            torch.save(arrays, temporary)
    return file


def read(file: Path) -> Mapping[str, Tensor]:
    """Return the arrays "train", "train_labels", "valid", "valid_labels" and "mean", mapped into memory.

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
        loader: A name in ``LOADERS``.
        batch_size: The images in one step, over all ranks.
        learning_rate: The learning rate after the warm-up.
        warmup_steps: The steps in which the learning rate rises linearly.
        optimizer: "sgd" (with momentum 0.9) or "adamw" (without weight decay).
        precision: The precision of the matmuls. The weights have 32 bits.
        ranks: The processes that share each batch. Each has a core or a GPU.
        steps: The steps after which an attempt is given up.
        eval_every: The steps between two validations.
    """

    loader: str = "one by one"
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
        """The images of one step on each rank."""
        return self.batch_size // self.ranks

    def describe(self) -> str:
        """Return the knobs that differ from their defaults, in words."""
        words = []
        for knob in dataclasses.fields(self):
            value = getattr(self, knob.name)
            if value != knob.default:
                words.append(f"{knob.name} {value:g}" if isinstance(value, float) else f"{knob.name} {value}")
        return ", ".join(words) or "none"


def check_fits(recipe: SolutionRecipe, task: SolutionTask) -> None:
    """Raises: RecipeError: The recipe's batch is larger than the data."""
    if recipe.batch_size > task.train:
        raise RecipeError(
            f"recipe: batch_size={recipe.batch_size}, but there are {task.train} training images; choose fewer"
        )


def pooled(images_BHW: Tensor, pool: int) -> Tensor:
    """Return the means over squares of pixels, flattened to (B, F)."""
    return F.avg_pool2d(images_BHW[:, None], pool).flatten(1)


def one_by_one(images_NHW: Tensor, chosen_B: Tensor, mean_HW: Tensor, pool: int) -> Tensor:
    """Return the features (B, F), computed one image after another and in double precision."""
    features = []
    n = SIZE // pool
    for number in chosen_B.tolist():
        image_HW = images_NHW[number].double() - mean_HW.double()
        features.append(image_HW.reshape(n, pool, n, pool).mean((1, 3)).flatten().float())
    return torch.stack(features)


def batched(images_NHW: Tensor, chosen_B: Tensor, mean_HW: Tensor, pool: int) -> Tensor:
    """Return the features (B, F), computed all at once."""
    return pooled(images_NHW[chosen_B] - mean_HW, pool)


def make_loader(name: str, file: Path, task: SolutionTask, device: str = "cpu") -> Load:
    """Return a function that loads batches. For the staged loader, this call reads everything."""
    if name == "staged":
        x_NF, y_N = all_features(file, "train", task, device)
        return lambda chosen_B: (x_NF[chosen_B.to(device)], y_N[chosen_B.to(device)])
    arrays = read(file)
    make_batch = one_by_one if name == "one by one" else batched

    def load(chosen_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BF = make_batch(arrays["train"], chosen_B, arrays["mean"], task.pool)
        return x_BF.to(device), arrays["train_labels"][chosen_B].to(device)

    return load


def all_features(file: Path, split: str, task: SolutionTask, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return all features (N, F) and labels (N,) of a split, read, pooled and copied to the device."""
    arrays = read(file)
    x_NF = pooled(arrays[split] - arrays["mean"], task.pool)
    return x_NF.to(device), arrays[f"{split}_labels"].clone().to(device)


@dataclass(frozen=True)
class Attempt:
    """The result of one recipe with one seed.

    Attributes:
        seed: The seed of the initial weights and of the order of the images.
        reached: Whether the accuracy reached the target.
        diverged: Whether the loss was no longer finite.
        steps: The number of training steps.
        seconds: The time from the start of the clock to the validation that reached the target, or to the end.
        staging_s: The part of this time before the first step, for reading, the network and the optimizer.
        input_s: The part of this time in which the host waited for batches.
        evaluate_s: The part of this time for validations.
        ranks: The number of ranks.
        validations: The steps, the seconds and the accuracy at each validation.
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
    validations: tuple[tuple[int, float, float], ...]

    @property
    def step_s(self) -> float:
        """The seconds of all steps: forward pass, backward pass, communication and optimizer."""
        return max(0.0, self.seconds - self.staging_s - self.input_s - self.evaluate_s)

    @property
    def device_s(self) -> float:
        """The seconds of all devices together, which are what a user pays for."""
        return self.ranks * self.seconds

    @property
    def accuracy(self) -> float:
        """The accuracy at the last validation, or 0 without any validation."""
        return self.validations[-1][2] if self.validations else 0.0


class Training:
    """Everything that exists before the first step: loader, network, optimizer and validation images.

    Attributes:
        step: The number of steps so far.
        input_s, evaluate_s: The seconds in loading and in validation so far.
    """

    def __init__(self, recipe: SolutionRecipe, task: SolutionTask, file: Path, seed: int, device: str) -> None:
        """Read what the recipe reads before the first step. All ranks of one attempt do this together."""
        self.recipe = recipe
        self.task = task
        self.rank = dist.get_rank() if recipe.ranks > 1 else 0
        self.load = make_loader(recipe.loader, file, task, device)
        x_NF, y_N = all_features(file, "valid", task, device)
        self.valid = x_NF[self.rank :: recipe.ranks], y_N[self.rank :: recipe.ranks]
        self.order = Order([seed], task.train)
        self.model = build(task, seed, device)
        self.update = make_update(self.model, recipe)
        self.losses: list[Tensor] = []
        self.step = 0
        self.input_s = 0.0
        self.evaluate_s = 0.0

    def run(self) -> Iterator[tuple[int, float, float]]:
        """Train, and yield (steps, loss, accuracy) at each validation. The caller decides when to stop."""
        while self.step < self.recipe.steps:
            self.losses.append(self.update(self.step, *self._next_batch()))
            self.step += 1
            if self.step % self.recipe.eval_every == 0 or self.step == self.recipe.steps:
                yield self.step, *self._validate()
                self.losses.clear()

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        """Return this rank's images of the next batch, in the order of chapter 12's replica of this seed."""
        begin_s = time.perf_counter()
        batch_B = self.order.next(self.recipe.batch_size)[0]
        first = self.rank * self.recipe.rank_batch
        images = self.load(batch_B[first : first + self.recipe.rank_batch])
        self.input_s += time.perf_counter() - begin_s
        return images

    @torch.inference_mode()
    def _validate(self) -> tuple[float, float]:
        """Return the mean loss since the last validation, and the accuracy on all validation images, on every rank."""
        x_NF, y_N = self.valid
        synchronise(x_NF.device)
        begin_s = time.perf_counter()
        n_correct = (self.model(x_NF).argmax(1) == y_N).sum().double()
        sums = torch.stack([torch.stack(self.losses).mean().double(), n_correct])
        if self.recipe.ranks > 1:
            dist.all_reduce(sums)
        loss_sum, n_correct_of_all = sums.tolist()
        self.evaluate_s += time.perf_counter() - begin_s
        return loss_sum / self.recipe.ranks, n_correct_of_all / self.task.valid


def make_update(model: nn.Module, recipe: SolutionRecipe) -> Callable[[int, Tensor, Tensor], Tensor]:
    """Return a function ``update(step, x_BF, y_B)``, which makes one step and returns its loss on the device."""
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
    """Make one attempt for each seed. With several ranks, all attempts run on the same ranks.

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
    """Make one attempt in this process, or in all ranks of its process group, each on a core or a GPU."""
    device = own_device()
    validations = []
    diverged = False
    reached = False
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
            validations.append((step, seconds, accuracy))
            reached = accuracy >= task.target
            if reached:
                break
    return Attempt(
        seed=seed,
        reached=reached,
        diverged=diverged,
        steps=training.step,
        seconds=seconds,
        staging_s=staging_s,
        input_s=training.input_s,
        evaluate_s=training.evaluate_s,
        ranks=recipe.ranks,
        validations=tuple(validations),
    )


def build(task: SolutionTask, seed: int, device: str = "cpu") -> nn.Sequential:
    """Return chapter 12's network with two outputs. The same seed gives the same weights on every device."""
    return networks.network((task.n_features, *task.widths, 2), seed).to(device)


def noise(task: SolutionTask, n: int, device: str) -> tuple[Tensor, Tensor]:
    """Return a batch of random features (n, F) with labels (n,) of 0."""
    return torch.randn(n, task.n_features, device=device), torch.zeros(n, dtype=torch.int64, device=device)


def own_device() -> str:
    """Return the device of this process. A GPU is shared only if there are fewer GPUs than processes."""
    if machine.device() != "cuda":
        return machine.device()
    return f"cuda:{RankInfo.from_env().local_rank % torch.cuda.device_count()}"


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one core on each rank, so that a comparison of numbers of ranks is not one of numbers of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
