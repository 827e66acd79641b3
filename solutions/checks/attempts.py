"""The attempts of chapter 15's exercise: train by a recipe until the target is reached, all knobs of the loop to turn.

In: a recipe, a task, a seed. Out: an ``Attempt``: seconds and updates to the target, where the time went, how the
accuracy rose. As in MLPerf HPC's rules the clock includes staging: whatever is read before the first update. Before it
processes start, and torch loads its parts, in one update on noise. Unlike there, the files may be in the page cache:
emptying that needs the machine's administrator.

An attempt that diverges or runs out of updates has not reached the target: its seconds are those that were lost.
Three loaders give the same images, up to rounding: one image after another (naive), a batch in one go (lean), all read
and pooled before the first step (staged).

Legend: N images, B of a batch, H × W pixels, F features (pooled pixels, flattened).

Farrell et al. 2021, arXiv:2110.11466; https://github.com/mlcommons/training_policies, hpc_training_rules.adoc
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial import machine, node, paths
from dltutorial.config import LoopRecipe, knob
from dltutorial.convergence import networks
from dltutorial.convergence.ensemble import Order
from dltutorial.data import lenses
from dltutorial.engine import distributed
from dltutorial.engine.loop import TrainState, loop
from dltutorial.engine.task import Task
from dltutorial.errors import DataError, DivergedError, RecipeError
from dltutorial.launch import launch
from dltutorial.profile.throughput import synchronise
from dltutorial.ranks import RankInfo

Load = Callable[[Tensor], tuple[Tensor, Tensor]]  # numbers of images (B,) → features (B, F), labels (B,)

LOADERS = ("naive", "lean", "staged")
SIZE = 32  # pixels of an image's edge


@dataclass(frozen=True)
class SolutionTask:
    """What every attempt must do: tell simulated strong lenses from other galaxies, this well.

    Data, network and target are the same for all, so nobody can win by training on the validation images, or by
    lowering the target.

    Attributes:
        target: accuracy on the validation images that counts as solved.
        train, valid: images.
        pool: edge of the square of pixels that becomes one feature.
        widths: of the hidden layers.
        seed: of the images; the weights and the order have the seed of a run.
    """

    target: float = 0.90
    train: int = 20_000
    valid: int = 2_000
    pool: int = 2
    widths: tuple[int, ...] = (64, 32)
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises: RecipeError: a target that tells nothing, or that nobody can reach."""
        if not 0.5 < self.target < 1:
            raise RecipeError(f"task: target={self.target!r} is not between 0.5 (guessing) and 1; choose such as 0.9")

    @property
    def n_features(self) -> int:
        """Numbers that the network sees of an image."""
        return (SIZE // self.pool) ** 2


def prepare(task: SolutionTask) -> Path:
    """The file of a task's images, labels and training mean; simulated and written if it is not there yet.

    Raises:
        CourseError: it cannot be written.
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
    """The arrays "train", "train_labels", "valid", "valid_labels" and "mean", mapped into memory, not read.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        return torch.load(file, mmap=True, weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"cannot read the images in {file} ({error}); rename that file, and run again") from error


@dataclass(frozen=True)
class SolutionRecipe(LoopRecipe):
    """How to train to the target: a constant rate after the warm-up, no decay and no clipping unless asked for.

    Attributes:
        steps: updates after which an attempt is given up.
        eval_every: updates between two looks at the validation images.
    """

    loader: str = knob("naive", "image by image, a batch at once (lean), or all read first (staged)", choices=LOADERS)
    ranks: int = knob(1, "processes that share each batch; each has a device (a core, or a GPU) of its own", least=1)
    batch_size: int = knob(64, "images in one update, over all ranks", least=1)
    steps: int = 1500
    eval_every: int = 10
    warmup_steps: int = 0
    optimizer: str = "sgd"
    learning_rate: float = 2**-5
    final_rate_ratio: float = 1.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    beta2: float = 0.999
    ddp: str = "bucketed"

    def __post_init__(self) -> None:
        """Raises: RecipeError: naming the knob, its value and what it may be."""
        super().__post_init__()
        self.require(self.batch_size % self.ranks == 0, "batch_size", f"must be divisible by ranks={self.ranks}")

    @property
    def rank_batch(self) -> int:
        """Images of one update on each rank."""
        return self.batch_size // self.ranks

    def describe(self) -> str:
        """In words, the knobs that are not at their defaults."""
        usual, knobs = dataclasses.asdict(SolutionRecipe()), dataclasses.asdict(self)
        turned = {name: value for name, value in knobs.items() if value != usual[name]}
        words = (f"{name} {v:g}" if isinstance(v, float) else f"{name} {v}" for name, v in turned.items())
        return ", ".join(words) or "none"


def check_fits(recipe: SolutionRecipe, task: SolutionTask) -> None:
    """Raises: RecipeError: the recipe's batch is larger than the data."""
    if recipe.batch_size > task.train:
        told = f"there are {task.train} training images; choose fewer"
        raise RecipeError(f"recipe: batch_size={recipe.batch_size}, but {told}")


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
    """Features (B, F): all of them in one go."""
    return pooled(images_NHW[chosen_B] - mean_HW, pool)


def make_loader(name: str, file: Path, task: SolutionTask, device: str = "cpu") -> Load:
    """A function that loads batches; making the staged one takes as long as reading everything does."""
    if name == "staged":
        x_NF, y_N = whole(file, "train", task, device)
        return lambda chosen_B: (x_NF[chosen_B.to(device)], y_N[chosen_B.to(device)])
    arrays, batch = read(file), {"naive": naive_batch, "lean": lean_batch}[name]

    def load(chosen_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BF = batch(arrays["train"], chosen_B, arrays["mean"], task.pool)
        return x_BF.to(device), arrays["train_labels"][chosen_B].to(device)

    return load


def whole(file: Path, split: str, task: SolutionTask, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """All features (N, F) and labels (N,) of a split, read, pooled and brought to the device."""
    arrays = read(file)
    x_NF = pooled(arrays[split] - arrays["mean"], task.pool)
    return x_NF.to(device), arrays[f"{split}_labels"].clone().to(device)


@dataclass(frozen=True)
class Attempt:
    """What became of one recipe with one seed.

    Attributes:
        seed: of the initial weights and the order of the images.
        reached: whether the target was.
        diverged: the loss was no finite number any more.
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


class Job:
    """All that has to be there before the first update: batches, network, optimizer, validation images.

    Attributes:
        task: of this rank, for the training loop.
        state: the live parts; ``state.update(x_BF, y_B)`` is one step.
        input_s, evaluate_s: spent in loading and looking.
    """

    def __init__(
        self, recipe: SolutionRecipe, task: SolutionTask, file: Path, seed: int = 0, device: str = "cpu"
    ) -> None:
        """Read what the recipe reads first; all ranks of one attempt do so."""
        self._recipe, self._wanted, self._seed = recipe, task, seed
        self._rank = distributed.rank() if recipe.ranks > 1 else 0
        self.load = make_loader(recipe.loader, file, task, device)
        x_NF, y_N = whole(file, "valid", task, device)
        self._valid = x_NF[self._rank :: recipe.ranks], y_N[self._rank :: recipe.ranks]
        self.task = Task(build(task, seed, device), self._batches, cross_entropy, self.look)
        self.state = TrainState(self.task, recipe)
        self.input_s = self.evaluate_s = 0.0

    def _batches(self, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's part of each batch, for ever, in the order of chapter 12's replica of that seed."""
        order, n = Order([self._seed], self._wanted.train), self._recipe.rank_batch
        while True:
            before_s = time.perf_counter()
            batch = self.load(order.next(self._recipe.batch_size)[0, self._rank * n : (self._rank + 1) * n])
            self.input_s += time.perf_counter() - before_s
            yield batch

    @torch.inference_mode()
    def look(self, model: nn.Module) -> Mapping[str, float]:
        """Accuracy on the validation images; each rank looks at its share, and all learn the sum."""
        x_NF, y_N = self._valid
        synchronise(x_NF.device)
        before_s = time.perf_counter()
        right = (model(x_NF).argmax(1) == y_N).sum().double()
        accuracy = (distributed.sum_over_ranks(right) if self._recipe.ranks > 1 else right).item() / self._wanted.valid
        self.evaluate_s += time.perf_counter() - before_s
        return {"accuracy": accuracy}


def attempts(
    recipe: SolutionRecipe, task: SolutionTask, seeds: Sequence[int], *, timeout_s: float = 120.0
) -> list[Attempt]:
    """One attempt for each seed, one after the other; with several ranks, all on the same ranks.

    Raises:
        RecipeError: the recipe does not suit the task.
        CourseError: the images cannot be had, or the ranks; a login node.
    """
    node.refuse_on_login("training")
    check_fits(recipe, task)
    file = prepare(task)
    if recipe.ranks == 1:
        return [attempt(recipe, task, file, seed) for seed in seeds]
    return launch(_on_rank, recipe.ranks, recipe, task, file, tuple(seeds), timeout_s=timeout_s)[0]


def attempt(recipe: SolutionRecipe, task: SolutionTask, file: Path, seed: int) -> Attempt:
    """One attempt of this process, or of all ranks of its process group together, each on a core or a GPU."""
    device, seen, diverged = own_device(), [], False
    with one_thread():
        warm = Task(build(task, 0, device), lambda skip: (), cross_entropy)  # it touches no data
        TrainState(warm, recipe).update(*noise(task, recipe.rank_batch, device))
        synchronise(device)
        if recipe.ranks > 1:
            distributed.barrier()
        start_s = time.perf_counter()
        job = Job(recipe, task, file, seed, device)
        staging_s = time.perf_counter() - start_s
        try:
            for progress in loop(job.task, recipe, job.state):
                if progress.scores:
                    seen.append((progress.step, time.perf_counter() - start_s, progress.scores["accuracy"]))
                    if seen[-1][2] >= task.target:
                        break
        except DivergedError:
            diverged = True
        seconds = time.perf_counter() - start_s if diverged else seen[-1][1]
    reached = not diverged and seen[-1][2] >= task.target
    times = (seconds, staging_s, job.input_s, job.evaluate_s)
    return Attempt(seed, reached, diverged, job.state.step, *times, recipe.ranks, tuple(seen))


def build(task: SolutionTask, seed: int, device: str = "cpu") -> nn.Sequential:
    """Chapter 12's network, with two outputs; the same seed gives the same weights, whatever the device."""
    return networks.network((task.n_features, *task.widths, 2), seed).to(device)


def cross_entropy(model: nn.Module, x_BF: Tensor, y_B: Tensor) -> Tensor:
    """The loss of a batch."""
    return F.cross_entropy(model(x_BF), y_B)


def noise(task: SolutionTask, n: int, device: str) -> tuple[Tensor, Tensor]:
    """A batch that teaches nothing: features (n, F) and labels (n,)."""
    return torch.randn(n, task.n_features, device=device), torch.zeros(n, dtype=torch.int64, device=device)


def own_device() -> str:
    """The device of this process: a GPU, shared only if there are fewer than processes, or the CPU."""
    if machine.device() != "cuda":
        return machine.device()
    return f"cuda:{RankInfo.from_env().local_rank % torch.cuda.device_count()}"


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One core a rank: what more ranks buy is then theirs, not that of more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _on_rank(recipe: SolutionRecipe, task: SolutionTask, file: Path, seeds: Sequence[int]) -> list[Attempt]:
    return [attempt(recipe, task, file, seed) for seed in seeds]
