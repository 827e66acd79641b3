"""The ladder: from what a newcomer writes to the best this machine can do, one knob at a time.

In: sizes (a preset) and a device. Out: the naive recipe, and rungs in the order in which the chapters introduced
them. A rung is a few knobs of a recipe, and a layout of the data on disk. One that cannot be here says why. The naive
steps follow the published ladder (NERSC's tutorials, SC21 to SC25). ``step_breakdown`` predicts rungs.

``compare`` measures variants in one process, in turns, each with its own model, optimizer and data. What is timed is
the real training loop. A turn begins with a few updates that do not count; the first round, in which kernels are chosen
and compiled, does not count at all.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dltutorial import machine
from dltutorial.config import Preset, Recipe
from dltutorial.data import convert, store
from dltutorial.data.loaders import loader_config
from dltutorial.errors import CourseError
from dltutorial.train import compiling
from dltutorial.train.forecasting import batches, build_model, squared_error
from dltutorial.train.graphs import WARMUP_STEPS
from dltutorial.train.loop import Progress, loop
from dltutorial.train.task import Task

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


@dataclass(frozen=True)
class Result:
    """What one variant did.

    Attributes:
        samples_per_s: one for each round that counts.
        final_loss: the mean over the last updates that all variants made.
        updates: how many updates that loss is after; the same for all.
        first_s: seconds of its first turn: warm-up, compilation and capture.
        peak_bytes: the most memory on the device, the other variants' not counted; None on a CPU ("not available").
    """

    samples_per_s: tuple[float, ...]
    final_loss: float
    updates: int
    first_s: float
    peak_bytes: int | None

    @property
    def median(self) -> float:
        """Samples per second, the middle round: what to expect."""
        return statistics.median(self.samples_per_s)

    @property
    def best(self) -> float:
        """Samples per second, the quickest round: what it can do when nothing disturbs it."""
        return max(self.samples_per_s)


def compare(
    variants: Mapping[str, Variant],
    data: Mapping[str, store.Split],
    *,
    rounds: int = 5,
    turn_s: float = 0.5,
    seen: Callable[[str], object] = lambda name: None,
) -> dict[str, Result]:
    """Let the variants take turns; name → result.

    Args:
        variants: name → knobs and layout. Their ``log_every`` may differ, but each must divide the largest.
        data: layout → training data.
        rounds: that count; one more warms up.
        turn_s: least seconds of the updates that count in a turn.
        seen: called with a variant's name after each of its turns.

    Raises:
        CourseError: the loss of a variant is not finite, or a variant cannot be here.
    """
    if rounds < 1 or turn_s < 0:
        raise CourseError(f"{rounds} rounds of {turn_s:g} s measure nothing; take at least one round")
    every = max((variant.recipe.log_every for variant in variants.values()), default=1)
    runners = {name: _Runner(variant.recipe, data[variant.layout]) for name, variant in variants.items()}
    for _ in range(rounds + 1):
        for name, runner in runners.items():
            runner.turn(turn_s)
            seen(name)
    common = min(runner.history[-1].step for runner in runners.values()) // every * every
    if common == 0:
        raise CourseError(f"the slowest variant made less than {every} updates, too few to compare; add rounds")
    return {name: runner.result(common, every) for name, runner in runners.items()}


def gains(results: Mapping[str, Result]) -> dict[str, float]:
    """How many times as fast as the first variant each is, by their quickest rounds: others can only slow one down."""
    first = next(iter(results.values()))
    return {name: result.best / first.best for name, result in results.items()}


def loss_difference(results: Mapping[str, Result]) -> float:
    """The largest relative difference of a final loss from the first variant's."""
    first, *others = (result.final_loss for result in results.values())
    return max((abs(loss / first - 1) for loss in others), default=0.0)


class _Runner:
    """One variant between its turns."""

    def __init__(self, recipe: Recipe, split: store.Split) -> None:
        before_bytes = _allocated_bytes()
        model = build_model(recipe)
        device = next(model.parameters()).device
        task = Task(model, lambda skip: batches(split, recipe, device, skip), squared_error)
        self._recipe, self._records = recipe, loop(task, recipe)
        self._settles = 1 + (0 if recipe.loader == "plain" else loader_config(recipe.loader).prefetch)
        self.history: list[Progress] = []
        self._rates: list[float] = []
        self._own_bytes, self._peak_bytes, self._first_s = _allocated_bytes() - before_bytes, 0, 0.0

    def turn(self, turn_s: float) -> None:
        """Some updates that do not count, among them those whose batches were read ahead; then some that do."""
        before_bytes, start_s = _allocated_bytes(), time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        settled = self._updates() + (
            WARMUP_STEPS + 2 if self._recipe.cuda_graph and not self._first_s else self._settles
        )
        while self._updates() < settled:
            self.history.append(next(self._records))
        counted_s, counted = 0.0, 0
        while counted == 0 or counted_s < turn_s:
            before = self._updates()
            self.history.append(next(self._records))
            counted += self._updates() - before
            counted_s += (self._updates() - before) * self.history[-1].step_s
        if self._first_s:
            self._rates.append(counted * self._recipe.global_batch_size / counted_s)
        else:
            self._first_s = time.perf_counter() - start_s
        if torch.cuda.is_available():
            others_bytes = before_bytes - self._own_bytes
            self._peak_bytes = max(self._peak_bytes, torch.cuda.max_memory_allocated() - others_bytes)
            self._own_bytes += _allocated_bytes() - before_bytes

    def result(self, updates: int, every: int) -> Result:
        """With the mean loss of the last ``every`` of the first ``updates``."""
        last = [record.loss for record in self.history if updates - every < record.step <= updates]
        return Result(tuple(self._rates), statistics.mean(last), updates, self._first_s, self._peak_bytes or None)

    def _updates(self) -> int:
        return self.history[-1].step if self.history else 0


def _allocated_bytes() -> int:
    """On the GPU, once its work is done; 0 on a CPU."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()
