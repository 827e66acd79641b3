"""What a run is made of: ``Preset`` fixes the sizes for a kind of machine, ``Recipe`` every knob of one training run.

Both are frozen: a run cannot change under your hands. Neither needs torch.
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dltutorial import paths
from dltutorial.errors import RecipeError


@dataclass(frozen=True)
class Preset:
    """Sizes for one kind of machine.

    Attributes:
        name: what it is asked for by.
        machine: whom it is for, in a few words.
        n_lat, n_lon: grid points of a field.
        n_layers: layers of the simulated atmosphere; each brings five channels.
        years: (train, valid, test) files, one independent simulated year each.
        snapshots: stored time steps in a year.
        patch, dim, depth, heads: the vision transformer.
        global_batch_size: samples in one update, over all ranks.
        steps, learning_rate: updates of chapter 01's run, and AdamW's peak rate.
    """

    name: str
    machine: str
    n_lat: int
    n_lon: int
    n_layers: int
    years: tuple[int, int, int]
    snapshots: int
    patch: int
    dim: int
    depth: int
    heads: int
    global_batch_size: int
    steps: int
    learning_rate: float

    @property
    def n_channels(self) -> int:
        """Five fields for each layer: u, v, vorticity, streamfunction, tracer."""
        return 5 * self.n_layers


_SMOKE = Preset(
    name="smoke", machine="CI or a small laptop: about a minute a notebook",
    n_lat=64, n_lon=128, n_layers=1, years=(6, 1, 1), snapshots=42,
    patch=8, dim=128, depth=4, heads=4,
    global_batch_size=16, steps=160, learning_rate=3e-3,
)  # fmt: skip
_LAPTOP = dataclasses.replace(
    _SMOKE, name="laptop", machine="a patient CPU learner: minutes a notebook",
    n_layers=2, years=(14, 2, 2), dim=192, depth=6, heads=6, steps=1200, learning_rate=1e-3,
)  # fmt: skip
_GPU = Preset(
    name="gpu", machine="one accelerator: the published vision transformer",
    n_lat=360, n_lon=720, n_layers=4, years=(8, 1, 1), snapshots=64,
    patch=8, dim=384, depth=12, heads=8,
    global_batch_size=16, steps=1000, learning_rate=5e-4,
)  # fmt: skip
_CLUSTER = dataclasses.replace(
    _GPU, name="cluster", machine="several accelerators", years=(32, 2, 2), global_batch_size=64, learning_rate=1e-3
)
PRESETS = {p.name: p for p in (_SMOKE, _LAPTOP, _GPU, _CLUSTER)}


def preset(name: str = "auto") -> Preset:
    """Look up a preset; ``auto`` takes ``DLTUTORIAL_PRESET``, else what fits this machine.

    Raises:
        RecipeError: no such preset.
    """
    source = "preset"
    if name == "auto" and (wanted := os.environ.get("DLTUTORIAL_PRESET", "auto")) != "auto":
        name, source = wanted, "DLTUTORIAL_PRESET"
    if name == "auto":
        from dltutorial import machine

        name = machine.suggest_preset()
    if name not in PRESETS:
        raise RecipeError(f"{source} {name!r} is not one of {', '.join(PRESETS)}, auto; choose one of these")
    return PRESETS[name]


# Knobs that take one of a few words.
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "device": ("auto", "cpu", "cuda"),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "compile": ("off", "default", "reduce-overhead", "max-autotune"),
    "ddp": ("torch", "overlapped", "bucketed", "naive"),
    "optimizer": ("adamw", "sgd", "lars", "larc", "lamb"),
    "optimizer_impl": ("auto", "for-loop", "foreach", "fused"),
    "loader": ("plain", "naive", "open", "lean", "batched", "device", "prefetch", "best"),
})  # fmt: skip


@dataclass(frozen=True)
class ModelRecipe:
    """The vision transformer and the fields that it forecasts.

    Attributes:
        n_lat, n_lon: grid points of a field; taken from the data unless set.
        n_channels: fields in a sample; taken from the data unless set.
        patch: edge of the square of grid points that becomes one token.
        dim: width of a token.
        depth: transformer blocks.
        heads: attention heads; they share dim equally.
        predict_change: the network gives the change from now to the next state; otherwise the next state itself.
        fused_attention: one kernel for attention instead of products and a softmax that keeps all T × T weights.
    """

    n_lat: int = 64
    n_lon: int = 128
    n_channels: int = 5
    patch: int = 8
    dim: int = 128
    depth: int = 4
    heads: int = 4
    predict_change: bool = True
    fused_attention: bool = True

    def __post_init__(self) -> None:
        """Raises: RecipeError: sizes that do not fit together."""
        _check(self, ModelRecipe, at_least_1="n_lat n_lon n_channels patch dim depth heads")
        _require(self, self.dim % self.heads == 0, "heads", f"must divide dim={self.dim}")
        for name in ("n_lat", "n_lon"):
            _require(self, getattr(self, name) % self.patch == 0, name, f"must be divisible by patch={self.patch}")

    @property
    def n_tokens(self) -> int:
        """Patches of one sample."""
        return (self.n_lat // self.patch) * (self.n_lon // self.patch)

    @property
    def forward_flop(self) -> int:
        """Floating-point operations of one sample's forward pass: matrix products only, 2 per multiply-add.

        Per block 24 T D² for the four matrices and 4 T² D for attention; the backward pass costs about twice as much.
        """
        T, D = self.n_tokens, self.dim
        return self.depth * (24 * T * D**2 + 4 * T**2 * D) + 4 * T * D * self.n_channels * self.patch**2


@dataclass(frozen=True)
class DataRecipe:
    """How samples become batches.

    Attributes:
        global_batch_size: samples in one update, over all ranks.
        roll: augment by a random shift along longitude.
        loader: plain (chapter 01's), or one of chapter 03: naive, open, lean, batched, prefetch, device, best.
        workers: processes that load data beside the training process; only plain, naive, open and lean take any.
    """

    global_batch_size: int = 16
    roll: bool = True
    loader: str = "plain"
    workers: int = 0

    def __post_init__(self) -> None:
        """Raises: RecipeError: a value that cannot be."""
        _check(self, DataRecipe, at_least_1="global_batch_size", not_negative="workers")
        alone = not self.workers or self.loader in ("plain", "naive", "open", "lean")
        _require(self, alone, "workers", f"must be 0: the {self.loader} loader takes none")


@dataclass(frozen=True)
class OptimizerRecipe:
    """How the weights move.

    Attributes:
        steps: updates in all.
        warmup_steps: updates in which the learning rate rises linearly to its peak.
        optimizer: adamw, sgd (with momentum), lars or larc (made for convolutions) or lamb (made for transformers).
        learning_rate: the peak of the schedule; each optimizer has its own scale.
        final_rate_ratio: the cosine ends at this share of the peak.
        weight_decay: on matrices only; lars, larc and lamb decay the patch embedding and positions, too.
        beta1, beta2: the memory of AdamW's and LAMB's two averages; beta1 is the momentum of sgd, lars and larc.
        clip_norm: gradients are scaled down to this global norm; 0 switches it off.
        optimizer_impl: auto (torch's choice), for-loop, foreach or fused.
    """

    steps: int = 160
    warmup_steps: int = 16
    optimizer: str = "adamw"
    learning_rate: float = 3e-3
    final_rate_ratio: float = 0.01
    weight_decay: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0
    optimizer_impl: str = "auto"

    def __post_init__(self) -> None:
        """Raises: RecipeError: a value that cannot be."""
        _check(self, OptimizerRecipe, at_least_1="steps", not_negative="warmup_steps weight_decay clip_norm")
        for name in ("beta1", "beta2"):
            _require(self, 0 <= getattr(self, name) < 1, name, "must be in [0, 1)")
        _require(self, self.learning_rate > 0, "learning_rate", "must be greater than 0")
        _require(self, 0 <= self.final_rate_ratio <= 1, "final_rate_ratio", "must be in [0, 1]")
        _require(self, self.warmup_steps < self.steps, "warmup_steps", f"must be smaller than steps={self.steps}")
        fusible = self.optimizer in ("adamw", "sgd") or self.optimizer_impl != "fused"
        _require(self, fusible, "optimizer_impl", f"must be another: {self.optimizer} has no fused kernel")


@dataclass(frozen=True)
class RankRecipe:
    """How each rank computes, and what it writes down.

    Attributes:
        device: auto, cpu or cuda.
        precision: of the matrix products: fp32, tf32, bf16 or fp16; the weights are kept in float32.
        compile: off, or a mode of torch.compile: default, reduce-overhead, max-autotune.
        cuda_graph: capture the whole step and launch it as one.
        ddp: how several ranks average their gradients: torch's DDP, or chapter 09's overlapped, bucketed or naive.
        log_every: updates between two records.
        eval_every: updates between two validations; 0 validates only at the end.
        checkpoint_every: updates between two checkpoints; 0 writes one only when a signal asks the run to end.
        track: where records go besides the run's own file: any of tensorboard, wandb.
    """

    device: str = "auto"
    precision: str = "fp32"
    compile: str = "off"
    cuda_graph: bool = False
    ddp: str = "torch"
    log_every: int = 10
    eval_every: int = 54
    checkpoint_every: int = 0
    track: tuple[str, ...] = ("tensorboard",)

    def __post_init__(self) -> None:
        """Raises: RecipeError: a value that cannot be."""
        _check(self, RankRecipe, at_least_1="log_every", not_negative="eval_every checkpoint_every")
        whole = not (self.cuda_graph and self.compile in ("reduce-overhead", "max-autotune"))
        _require(self, whole, "compile", "captures graphs of its own in this mode, so cuda_graph must be off")
        known = all(kind in ("tensorboard", "wandb") for kind in self.track)
        _require(self, known, "track", "may name tensorboard and wandb only")


@dataclass(frozen=True)
class LoopRecipe(RankRecipe, OptimizerRecipe):
    """What the training loop asks for, whatever the task."""

    def __post_init__(self) -> None:
        """Raises: RecipeError: an optimizer that cannot be in a CUDA graph."""
        OptimizerRecipe.__post_init__(self)
        RankRecipe.__post_init__(self)
        fits = not (self.cuda_graph and self.precision == "fp16") or self.optimizer_impl == "fused"
        _require(self, fits, "optimizer_impl", "must be fused in a CUDA graph with fp16: others ask the host to look")
        graphed = not (self.cuda_graph and self.optimizer == "sgd")
        _require(self, graphed, "optimizer", "must be another in a CUDA graph: sgd reads its rate on the host")


@dataclass(frozen=True)
class Recipe(LoopRecipe, DataRecipe, ModelRecipe):
    """Every knob of one run of the weather model. Saved as ``recipe.json`` beside the run, so that it can be repeated.

    It is made of four smaller recipes, one for each of those whom a knob concerns.

    Attributes:
        preset: where the defaults came from.
        seed: of the initial weights, the shuffling and the augmentation.
    """

    preset: str = "smoke"
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises: RecipeError: naming the knob, its value and what it may be."""
        ModelRecipe.__post_init__(self)
        DataRecipe.__post_init__(self)
        LoopRecipe.__post_init__(self)
        _check(self, Recipe, not_negative="seed")
        _require(self, self.seed < 2**63, "seed", "must be below 2**63")

    @classmethod
    def of(cls, preset: Preset, **changes: object) -> "Recipe":
        """The recipe of a preset, with some knobs changed. Warm-up takes a tenth of the steps unless set.

        Raises:
            RecipeError: no such knob, or a value that cannot be.
        """
        unknown = sorted(set(changes) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise RecipeError(f"recipe: no knob {', '.join(unknown)}; see dltutorial train --help")
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


def knob_help() -> dict[str, str]:
    """What each knob of a recipe does, as the docstrings of its parts say."""
    texts: dict[str, str] = {}
    names: list[str] = []
    for part in reversed(Recipe.__mro__[:-1]):
        for line in (part.__doc__ or "").partition("Attributes:")[2].splitlines():
            if match := re.fullmatch(r" {8}([a-z][\w, ]*): (.*)", line):
                names = match[1].split(", ")
                texts |= dict.fromkeys(names, match[2])
            elif line.strip() and names:
                texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return {field.name: texts.get(field.name, "").replace("%", "%%") for field in dataclasses.fields(Recipe)}


def read_knobs(file: Path) -> dict:
    """The knobs a JSON file sets, lists turned into tuples.

    Raises:
        RecipeError: the file cannot be read or does not hold one JSON object.
    """
    try:
        knobs = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"cannot read recipe {file}: {error.strerror}; give the path of a JSON file") from error
    except ValueError as error:
        raise RecipeError(f"recipe {file} is not JSON ({error}); write it like a run's recipe.json") from error
    if not isinstance(knobs, dict):
        raise RecipeError(f"recipe {file} holds no JSON object; write it like a run's recipe.json")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in knobs.items()}


def _check(recipe: Any, part: type, at_least_1: str = "", not_negative: str = "") -> None:
    """Types, choices and signs of one part's knobs. A whole number passes for a float; nothing else is converted."""
    for name, kind in part.__annotations__.items():
        value = getattr(recipe, name)
        wanted = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}.get(kind, (tuple,))
        if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
            raise RecipeError(f"recipe: {name}={value!r} is not of type {getattr(kind, '__name__', kind)}; change it")
        if isinstance(value, float) and not abs(value) < float("inf"):
            raise RecipeError(f"recipe: {name}={value!r} is not finite; change it")
        if name in CHOICES:
            _require(recipe, value in CHOICES[name], name, f"must be one of {', '.join(CHOICES[name])}")
    for name in at_least_1.split():
        _require(recipe, getattr(recipe, name) >= 1, name, "must be at least 1")
    for name in not_negative.split():
        _require(recipe, getattr(recipe, name) >= 0, name, "must not be negative")


def _require(recipe: Any, holds: bool, name: str, rule: str) -> None:
    if not holds:
        raise RecipeError(f"recipe: {name}={getattr(recipe, name)!r}, but {name} {rule}; change it")
