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
    "optimizer": ("adamw", "sgd", "lars", "lamb"),
    "optimizer_impl": ("auto", "for-loop", "foreach", "fused"),
    "loader": ("plain", "naive", "open", "lean", "batched", "prefetch", "device", "best"),
})  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """Every knob of one training run. Saved as ``recipe.json`` beside the run, so that the run can be repeated.

    Attributes:
        preset: where the defaults came from.
        seed: of the initial weights, the shuffling and the augmentation.
        n_lat, n_lon: grid points of a field; taken from the data unless set.
        n_channels: fields in a sample; taken from the data unless set.
        patch: edge of the square of grid points that becomes one token.
        dim: width of a token.
        depth: transformer blocks.
        heads: attention heads; they share dim equally.
        predict_change: the network gives the change from now to the next state; otherwise the next state itself.
        global_batch_size: samples in one update, over all ranks.
        steps: updates in all.
        warmup_steps: updates in which the learning rate rises linearly to its peak.
        optimizer: adamw, sgd (with momentum), lars (made for convolutions) or lamb (made for transformers).
        learning_rate: the peak of the schedule; each optimizer has its own scale.
        final_rate_ratio: the cosine ends at this share of the peak.
        weight_decay: on matrices only; lars and lamb decay the patch embedding and positions, too.
        beta1, beta2: the memory of AdamW's and LAMB's two averages; beta1 is the momentum of sgd and lars.
        clip_norm: gradients are scaled down to this global norm; 0 switches it off.
        precision: of the matrix products: fp32, tf32, bf16 or fp16; the weights are kept in float32.
        fused_attention: one kernel for attention instead of products and a softmax that keeps all T × T weights.
        compile: off, or a mode of torch.compile: default, reduce-overhead, max-autotune.
        optimizer_impl: auto (torch's choice), for-loop, foreach or fused.
        cuda_graph: capture the whole step and launch it as one.
        roll: augment by a random shift along longitude.
        loader: plain (chapter 01's), or one of chapter 03: naive, open, lean, batched, prefetch, device, best.
        workers: processes that load data beside the training process; only plain, naive, open and lean take any.
        log_every: updates between two records.
        eval_every: updates between two validations; 0 validates only at the end.
        checkpoint_every: updates between two checkpoints; 0 writes one only when a signal asks the run to end.
        device: auto, cpu or cuda.
        track: where records go besides the run's own file: any of tensorboard, wandb.
    """

    preset: str = "smoke"
    seed: int = 0
    n_lat: int = 64
    n_lon: int = 128
    n_channels: int = 5
    patch: int = 8
    dim: int = 128
    depth: int = 4
    heads: int = 4
    predict_change: bool = True
    global_batch_size: int = 16
    steps: int = 160
    warmup_steps: int = 16
    optimizer: str = "adamw"
    learning_rate: float = 3e-3
    final_rate_ratio: float = 0.01
    weight_decay: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0
    precision: str = "fp32"
    fused_attention: bool = True
    compile: str = "off"
    optimizer_impl: str = "auto"
    cuda_graph: bool = False
    roll: bool = True
    loader: str = "plain"
    workers: int = 0
    log_every: int = 10
    eval_every: int = 54
    checkpoint_every: int = 0
    device: str = "auto"
    track: tuple[str, ...] = ("tensorboard",)

    def __post_init__(self) -> None:
        """Refuse a recipe that cannot be.

        Raises:
            RecipeError: naming the knob, its value and what it may be.
        """
        for field in dataclasses.fields(self):
            _check_type(field.name, getattr(self, field.name), field.type)
        counts = "n_lat n_lon n_channels patch dim depth heads global_batch_size steps log_every"
        for name in counts.split():
            self._require(getattr(self, name) >= 1, name, "must be at least 1")
        for name in ("seed", "warmup_steps", "workers", "eval_every", "checkpoint_every", "weight_decay", "clip_norm"):
            self._require(getattr(self, name) >= 0, name, "must not be negative")
        self._require(self.seed < 2**63, "seed", "must be below 2**63")
        for name in ("beta1", "beta2"):
            self._require(0 <= getattr(self, name) < 1, name, "must be in [0, 1)")
        self._require(self.learning_rate > 0, "learning_rate", "must be greater than 0")
        self._require(0 <= self.final_rate_ratio <= 1, "final_rate_ratio", "must be in [0, 1]")
        self._require(self.dim % self.heads == 0, "heads", f"must divide dim={self.dim}")
        for name in ("n_lat", "n_lon"):
            self._require(getattr(self, name) % self.patch == 0, name, f"must be divisible by patch={self.patch}")
        self._require(self.warmup_steps < self.steps, "warmup_steps", f"must be smaller than steps={self.steps}")
        for name, choices in CHOICES.items():
            self._require(getattr(self, name) in choices, name, f"must be one of {', '.join(choices)}")
        alone = not self.workers or self.loader in ("plain", "naive", "open", "lean")
        self._require(alone, "workers", f"must be 0: the {self.loader} loader takes none")
        whole = not (self.cuda_graph and self.compile in ("reduce-overhead", "max-autotune"))
        self._require(whole, "compile", "captures graphs of its own in this mode, so cuda_graph must be off")
        fits = not (self.cuda_graph and self.precision == "fp16") or self.optimizer_impl == "fused"
        self._require(fits, "optimizer_impl", "must be fused in a CUDA graph with fp16: others ask the host to look")
        fusible = self.optimizer in ("adamw", "sgd") or self.optimizer_impl != "fused"
        self._require(fusible, "optimizer_impl", f"must be another: {self.optimizer} has no fused kernel")
        graphed = not (self.cuda_graph and self.optimizer == "sgd")
        self._require(graphed, "optimizer", "must be another in a CUDA graph: sgd reads its rate on the host")
        known = all(kind in ("tensorboard", "wandb") for kind in self.track)
        self._require(known, "track", "may name tensorboard and wandb only")

    def _require(self, holds: bool, name: str, rule: str) -> None:
        if not holds:
            raise RecipeError(f"recipe: {name}={getattr(self, name)!r}, but {name} {rule}; change it")

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
    """What each knob of a recipe does, as its docstring says."""
    texts: dict[str, str] = {}
    names: list[str] = []
    section = (Recipe.__doc__ or "").partition("Attributes:")[2]
    for line in section.splitlines():
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


def _check_type(name: str, value: object, kind: object) -> None:
    """A whole number passes for a float, but a bool is no number and nothing else is converted."""
    wanted = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}.get(kind, (tuple,))
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        named = getattr(kind, "__name__", str(kind))
        raise RecipeError(f"recipe: {name}={value!r} is not of type {named}; change it")
    if isinstance(value, float) and not (abs(value) < float("inf")):
        raise RecipeError(f"recipe: {name}={value!r} is not finite; change it")
