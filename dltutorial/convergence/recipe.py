"""The knobs of one attempt at the capstone's task, and the task itself.

Everything that a learner may choose is a field of ``SolutionRecipe``. What all attempts share is a ``Task``: data,
network, target quality. So nobody can win by training on the validation images, or by lowering the target. Neither
needs torch.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dltutorial.config import Preset
from dltutorial.errors import RecipeError

CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "loader": ("naive", "lean", "staged"),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "optimizer": ("sgd", "adam"),
})  # fmt: skip
_COUNTS = ("ranks", "batch_size", "max_steps", "evaluate_every")


@dataclass(frozen=True)
class SolutionRecipe:
    """How to train to the target.

    Attributes:
        loader: naive (image by image, float64), lean (a batch at once), staged (all images read into memory first).
        precision: of the matrix products: fp32, tf32, bf16 or fp16.
        ranks: processes that share each batch; each has a device (a core, or a GPU) of its own.
        batch_size: images in one update, over all ranks.
        optimizer: sgd (momentum 0.9) or adam.
        learning_rate: after the warm-up.
        warmup_steps: updates in which the rate rises linearly to it.
        max_steps: updates after which an attempt is given up.
        evaluate_every: updates between two looks at the validation images.
    """

    loader: str = "naive"
    precision: str = "fp32"
    ranks: int = 1
    batch_size: int = 64
    optimizer: str = "sgd"
    learning_rate: float = 2**-5
    warmup_steps: int = 0
    max_steps: int = 1500
    evaluate_every: int = 10

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            RecipeError: naming the knob, its value and what it may be.
        """
        for name in (*_COUNTS, "warmup_steps"):
            whole = isinstance(getattr(self, name), int) and not isinstance(getattr(self, name), bool)
            self._require(whole, name, "must be a whole number")
        for name in _COUNTS:
            self._require(getattr(self, name) >= 1, name, "must be at least 1")
        for name, choices in CHOICES.items():
            self._require(getattr(self, name) in choices, name, f"must be one of {', '.join(choices)}")
        rate = self.learning_rate
        number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
        self._require(number and 0 < rate < float("inf"), "learning_rate", "must be a number greater than 0")
        self._require(self.warmup_steps >= 0, "warmup_steps", "must not be negative")
        self._require(
            self.warmup_steps < self.max_steps, "warmup_steps", f"must be smaller than max_steps={self.max_steps}"
        )
        self._require(
            self.evaluate_every <= self.max_steps,
            "evaluate_every",
            f"must be at most max_steps={self.max_steps}, else nobody ever looks",
        )
        self._require(self.batch_size % self.ranks == 0, "batch_size", f"must be divisible by ranks={self.ranks}")

    def _require(self, holds: bool, name: str, rule: str) -> None:
        if not holds:
            raise RecipeError(f"recipe: {name}={getattr(self, name)!r}, but {name} {rule}; change it")

    @classmethod
    def of(cls, knobs: "Mapping[str, object] | SolutionRecipe") -> "SolutionRecipe":
        """A recipe from a mapping of knobs, the others at their defaults.

        Raises:
            RecipeError: no mapping, no such knob, or a value that cannot be.
        """
        if isinstance(knobs, cls):
            return knobs
        if not isinstance(knobs, Mapping):
            raise RecipeError(f"recipe: {type(knobs).__name__} is no recipe; give a SolutionRecipe or a dictionary")
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(str(name) for name in set(knobs) - set(known))
        if unknown:
            raise RecipeError(f"recipe: no knob {', '.join(unknown)}; there are: {', '.join(known)}")
        return cls(**knobs)

    @property
    def rank_batch(self) -> int:
        """Images of one update on each rank."""
        return self.batch_size // self.ranks

    def rate_factor(self, step: int) -> float:
        """Share of the learning rate at an update, counted from 0."""
        return min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0

    def describe(self, other: "SolutionRecipe | None" = None) -> str:
        """The knobs in words; with another recipe, only those that differ from it."""
        knobs = dataclasses.asdict(self)
        kept = knobs if other is None else {k: v for k, v in knobs.items() if v != getattr(other, k)}
        return ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                         for name, value in kept.items()) or "none"  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What every attempt must do: tell simulated strong lenses from other galaxies, this well.

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
        """Refuse a target that tells nothing, or that nobody can reach.

        Raises:
            RecipeError: naming it, and what it may be.
        """
        if not 0.5 < self.target < 1:
            raise RecipeError(
                f"task: target={self.target!r} is not between 0.5 (guessing) and 1 (never wrong); choose such as 0.9"
            )
        if min(self.train, self.valid, self.pool, *self.widths) < 1:
            raise RecipeError("task: train, valid, pool and widths must be at least 1; change them")
        if SIZE % self.pool:
            raise RecipeError(f"task: pool={self.pool} does not divide the {SIZE} pixels of an edge; choose 1, 2 or 4")

    @property
    def n_features(self) -> int:
        """Numbers that the network sees of an image."""
        return (SIZE // self.pool) ** 2

    @property
    def n_weights(self) -> int:
        """Weights and biases of the network."""
        sizes = (self.n_features, *self.widths, 2)
        return sum((before + 1) * after for before, after in itertools.pairwise(sizes))

    def check(self, recipe: SolutionRecipe) -> None:
        """Refuse a recipe that this task cannot use.

        Raises:
            RecipeError: the batch is larger than the data.
        """
        if recipe.batch_size > self.train:
            raise RecipeError(
                f"recipe: batch_size={recipe.batch_size}, but there are {self.train} training images; choose fewer"
            )


SIZE = 32  # pixels of an image's edge


def task_for(preset: Preset, seed: int = 0) -> Task:
    """The capstone's task at the size that suits a kind of machine."""
    if preset.name in ("gpu", "cluster"):
        return Task(target=0.95, widths=(1024, 256), seed=seed)
    if preset.name == "smoke":
        return Task(target=0.94, train=10_000, seed=seed)
    return Task(target=0.95, seed=seed)
