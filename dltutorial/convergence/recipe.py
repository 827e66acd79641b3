"""The knobs of one attempt at the capstone's task, and the task itself.

Everything that a learner may choose is a field of ``SolutionRecipe``: the knobs of the training loop, and three more.
What all attempts share is a ``SolutionTask``: data, network, target quality. So nobody can win by training on the
validation images, or by lowering the target. Neither needs torch.
"""

import dataclasses
import itertools
from dataclasses import dataclass

from dltutorial.config import LoopRecipe, Preset, knob
from dltutorial.errors import RecipeError

LOADERS = ("naive", "lean", "staged")
SIZE = 32  # pixels of an image's edge


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


@dataclass(frozen=True)
class SolutionTask:
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
        """Raises: RecipeError: a target that tells nothing, or that nobody can reach."""
        if not 0.5 < self.target < 1:
            raise RecipeError(f"task: target={self.target!r} is not between 0.5 (guessing) and 1; choose such as 0.9")

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
        """Raises: RecipeError: the recipe's batch is larger than the data."""
        if recipe.batch_size > self.train:
            told = f"there are {self.train} training images; choose fewer"
            raise RecipeError(f"recipe: batch_size={recipe.batch_size}, but {told}")


def task_for(preset: Preset, seed: int = 0) -> SolutionTask:
    """The capstone's task at the size that suits a kind of machine."""
    if preset.name in ("gpu", "cluster"):
        return SolutionTask(target=0.95, widths=(1024, 256), seed=seed)
    if preset.name == "smoke":
        return SolutionTask(target=0.94, train=10_000, seed=seed)
    return SolutionTask(target=0.95, seed=seed)
