"""What ``dltutorial bench`` measures: for each name a function of a preset and repeats that yields rows.

Variants take turns in one process; a prediction is made before its measurement. They call what the chapters call.
"""

import dataclasses
import functools
import statistics
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from dltutorial import machine
from dltutorial.config import LoopRecipe, Preset, Recipe
from dltutorial.course.bench import BenchRow
from dltutorial.errors import CourseError
from dltutorial.profile import peaks
from dltutorial.profile.timing import alternate


def loaders(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """Samples per second of every rung, beside its prediction; of every layout."""
    from dltutorial.data import formats, loader_ladder
    from dltutorial.data.loaders import LOADERS

    machine.use_cores(1)  # one core for the loader; the other is free for a worker
    splits, batch_size = loader_ladder.prepare(preset), min(8, preset.global_batch_size)
    costs = loader_ladder.measure_costs(splits["hdf5-chunk1-gzip4"], splits["npy"], batch_size)
    device = machine.device()
    rungs = loader_ladder.rungs(device)
    variants = {
        rung.cause: loader_ladder.whole_loader(splits[rung.layout], batch_size, rung.loader, device) for rung in rungs
    }
    copy = "copy of the same bytes from the page cache"
    variants[copy] = lambda: loader_ladder.copies(splits["npy"], batch_size)
    found = loader_ladder.rates(variants, batch_size, rounds=repeats)
    for rung in rungs:
        predicted = 1 / costs.pair_s(formats.open_year(splits[rung.layout].files[0]), LOADERS[rung.loader], device)
        share = statistics.median(np.array(found[rung.cause]) / found[copy])  # by turn: a slow moment hits both
        yield BenchRow(rung.cause, found[rung.cause], "samples/s", predicted, {"of the copy": f"{share:.0%}"})
    yield BenchRow(copy, found[copy], "samples/s")
    layouts = {name: loader_ladder.whole_loader(split, batch_size, "lean", "cpu") for name, split in splits.items()}
    for name, samples in loader_ladder.rates(layouts, batch_size, rounds=repeats).items():
        megabytes = sum(map(formats.stored_bytes, splits[name].files)) / 1e6
        yield BenchRow(f"lean loader, {name}", samples, "samples/s", more={"MB on disk": f"{megabytes:.1f}"})


def precision(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """Seconds of a large matrix product and of an update, for every precision, beside what the peaks predict.

    Of a float32 update, matrix products take FLOP / peak at least; in another precision only they change.
    """
    from dltutorial.train.forecasting import build_model, squared_error
    from dltutorial.train.precision import Precision
    from dltutorial.train.step import make_optimizer, make_step

    machine.use_cores()
    found, n = peaks.measure(), 4096 if machine.device() == "cuda" else 1024
    peak = {name: figure.best for name in ("fp32", "tf32", "bf16", "fp16") if (figure := found.matmul.get(name))}
    for name in [name for name in peak if peak["fp32"] > 8 * peak[name]]:  # without units it takes a hundred times
        print(f"{name} left out: its products take {peak['fp32'] / peak.pop(name):.0f} × as long as float32's here")
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    x_NN = {name: torch.randn(n, n, device=found.device).to(dtypes.get(name, torch.float32)) for name in peak}

    def product(name: str) -> None:
        with Precision(name, found.device).products():
            x_NN[name] @ x_NN[name]

    for name, timing in alternate({name: functools.partial(product, name) for name in peak}, repeats).items():
        more = {"GFLOP/s": f"{2e-9 * n**3 / timing.median_s:,.0f}"}
        yield BenchRow(f"product {n} × {n}, {name}", timing.samples_s, predicted=2 * n**3 / peak[name], more=more)
    updates = {}
    for name in peak:
        recipe = Recipe.of(preset, precision=name)
        model = build_model(recipe)
        step = make_step(model, squared_error, make_optimizer(model, recipe), recipe)
        batch = _noise(recipe, recipe.global_batch_size)
        updates[name] = functools.partial(step, *batch)
    timings = alternate(updates, repeats)
    product_s = {name: 3 * recipe.global_batch_size * recipe.forward_flop / peak[name] for name in peak}
    rest_s = max(0.0, timings["fp32"].best_s - product_s["fp32"])
    for name, timing in timings.items():
        told_s = product_s["fp32"] if name == "fp32" else rest_s + product_s[name]
        more = {"× fp32": f"{timings['fp32'].median_s / timing.median_s:.2f}"}
        yield BenchRow(f"ViT update, {name}", timing.samples_s, predicted=told_s, more=more)


def graphs(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """What starting an operation costs; a launch-bound network and the transformer, eager and, on a GPU, replayed.

    Predictions are made from three smaller networks: time against operations is a line, either way.
    """
    from dltutorial.models.tiny import NarrowMLP
    from dltutorial.train.forecasting import build_model

    def narrow(depth: int) -> torch.nn.Module:
        return NarrowMLP((5, 8, 8), 16, depth).to(device)

    machine.use_cores(1)  # one thread starts the operations
    device, recipe = machine.device(), Recipe.of(preset)
    x_BCHW = torch.randn(8, 5, 8, 8, device=device)
    small = [_ways(functools.partial(narrow, depth), (x_BCHW, x_BCHW.roll(1, -1))) for depth in (4, 10, 16)]
    found = alternate({f"{how} {n}": run for n, runs in small for how, run in runs.items()}, repeats)
    line = {}
    for how in small[0][1]:
        line[how] = np.poly1d(np.polyfit([n for n, _ in small], [found[f"{how} {n}"].best_s for n, _ in small], 1))
        yield BenchRow(f"one operation in {'an' if how == 'eager' else 'a'} {how} step", (float(line[how][1]),))
    deep = _ways(lambda: narrow(32 if preset.name == "smoke" else 64), (x_BCHW, x_BCHW.roll(1, -1)))
    whole = _ways(lambda: build_model(recipe), _noise(recipe, 4))
    for name, (n, runs) in (("narrow network", deep), ("transformer", whole)):
        timings, told = alternate(runs, repeats), {}
        if name == "narrow network":
            told = {how: float(line[how](n)) for how in line}
        elif "replayed" in line:  # a step that is longer than its launches hides them: nothing to gain
            eager_s, launches_s = timings["eager"].median_s, float(line["eager"](n))
            told["replayed"] = eager_s if eager_s > launches_s else float(line["replayed"](n))
        for how, timing in timings.items():
            more = {"operations": f"{n:,}", "gain": f"{timings['eager'].median_s / timing.median_s:.2f} ×"}
            yield BenchRow(f"{name}, {how}", timing.samples_s, predicted=told.get(how), more=more)


def _ways(
    make: Callable[[], torch.nn.Module], batch: tuple[torch.Tensor, ...]
) -> tuple[int, dict[str, Callable[[], torch.Tensor]]]:
    """Operations in a training step of a model; the step as it is, and on a GPU its replay on a twin, captured."""
    from dltutorial.profile import work
    from dltutorial.train.forecasting import squared_error
    from dltutorial.train.graphs import WARMUP_STEPS, CudaGraph, GraphedStep
    from dltutorial.train.step import make_optimizer, make_step

    knobs = LoopRecipe(cuda_graph=True, optimizer_impl="fused", clip_norm=0.0)  # an optimizer as capture needs it
    plain = dataclasses.replace(knobs, cuda_graph=False)
    models = {"eager": make()} | ({"replayed": make()} if batch[0].is_cuda else {})
    steps = {how: make_step(m, squared_error, make_optimizer(m, knobs), plain) for how, m in models.items()}
    if "replayed" in steps:
        steps["replayed"] = GraphedStep(steps["replayed"], CudaGraph())
    for step in steps.values():
        for _ in range(WARMUP_STEPS + 1):
            step(*batch)
    n = len(work.count(lambda: steps["eager"](*batch)).operators)
    return n, {how: functools.partial(step, *batch) for how, step in steps.items()}


def ddp(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """Seconds of an update with each wrapper, beside the bucket model; a rank for each GPU, or two on the CPU.

    The model's messages are all as quick as the quickest one was. Where other work shares the cores, messages wait:
    updates then take longer than predicted, naive ones too, which send a message for each parameter.
    """
    from dltutorial.train import ddp_comparison

    n_gpus = len(machine.accelerators()) if machine.device() == "cuda" else 0
    if n_gpus == 1:
        raise CourseError("bench ddp needs a GPU for each rank, and there is one; set CUDA_VISIBLE_DEVICES= for CPUs")
    ranks, recipe = n_gpus or 2, Recipe(n_lat=32, n_lon=64, dim=256, depth=8, heads=4, global_batch_size=8)
    if preset.name in ("gpu", "cluster"):
        recipe = Recipe.of(preset, global_batch_size=4 * ranks)
    cap_mib = 25.0 if machine.device() == "cuda" else 4.0  # the network is small on a CPU
    step, link = ddp_comparison.measure_parts(ranks, recipe, repeats)
    found = ddp_comparison.compare(ranks, recipe, repeats=repeats, bucket_cap_mb=cap_mib)
    for name, timing in found.items():
        cap_bytes = 0 if name == "naive" else cap_mib * 2**20
        told_s = step.seconds(link, cap_bytes, overlap=name not in ("naive", "bucketed"))
        told_s = step.backward_s + step.rest_s if name == ddp_comparison.ALONE else told_s
        share = timing.median_s / found[ddp_comparison.TORCH].median_s
        more = {"ranks": f"{ranks}", "of torch DDP": f"{share:.2f}"}
        yield BenchRow(name, timing.samples_s, predicted=told_s, more=more)


def collectives(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """Times and bandwidths, as nccl-tests defines them, from the least time; the fewest ranks predict the others."""
    from dltutorial.comm import cost, mpi, stopwatch

    machine.use_cores()
    n_gpus = torch.cuda.device_count() if machine.device() == "cuda" else 0
    backends: dict[str, Any] = {"gloo": functools.partial(stopwatch.clock, timeout_s=600), "mpi": mpi.clock}
    if n_gpus < 2:
        print(f"NCCL: not available here (a rank needs a GPU of its own; {n_gpus} GPUs)")
    else:
        backends["nccl"] = functools.partial(stopwatch.clock, backend="nccl", timeout_s=600)
    for backend, clock in backends.items():
        regimes: cost.Regimes | None = None
        for p in (2, 4) if preset.name == "smoke" else (2, 4, 8):
            if backend == "nccl" and p > n_gpus:
                continue
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", ".*ranks share")
                    names, sizes = ("backend", *stopwatch.OURS), [2**n for n in (10, 14, 16, 18, 20, 22, 24, 26)]
                    found = clock(names, p, sizes, 4 * repeats, 2)
            except CourseError as error:  # no MPI: the other backends' figures stand
                print(error)
                break
            taken = {key: cost.counts(key[0], p, key[1], 2) for key in found if key[0] != "backend"}
            for (name, n), timing in found.items():
                told_s = regimes.seconds(n, taken[name, n]) if regimes and name != "backend" else None
                bus = stopwatch.bus_bandwidth(name, p, n, timing.best_s)
                more = {"least": f"{1e3 * timing.best_s:.3f} ms", "algbw, GB/s": f"{n / timing.best_s / 1e9:.3f}"}
                more |= {"busbw, GB/s": f"{bus / 1e9:.3f}"}
                more |= {"least / predicted": f"{timing.best_s / told_s:.2f}"} if told_s else {}
                what = f"{backend}, {p} ranks, {n // 2**10:,} KiB, {name}"
                yield BenchRow(what, timing.samples_s, predicted=told_s, more=more)
            regimes = regimes or cost.fit_regimes([(key[1], taken[key], found[key].best_s) for key in taken])


def ladder(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """Samples per second of the baseline, each knob alone and on top of others, beside what a step's halves promise."""
    from dltutorial.data import weather
    from dltutorial.train import ladder as climbing
    from dltutorial.train.precision import units_for

    device = machine.device()
    machine.use_cores()
    start = climbing.baseline(preset, device)
    missing, rungs = climbing.missing(start), climbing.rungs(device)
    variants = climbing.variants(start, {name: rungs[name] for name in rungs if name not in missing})
    if units_for("tf32"):
        variants["only tf32"] = dataclasses.replace(start, precision="tf32")
    # On a GPU the published model stands on data that lie uncompressed: inflated, a batch of them would take minutes.
    layout = climbing.PLAIN if preset.name in ("gpu", "cluster") else climbing.COMPRESSED
    data, peak = climbing.data(weather.ensure(preset), layout), peaks.measure()
    told_s = {name: climbing.halves_s(recipe, data, repeats) for name, recipe in variants.items()}
    results = climbing.compare(variants, data, rounds=repeats, turn_s=1.0 if device == "cuda" else 0.5)
    best = max(figure.best for figure in peak.matmul.values() if figure)
    for name, result in results.items():
        recipe, median = variants[name], statistics.median(result.samples_per_s)
        more = {"gain, quickest rounds": f"{result.best / results['baseline'].best:.2f} ×"}
        more["of the best matmul peak"] = f"{3 * recipe.forward_flop * median / best:.1%}"
        more["peak memory"] = f"{result.peak_bytes / 1e9:.2f} GB" if result.peak_bytes else "not available"
        more["final loss"] = f"{result.final_loss:.5f} after {result.updates}"
        yield BenchRow(name, result.samples_per_s, "samples/s", recipe.global_batch_size / told_s[name], more)
    print(*(f"no {name}: {why}" for name, why in missing.items()), sep="\n")


def scaling(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """Real steps on as many ranks as cores or GPUs; published runs, as measured and as a model has them."""
    from dltutorial.scaling import published
    from dltutorial.train.ddp_comparison import TORCH, compare

    units = len(machine.accelerators()) if machine.device() == "cuda" else machine.cores()
    for p in range(1, min(8, units) + 1):
        recipe = Recipe.of(preset, global_batch_size=p * max(1, preset.global_batch_size // 4))
        yield BenchRow(f"real training, ranks: {p}", compare(p, recipe, [TORCH], 2 * repeats)[TORCH].samples_s)
    for run in published.runs():
        yield BenchRow(f"published: {run.what} ({run.key})", (run.efficiency,), "of ideal", run.predicted())


def _noise(recipe: Recipe, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch: what the fields show makes no difference to the time."""
    x_BCHW = torch.randn(batch_size, recipe.n_channels, recipe.n_lat, recipe.n_lon, device=machine.device())
    return x_BCHW, x_BCHW.roll(1, -1)
