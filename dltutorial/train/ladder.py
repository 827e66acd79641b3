"""The ladder: from what a newcomer writes to the best this machine can do, one knob at a time.

In: sizes (a preset) and a device. Out: the naive recipe, and rungs in the order in which the chapters introduced
them. A rung is a few knobs of a recipe, and a layout of the data on disk. One that cannot be here says why.
``step_breakdown`` predicts rungs, ``compare`` measures them. The naive steps follow the published ladder (NERSC's
tutorials, SC21 to SC25).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dltutorial import machine
from dltutorial.config import Preset, Recipe
from dltutorial.data import convert, store
from dltutorial.train import compiling

COMPRESSED, PLAIN, MAPPED = "hdf5-auto-gzip4", "hdf5-chunk1", "npy"  # layouts, the slowest to read first
_STEPS = 100_000  # of the learning-rate schedule: a ladder never comes near its end


@dataclass(frozen=True)
class Variant:
    """A way to train: the knobs, and how the data lie on disk."""

    recipe: Recipe
    layout: str = COMPRESSED

    def taking(self, *rungs: "Rung") -> "Variant":
        """The same with the knobs of some rungs turned."""
        knobs: dict[str, Any] = {name: value for rung in rungs for name, value in rung.knobs.items()}
        layout = next((rung.layout for rung in reversed(rungs) if rung.layout), self.layout)
        return Variant(dataclasses.replace(self.recipe, **knobs), layout)


@dataclass(frozen=True)
class Rung:
    """One step of the ladder.

    Attributes:
        name: one word.
        change: what is done, in a few words.
        knobs: of the recipe, name → value.
        layout: of the data on disk; "" leaves it as it is.
        missing: why it cannot be taken here; "" if it can.
    """

    name: str
    change: str
    knobs: Mapping[str, object] = field(default_factory=dict)
    layout: str = ""
    missing: str = ""


def baseline(preset: Preset, device: str, layout: str = COMPRESSED, **knobs: object) -> Variant:
    """What a newcomer writes: float32, a loop over weights, the loss read after every step, nothing compiled.

    Attention goes by its formula where its weights fit into memory; see ``fits``. The network forecasts the next state
    itself, not the change: its loss starts near 1 and falls at once, so that a few updates tell a wrong step from a
    right one. ``knobs`` are other sizes.
    """
    run = {"steps": _STEPS, "warmup_steps": 4, "eval_every": 0, "track": (), "predict_change": False}
    naive = {"loader": "naive", "log_every": 1, "optimizer_impl": "for-loop", "fused_attention": False}
    recipe = Recipe.of(preset, **run | naive | {"device": device} | knobs)
    return Variant(recipe if fits(recipe) else dataclasses.replace(recipe, fused_attention=True), layout)


def rungs(start: Variant, device: str, every: int = 4) -> tuple[Rung, ...]:
    """All rungs above a baseline, in the order of the chapters; once it is read seldom, the loss is every ``every``."""
    wrong = "" if fits(start.recipe) else "is the baseline's already: by its formula attention would not fit in memory"
    on_cuda = device == "cuda"
    no_device = "" if on_cuda else "no device works meanwhile, so reading it costs nothing"
    compiler = compiling.missing(device)
    precision, units = best_precision(device)
    return (
        Rung("loader", "memory map, one buffer a batch, read ahead", {"loader": "best"}, MAPPED),
        Rung("loss", f"read every {every} steps", {"log_every": every}, missing=no_device),
        Rung("attention", "one fused kernel", {"fused_attention": True}, missing=wrong),
        Rung("precision", f"{precision} products", {"precision": precision}, missing=units),
        Rung("optimizer", "one fused kernel", {"optimizer_impl": "fused"}),
        Rung("compile", "torch.compile", {"compile": "default"}, missing=f"needs {compiler}" if compiler else ""),
        Rung("graph", "one CUDA graph", {"cuda_graph": True}, missing="" if on_cuda else "needs a CUDA GPU"),
    )


def side_rungs(device: str) -> tuple[Rung, ...]:
    """Rungs beside the ladder, each measured alone: tf32 where it is another way to speed products up."""
    return (Rung("tf32", "tf32 products", {"precision": "tf32"}),) if _has_unit(device, "tf32") else ()


def routes(steps: Sequence[Rung], beside: Sequence[Rung] = ()) -> dict[str, tuple[Rung, ...]]:
    """What is to be measured, name → rungs taken: the baseline, each rung alone, each on top of those before.

    Rungs that cannot be here are left out. The climb's first step is the first rung alone.
    """
    taken = [rung for rung in steps if not rung.missing]
    alone = {f"only {rung.name}": (rung,) for rung in (*taken, *beside)}
    climb = {f"+ {taken[n - 1].name}": tuple(taken[:n]) for n in range(2, len(taken) + 1)}
    return {"baseline": ()} | alone | climb


def best_precision(device: str) -> tuple[str, str]:
    """The precision that this device has units for, and why there is none ("" if there is)."""
    for name in ("bf16", "fp16"):
        if _has_unit(device, name):
            return name, ""
    return "bf16", "no units for it here: slower, and predicted to be"


def attention_bytes(recipe: Recipe) -> int:
    """What attention by its formula keeps: T × T weights a head and sample in every layer, three times in the last.

    The backward pass needs each layer's softmax; while one layer is at work there are its scores and a gradient too.
    """
    return 4 * recipe.global_batch_size * recipe.heads * recipe.n_tokens**2 * (recipe.depth + 2)


def fits(recipe: Recipe) -> bool:
    """Whether attention by its formula fits: in half of the memory, since there is more to keep than its weights."""
    gpus = machine.accelerators() if recipe.device == "cuda" else ()
    free = gpus[0].memory_bytes if gpus else machine.memory_bytes()[1]
    return free is None or attention_bytes(recipe) < free / 2


def data(source: Path, variants: Mapping[str, Variant], years: int = 2) -> dict[str, store.Split]:
    """The first training years in all layouts that the variants read, layout → split; written if not there yet."""
    layouts = {variant.layout for variant in variants.values()}
    folders = {layout: convert.convert(source, layout, splits=("train",), years=years) for layout in layouts}
    return {layout: store.open_split(folder, "train") for layout, folder in folders.items()}


def _has_unit(device: str, dtype: str) -> bool:
    """Whether the device multiplies matrices of this type faster than float32."""
    if device == "cpu":
        return dtype == "bf16" and not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(machine.cpu_units() or ())
    return any(dtype in (gpu.tensor_core_dtypes or ()) for gpu in machine.accelerators()[:1])
