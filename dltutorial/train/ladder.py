"""The ladder: from what a newcomer writes to the best this machine can do, one knob at a time.

In: a preset and a device. Out: the naive recipe, the rungs above it, and what each variant did in a race. A rung is a
few knobs of a recipe; one that cannot be here says why. The naive steps follow the published ladder (NERSC's
tutorials, SC21 to SC25).

A race runs the real training loop of all variants in one process, in turns, each with its own model, optimizer and
data. A turn begins with a few updates that do not count; the first round, in which kernels are chosen and compiled,
does not count at all.
"""

import dataclasses
import functools
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dltutorial.config import PUBLISHED, Preset, Recipe
from dltutorial.data import convert, store
from dltutorial.data.loaders import LOADERS, make_loader
from dltutorial.errors import CourseError
from dltutorial.profile.timing import alternate
from dltutorial.train import compiling
from dltutorial.train.forecasting import batches, build_model, squared_error
from dltutorial.train.graphs import WARMUP_STEPS
from dltutorial.train.loop import loop
from dltutorial.train.precision import units_for
from dltutorial.train.step import make_optimizer, make_step
from dltutorial.train.task import Task

COMPRESSED, PLAIN, MAPPED = "hdf5-auto-gzip4", "hdf5-chunk1", "npy"  # layouts, the slowest to read first
_STEPS = 100_000  # of the learning-rate schedule: a ladder never comes near its end


def baseline(preset: Preset, device: str, **knobs: Any) -> Recipe:
    """What a newcomer writes: float32, a loop over weights, the loss read after every step, nothing compiled.

    Attention goes by its formula, but not at the sizes of a GPU: of 4,050 tokens it would keep 118 GB. The network is
    the published one. It forecasts the next state itself, not the change: its loss starts near 1 and falls at once,
    so that a few updates tell a wrong step from a right one. ``knobs`` are other sizes.
    """
    run = {"steps": _STEPS, "warmup_steps": 4, "eval_every": 0, "track": ()} | PUBLISHED
    naive = {"loader": "naive", "log_every": 1, "optimizer_impl": "for-loop"}
    naive["fused_attention"] = preset.name in ("gpu", "cluster")
    return Recipe.of(preset, **run | naive | {"device": device} | knobs)


def rungs(device: str, every: int = 4) -> dict[str, dict[str, Any]]:
    """Name → knobs, in the order of the chapters; once it is read seldom, the loss is every ``every`` updates."""
    only_fp16 = device == "cuda" and units_for("fp16") and not units_for("bf16")
    return {
        "loader": {"loader": "best"}, "loss": {"log_every": every}, "attention": {"fused_attention": True},
        "precision": {"precision": "fp16" if only_fp16 else "bf16"}, "optimizer": {"optimizer_impl": "fused"},
        "compile": {"compile": "default"}, "graph": {"cuda_graph": True},
    }  # fmt: skip


def missing(start: Recipe) -> dict[str, str]:
    """The rungs that cannot be taken above a baseline, name → why."""
    why = {}
    if start.device != "cuda":
        why = {"loss": "no device works meanwhile, so reading it costs nothing", "graph": "needs a CUDA GPU"}
    if start.fused_attention:
        why["attention"] = "is the baseline's already: by its formula attention would not fit in memory"
    if not units_for(rungs(start.device)["precision"]["precision"]):
        why["precision"] = "no units for it here: slower, and predicted to be"
    if lacking := compiling.missing(start.device):
        why["compile"] = f"needs {lacking}"
    return why


def variants(start: Recipe, rungs: Mapping[str, Mapping[str, Any]]) -> dict[str, Recipe]:
    """What is to be measured: the baseline, each rung alone, each on top of those before.

    The climb's first step is the first rung alone.
    """
    alone, climb, top = {}, {}, start
    for number, (name, knobs) in enumerate(rungs.items()):
        alone[f"only {name}"] = dataclasses.replace(start, **knobs)
        top = dataclasses.replace(top, **knobs)
        if number > 0:
            climb[f"+ {name}"] = top
    return {"baseline": start} | alone | climb


def data(source: Path, layout: str = COMPRESSED, years: int = 2) -> dict[str, store.Split]:
    """The first training years as each loader is to find them, loader → split; written if not there yet."""
    layouts = {"naive": layout, "best": MAPPED}
    folders = {name: convert.convert(source, kind, splits=("train",), years=years) for name, kind in layouts.items()}
    return {name: store.open_split(folder, "train") for name, folder in folders.items()}


def halves_s(recipe: Recipe, data: Mapping[str, store.Split], repeats: int = 5) -> float:
    """Seconds of a step that its halves promise, measured apart: loading, and an update of a batch that is there.

    A device computes while its host loads, unless that waits for the loss; one processor does one after the other.
    """
    size, model = recipe.global_batch_size, build_model(recipe)
    config = dataclasses.replace(LOADERS[recipe.loader], prefetch=0)  # a thread would load between two calls
    loader = make_loader(data[recipe.loader], size, config, seed=recipe.seed, roll=recipe.roll, device=recipe.device)
    batch = [tensor.clone().to(recipe.device) for tensor in next(loader)]
    step = make_step(model, squared_error, make_optimizer(model, recipe), recipe)
    for _ in range(WARMUP_STEPS + 1):
        step(*batch)
    halves = {"load": functools.partial(next, loader), "update": functools.partial(step, *batch)}
    load_s, update_s = (timing.best_s for timing in alternate(halves, repeats, device=recipe.device).values())
    hidden = recipe.device != "cpu" and (recipe.log_every > 1 or LOADERS[recipe.loader].prefetch > 0)
    return max(load_s, update_s) if hidden else load_s + update_s


@dataclass(frozen=True)
class Result:
    """What one variant did.

    Attributes:
        samples_per_s: one for each round that counts.
        final_loss: the mean over the last updates that all variants made.
        updates: how many updates that loss is after; the same for all.
        peak_bytes: the most memory on the device, the other variants' not counted; None on a CPU ("not available").
    """

    samples_per_s: tuple[float, ...]
    final_loss: float
    updates: int
    peak_bytes: int | None


def compare(
    variants: Mapping[str, Recipe], data: Mapping[str, store.Split], *, rounds: int = 5, turn_s: float = 0.5
) -> dict[str, Result]:
    """Let the variants take turns; name → result.

    Args:
        variants: name → knobs. Their ``log_every`` may differ, but each must divide the largest.
        data: loader → training data.
        rounds: that count; one more warms up.
        turn_s: least seconds of the updates that count in a turn.

    Raises:
        CourseError: the loss of a variant is not finite, or a variant cannot be here.
    """
    if rounds < 1:
        raise CourseError(f"{rounds} rounds measure nothing; take at least one round")
    every = max(recipe.log_every for recipe in variants.values())
    losses: dict[str, dict[int, float]] = {name: {} for name in variants}
    runs = {name: _turns(recipe, data[recipe.loader], turn_s, losses[name]) for name, recipe in variants.items()}
    turns = [{name: next(run) for name, run in runs.items()} for _ in range(rounds + 1)]
    updates = min(max(seen) for seen in losses.values()) // every * every
    if updates == 0:
        raise CourseError(f"the slowest variant made less than {every} updates, too few to compare; add rounds")
    results = {}
    for name, seen in losses.items():
        (_, peak_bytes), *counted = (turn[name] for turn in turns)
        loss = statistics.mean(value for step, value in seen.items() if updates - every < step <= updates)
        results[name] = Result(tuple(samples_per_s for samples_per_s, _ in counted), loss, updates, peak_bytes)
    return results


def _turns(recipe: Recipe, split: store.Split, turn_s: float, losses: dict) -> Iterator[tuple[float, int | None]]:
    """One variant's turns: samples per second, and the most bytes that it had on the device up to the first turn's end.

    ``losses`` gets each record's, by its update. Each turn first uses up the batches that were read ahead while others
    had their turns; the first one also captures the graph.
    """
    on_cuda = torch.cuda.is_available()
    others_bytes = torch.cuda.memory_allocated() if on_cuda else 0
    if on_cuda:
        torch.cuda.reset_peak_memory_stats()
    model = build_model(recipe)
    device = next(model.parameters()).device
    records = loop(Task(model, lambda skip: batches(split, recipe, device, skip), squared_error), recipe)
    ahead, step, peak_bytes = LOADERS[recipe.loader].prefetch, 0, 0
    while True:
        counts_from = step + (WARMUP_STEPS + 2 if recipe.cuda_graph and step == 0 else 1 + ahead)
        counted, counted_s = 0, 0.0
        while counted == 0 or counted_s < turn_s:
            record = next(records)
            if step >= counts_from:
                counted += record.step - step
                counted_s += (record.step - step) * record.step_s
            step, losses[record.step] = record.step, record.loss
        if on_cuda:
            peak_bytes = peak_bytes or torch.cuda.max_memory_allocated() - others_bytes
        yield counted * recipe.global_batch_size / counted_s, peak_bytes or None
