"""Every knob of one training run of the old trainer: ``Recipe``, its parts, and how they become options.

Recipes are frozen: a run cannot change under your hands. They need no torch.
"""

import argparse
import dataclasses
import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_origin

from dltutorial import paths
from dltutorial.config import Preset, preset
from dltutorial.errors import RecipeError

LOADERS = ("plain", "naive", "open", "lean", "batched", "device", "prefetch", "best")
OPTIMIZERS = ("adamw", "sgd", "lars", "larc", "lamb")
UPDATES = ("auto", "for-loop", "foreach", "fused")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
COMPILE_MODES = ("off", "default", "reduce-overhead", "max-autotune")
DDP = ("torch", "overlapped", "bucketed", "naive")
SHARDS = ("none", "optimizer", "gradients", "full")
TASKS = ("weather", "climate", "landcover", "cosmology", "survey", "surrogate", "pinn")
# With these knobs the transformer of the preset gpu is that of the published ladder, to the bit: see models.vit.
PUBLISHED = MappingProxyType({"predict_change": False, "head_bias": False, "norm_eps": 1e-6})


def knob(default: Any, text: str, *, least: float | None = None, choices: tuple[str, ...] = ()) -> Any:
    """A field of a recipe: its default, what it does, the least that it may be, and the words that it may take."""
    return dataclasses.field(default=default, metadata={"text": text, "least": least, "choices": choices})


@dataclass(frozen=True)
class Knobs:
    """What all recipes have in common: each knob is checked by what its field says of it."""

    @classmethod
    def knobs(cls) -> dict[str, dataclasses.Field]:
        """Every knob by name. Where a subclass gives another default alone, all else stays as it was."""
        parts = [part for part in reversed(cls.__mro__) if dataclasses.is_dataclass(part)]
        return {field.name: field for part in parts for field in dataclasses.fields(part) if field.metadata}

    def __post_init__(self) -> None:
        """A whole number passes for a float; nothing else is converted.

        Raises:
            RecipeError: naming the knob, its value and what it may be.
        """
        for name, field in self.knobs().items():
            value, kind = getattr(self, name), field.type
            least, choices = field.metadata["least"], field.metadata["choices"]
            wanted: Any = (int, float) if kind is float else get_origin(kind) or kind
            if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
                what = getattr(kind, "__name__", kind)
                raise RecipeError(f"recipe: {name}={value!r} is not of type {what}; change it")
            if isinstance(value, float) and not math.isfinite(value):
                raise RecipeError(f"recipe: {name}={value!r} is not finite; change it")
            self.require(not isinstance(value, int) or value < 2**63, name, "must be below 2**63")
            self.require(not choices or value in choices, name, f"must be one of {', '.join(choices)}")
            rule = f"must be at least {least}" if least else "must not be negative"
            self.require(least is None or value >= least, name, rule)

    def require(self, holds: bool, name: str, rule: str) -> None:
        """Raises: RecipeError: one line with the knob's value and the rule, unless it holds."""
        if not holds:
            raise RecipeError(f"recipe: {name}={getattr(self, name)!r}, but {name} {rule}; change it")


@dataclass(frozen=True)
class ModelRecipe(Knobs):
    """The vision transformer and the fields that it forecasts."""

    n_lat: int = knob(64, "rows of a field; those of the data unless set: the first so many of them", least=1)
    n_lon: int = knob(128, "columns of a field; those of the data unless set: the first so many of them", least=1)
    n_channels: int = knob(5, "fields in a sample; taken from the data unless set", least=1)
    patch: int = knob(8, "edge of the square of grid points that becomes one token", least=1)
    dim: int = knob(128, "width of a token", least=1)
    depth: int = knob(4, "transformer blocks", least=1)
    heads: int = knob(4, "attention heads; they share dim equally", least=1)
    predict_change: bool = knob(True, "the network gives the change from now to the next state; else that state itself")
    fused_attention: bool = knob(True, "one kernel for attention, not products and a softmax that keeps T × T weights")
    head_bias: bool = knob(True, "the head adds numbers of its own to each patch")
    norm_eps: float = knob(1e-5, "added to the variance in layer norms", least=1e-12)
    checkpoint_activations: bool = knob(False, "blocks keep their input only, and are computed again")

    def __post_init__(self) -> None:
        """Raises: RecipeError: sizes that do not fit together."""
        super().__post_init__()
        if getattr(self, "task", "weather") != "weather":  # its network has no heads and no patches
            return
        self.require(self.dim % self.heads == 0, "heads", f"must divide dim={self.dim}")
        for name in ("n_lat", "n_lon"):
            given = getattr(self, name)
            fits = given // self.patch * self.patch
            crop = f": {name}={fits} takes the data's first {fits}" if fits else ""
            self.require(given == fits, name, f"must be divisible by patch={self.patch}{crop}")

    @property
    def n_tokens(self) -> int:
        """Patches of one sample."""
        return (self.n_lat // self.patch) * (self.n_lon // self.patch)

    @property
    def n_parameters(self) -> int:
        """Numbers that training changes: in blocks, embedding and head, positions, and the last norm."""
        D, pixels = self.dim, self.n_channels * self.patch**2
        return self.depth * (12 * D**2 + 13 * D) + (2 * D + self.head_bias) * pixels + (self.n_tokens + 3) * D


@dataclass(frozen=True)
class CaseRecipe(Knobs):
    """What is trained. ``ModelRecipe`` is the weather's; a case of science has its sizes from preset and network."""

    task: str = knob("weather", "what is trained: the weather, or a science case of chapters 21 to 23", choices=TASKS)
    network: str = knob("", "of a case that has several, see its file in dltutorial/science; else its first")
    samples: int = knob(0, "training samples that a science case simulates or takes; 0: the preset's", least=0)


@dataclass(frozen=True)
class DataRecipe(Knobs):
    """How samples become batches."""

    global_batch_size: int = knob(16, "samples in one update, over all ranks", least=1)
    roll: bool = knob(True, "augment by a random shift along longitude")
    loader: str = knob("plain", "plain is chapter 01's; the others are chapter 03's", choices=LOADERS)
    workers: int = knob(0, "processes that load data beside training; batched and later loaders take none", least=0)

    def __post_init__(self) -> None:
        """Raises: RecipeError: a value that cannot be."""
        super().__post_init__()
        alone = not self.workers or self.loader in LOADERS[:4]
        self.require(alone, "workers", f"must be 0: the {self.loader} loader takes none")


@dataclass(frozen=True)
class OptimizerRecipe(Knobs):
    """How the weights move."""

    steps: int = knob(160, "updates in all", least=1)
    warmup_steps: int = knob(16, "updates in which the learning rate rises linearly to its peak", least=0)
    optimizer: str = knob("adamw", "sgd has momentum; lars, larc: convolutions, lamb: transformers", choices=OPTIMIZERS)
    learning_rate: float = knob(3e-3, "the peak of the schedule; each optimizer has its own scale")
    final_rate_ratio: float = knob(0.01, "the cosine ends at this share of the peak", least=0)
    weight_decay: float = knob(0.05, "on matrices; lars, larc, lamb: also on patch embedding and positions", least=0)
    beta1: float = knob(0.9, "memory of AdamW's and LAMB's first average; momentum of sgd, lars and larc", least=0)
    beta2: float = knob(0.95, "memory of AdamW's and LAMB's second average", least=0)
    clip_norm: float = knob(1.0, "gradients are scaled down to this global norm; 0 switches it off", least=0)
    optimizer_impl: str = knob("auto", "how an update is computed; auto is torch's choice", choices=UPDATES)

    def __post_init__(self) -> None:
        """Raises: RecipeError: a value that cannot be."""
        super().__post_init__()
        for name in ("beta1", "beta2"):
            self.require(getattr(self, name) < 1, name, "must be smaller than 1")
        self.require(0 < self.learning_rate <= 1e30, "learning_rate", "must be greater than 0, and at most 1e30")
        self.require(self.final_rate_ratio <= 1, "final_rate_ratio", "must be at most 1")
        self.require(self.warmup_steps < self.steps, "warmup_steps", f"must be smaller than steps={self.steps}")
        fusible = self.optimizer in ("adamw", "sgd") or self.optimizer_impl != "fused"
        self.require(fusible, "optimizer_impl", f"must be another: {self.optimizer} has no fused kernel")


@dataclass(frozen=True)
class RankRecipe(Knobs):
    """How each rank computes, and what it writes down."""

    device: str = knob("auto", "where to compute", choices=("auto", "cpu", "cuda"))
    precision: str = knob("fp32", "of the matrix products; the weights are kept in float32", choices=PRECISIONS)
    compile: str = knob("off", "a mode of torch.compile, or off", choices=COMPILE_MODES)
    cuda_graph: bool = knob(False, "capture the whole step and launch it as one")
    accumulate: int = knob(1, "parts of a rank's batch, in turns: less memory, one update", least=1)
    ddp: str = knob("torch", "how ranks average gradients: torch's DDP, or one of chapter 09's", choices=DDP)
    gradient_lag: int = knob(0, "1: an update takes the gradients of the step before, which travel meanwhile", least=0)
    shard: str = knob("none", "what ranks share out among them: averages; gradients too; weights too", choices=SHARDS)
    tensor: int = knob(1, "ranks next to each other that share heads and matrices; it divides heads", least=1)
    context: int = knob(1, "ranks that share the tokens of each sample", least=1)
    pipeline: int = knob(1, "stages, each with some blocks; a batch passes them in --accumulate parts", least=1)
    log_every: int = knob(10, "updates between two records", least=1)
    eval_every: int = knob(54, "updates between two validations; 0 validates only at the end", least=0)
    checkpoint_every: int = knob(0, "updates between two checkpoints; 0: one when a signal asks it to end", least=0)
    track: tuple[str, ...] = knob(("tensorboard",), "where records go besides the run's file: tensorboard, wandb")

    def __post_init__(self) -> None:
        """Raises: RecipeError: a value that cannot be."""
        super().__post_init__()
        whole = not (self.cuda_graph and self.compile in ("reduce-overhead", "max-autotune"))
        self.require(whole, "compile", "captures graphs of its own in this mode, so cuda_graph must be off")
        self.require(self.gradient_lag <= 1, "gradient_lag", "must be 0 or 1")
        known = all(kind in ("tensorboard", "wandb") for kind in self.track)
        self.require(known, "track", "may name tensorboard and wandb only")

    @property
    def ranks_per_sample(self) -> int:
        """Ranks that work on the same samples."""
        return self.pipeline * self.context * self.tensor


@dataclass(frozen=True)
class LoopRecipe(RankRecipe, OptimizerRecipe):
    """What the training loop asks for, whatever the task."""

    def __post_init__(self) -> None:
        """Raises: RecipeError: an optimizer that cannot be in a CUDA graph."""
        super().__post_init__()
        fits = not (self.cuda_graph and self.precision == "fp16") or self.optimizer_impl == "fused"
        self.require(fits, "optimizer_impl", "must be fused in a CUDA graph with fp16: others ask the host to look")
        graphed = not (self.cuda_graph and self.optimizer == "sgd")
        self.require(graphed, "optimizer", "must be another in a CUDA graph: sgd reads its rate on the host")


@dataclass(frozen=True)
class Recipe(LoopRecipe, DataRecipe, CaseRecipe, ModelRecipe):
    """Every knob of one run. Saved as ``recipe.json`` beside the run, so that it can be repeated.

    It is made of smaller recipes, one for each of those whom a knob concerns.

    Attributes:
        preset: where the defaults came from.
    """

    preset: str = "smoke"
    seed: int = knob(0, "of the initial weights, the shuffling and the augmentation", least=0)

    def least_bytes(self, ranks: int = 1) -> int:
        """Memory that one of so many ranks needs at the very least: what is counted exactly, or surely takes more.

        Weights, gradients, the optimizer's averages; of each sample two states, and what the backward pass reads in
        each block: eight of its numbers a token, of two bytes, and T × T weights of each head if those are written.
        With checkpointed activations that is read in one block at a time; of all others, its input. What ranks share
        out among them counts as if it could be divided without a rest. A pipeline's first stage holds a part of the
        batch for each stage, in its share of the blocks.
        """
        numbers = 4 if self.optimizer in ("adamw", "lamb") else 3
        whole = {"optimizer": 2, "gradients": 1, "full": 0}.get(self.shard, numbers)
        pieces = self.tensor * self.pipeline
        held = (whole + (numbers - whole) * pieces / ranks) / pieces
        weights = 0 if self.fused_attention else 2 * self.heads * self.n_tokens**2
        token = 2 * self.n_tokens * self.dim
        blocks = self.depth * token + 8 * token if self.checkpoint_activations else self.depth * (8 * token + weights)
        sample = 8 * self.n_channels * self.n_lat * self.n_lon + blocks
        at_once = -(-self.global_batch_size * self.ranks_per_sample // (ranks * self.accumulate))
        return int(4 * held * self.n_parameters + at_once * sample / (self.context * self.tensor))

    def require_room(self, ranks: int = 1) -> None:
        """Raises: CourseError: one of so many ranks takes more processes or memory than this machine has for it."""
        from dltutorial import limits, machine

        samples = self.global_batch_size * self.ranks_per_sample // ranks
        self.require(self.accumulate <= samples, "accumulate", f"must be at most {samples}, the samples of a rank")
        limits.refuse_too_many("workers", self.workers)
        gpus = machine.accelerators() if self.device != "cpu" else ()
        shared = machine.memory_bytes()[0] // machine.RankInfo.from_env().local_world_size
        needed, there = self.least_bytes(ranks), gpus[0].memory_bytes if gpus else shared
        sizes = f"{needed / 2**30:,.1f} GiB or more, but a rank has {there / 2**30:,.1f} GiB"
        if needed > there and self.task == "weather":  # of no other model are the bytes known here
            raise RecipeError(f"recipe: the model and its batches need {sizes}; make them smaller")

    @classmethod
    def of(cls, preset: Preset, /, **changes: object) -> "Recipe":
        """The recipe of a preset, with some knobs changed. Warm-up takes a tenth of the steps unless set.

        Raises:
            RecipeError: no such knob, or a value that cannot be.
        """
        unknown = sorted(set(changes) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise RecipeError(f"recipe: no knob {', '.join(map(repr, unknown))}; see dltutorial train --help")
        shared = {field.name for field in dataclasses.fields(cls)} & set(dir(preset))
        values = {"preset": preset.name} | {name: getattr(preset, name) for name in shared} | changes
        steps = values["steps"]
        if isinstance(steps, int):
            values.setdefault("warmup_steps", steps // 10)
            values.setdefault("eval_every", max(1, -(-steps // 3)))  # the last of three is the last step
        return cls(**values)

    def save(self, file: Path) -> None:
        """Write the recipe as JSON, whole or not at all."""
        paths.write_text(Path(file), json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, file: Path) -> "Recipe":
        """Read a recipe that ``save`` wrote, or that you wrote by hand with some of its knobs.

        Raises:
            RecipeError: the file cannot be read, is not a JSON object, or is no recipe.
        """
        knobs = read_knobs(file)
        return cls.of(preset(str(knobs.pop("preset", "auto"))), **knobs)


def add_options(group: argparse._ActionsContainer, names: Collection[str] | None = None) -> None:
    """Knobs of a recipe (default: all) as options of a command line. What was not given stays out of the namespace."""
    for name, field in Recipe.knobs().items():
        if names is None or name in names:
            text, choices = field.metadata["text"], field.metadata["choices"]
            how: dict[str, Any] = {"type": field.type} if field.type in (int, float, str) else {"nargs": "*"}
            how = {"choices": choices} if choices else how | {"metavar": "X"}
            how = {"action": argparse.BooleanOptionalAction} if field.type is bool else how
            group.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, help=text, **how)


def read_knobs(file: Path) -> dict:
    """The knobs a JSON file sets, lists turned into tuples.

    Raises:
        RecipeError: the file cannot be read or does not hold one JSON object.
    """
    try:
        knobs = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"cannot read recipe {file}: {error.strerror}; mend that, or name another file") from error
    except ValueError as error:
        raise RecipeError(f"recipe {file} is not JSON ({error}); write it like a run's recipe.json") from error
    if not isinstance(knobs, dict):
        raise RecipeError(f"recipe {file} holds no JSON object; write it like a run's recipe.json")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in knobs.items()}
