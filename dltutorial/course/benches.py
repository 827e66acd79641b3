"""What ``dltutorial bench`` measures: for each name a function of a preset and repeats that yields rows.

Variants take turns in one process; a prediction is made before its measurement. They call what the chapters call.
"""

import dataclasses
import functools
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from dltutorial import machine
from dltutorial.config import LoopRecipe, Preset, Recipe
from dltutorial.course.bench import BenchRow
from dltutorial.errors import CourseError
from dltutorial.profile import peaks
from dltutorial.profile.timing import alternate

SMOKE_BATCHES = (8, 32, 64, 128, 256, 512, 2048)


def loaders(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """Samples per second of every rung, beside its prediction; of every layout; of train's loader and a DataLoader."""
    from dltutorial.data import formats, loader_ladder
    from dltutorial.data.loaders import LOADERS, Pairs, endless_batches

    machine.use_cores(1)  # one core for the loader; the other is free for a worker
    splits, batch_size = loader_ladder.prepare(preset), min(8, preset.global_batch_size)
    costs = loader_ladder.measure_costs(splits["hdf5-chunk1-gzip4"], splits["npy"], batch_size)
    device, whole = machine.device(), loader_ladder.whole_loader
    rungs = loader_ladder.rungs(device)
    variants = {rung.cause: whole(splits[rung.layout], batch_size, rung.loader, device) for rung in rungs}
    copy = "copy of the same bytes from the page cache"
    variants[copy] = lambda: loader_ladder.copies(splits["npy"], batch_size)
    found = loader_ladder.rates(variants, batch_size, rounds=repeats)
    for rung in rungs:
        predicted = 1 / costs.pair_s(formats.open_year(splits[rung.layout].files[0]), LOADERS[rung.loader], device)
        share = statistics.median(np.array(found[rung.cause]) / found[copy])  # by turn: a slow moment hits both
        yield BenchRow(rung.cause, found[rung.cause], "samples/s", predicted, {"of the copy": f"{share:.0%}"})
    yield BenchRow(copy, found[copy], "samples/s")
    layouts = {name: whole(split, batch_size, "lean", "cpu") for name, split in splits.items()}
    for name, samples in loader_ladder.rates(layouts, batch_size, rounds=repeats).items():
        megabytes = sum(map(formats.stored_bytes, splits[name].files)) / 1e6
        yield BenchRow(f"lean loader, {name}", samples, "samples/s", more={"MB on disk": f"{megabytes:.1f}"})
    files = splits["hdf5-chunk1"]  # as data are made; the same work on both sides: read, normalise, roll, stack
    plain = "a plain DataLoader over h5py slices"
    for n in (0, 2):
        both: dict[str, Callable[[], Iterator]] = {}
        both[plain] = functools.partial(loader_ladder.plain_dataloader, files, batch_size, n)
        both["train's default"] = functools.partial(endless_batches, Pairs(files), batch_size, roll=True, workers=n)
        found = loader_ladder.rates(both, batch_size, rounds=repeats)
        for what, samples in found.items():
            times = np.divide(samples, found[plain])
            spread = f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
            yield BenchRow(f"{what}, {n} workers", samples, "samples/s", more={"× a plain DataLoader": spread})


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
        updates[name] = functools.partial(step, *_noise(recipe, recipe.global_batch_size))
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
    from dltutorial.train.forecasting import build_model

    machine.use_cores(1)  # one thread starts the operations
    recipe, narrow = Recipe.of(preset), Recipe(n_lat=8, n_lon=8, patch=4, dim=16, heads=2)
    *small, deep = (
        _ways(functools.partial(build_model, dataclasses.replace(narrow, depth=depth)), _noise(narrow, 8))
        for depth in (2, 4, 6, 12 if preset.name == "smoke" else 24)
    )
    found = alternate({f"{how} {n}": run for n, runs in small for how, run in runs.items()}, repeats)
    line = {}
    for how in small[0][1]:
        line[how] = np.poly1d(np.polyfit([n for n, _ in small], [found[f"{how} {n}"].best_s for n, _ in small], 1))
        yield BenchRow(f"one operation in {'an' if how == 'eager' else 'a'} {how} step", (float(line[how][1]),))
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


def _ways(make: Callable[[], torch.nn.Module], batch: tuple[torch.Tensor, ...]) -> tuple[int, dict[str, Callable]]:
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

    ranks, recipe = _for_ranks("ddp", preset)
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


def _for_ranks(name: str, preset: Preset) -> tuple[int, Recipe]:
    """A rank for each GPU, or two on the CPU; and what they train."""
    n_gpus = len(machine.accelerators()) if machine.device() == "cuda" else 0
    if n_gpus == 1:
        raise CourseError(f"bench {name} needs a GPU a rank, and there is one; set CUDA_VISIBLE_DEVICES= for CPUs")
    ranks = n_gpus or 2
    if preset.name in ("gpu", "cluster"):
        return ranks, Recipe.of(preset, global_batch_size=4 * ranks)
    return ranks, Recipe(n_lat=32, n_lon=64, dim=256, depth=8, heads=4, global_batch_size=8)


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
        more = {"gain, quickest rounds": f"{max(result.samples_per_s) / max(results['baseline'].samples_per_s):.2f} ×"}
        more["of the best matmul peak"] = f"{3 * recipe.forward_flop * median / best:.1%}"
        more["peak memory"] = f"{result.peak_bytes / 1e9:.2f} GB" if result.peak_bytes else "not available"
        more["final loss"] = f"{result.final_loss:.5f} after {result.updates}"
        yield BenchRow(name, result.samples_per_s, "samples/s", recipe.global_batch_size / told_s[name], more)
    print(*(f"no {name}: {why}" for name, why in missing.items()), sep="\n")


def convergence(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """Updates that five seeds needed by batch size, beside S_min (1 + B_crit / B); seeds are fixed, not repeats."""
    from dltutorial.convergence import curves, sweep
    from dltutorial.data import surveys

    machine.use_cores()
    sizes = SMOKE_BATCHES if preset.name == "smoke" else tuple(4 * 2**n for n in range(12))
    for optimizer in ("sgd", "adam"):
        found = sweep.sweep(surveys.lenses(), sizes, optimizer=optimizer)
        fit = curves.fit(found.batch_sizes, found.steps_PS)
        print(*(f"{optimizer}: {remark}" for remark in found.remarks()), sep="\n")
        for point in found.points:
            there = tuple(float(steps) for steps in point.steps_S if math.isfinite(steps))
            more = {"seeds": f"{point.reached} of {len(point.steps_S)}"}
            if there:
                more["rate"] = f"2^{math.log2(point.best_rate):.0f}"
                told = float(fit.steps(point.batch_size))
                yield BenchRow(f"{optimizer}: batch {point.batch_size}", there, "updates", told, more)
        for name, unit in (("s_min", "updates"), ("b_crit", "images")):
            fitted = {"fitted": f"{getattr(fit, name):.0f}"}
            yield BenchRow(f"{optimizer}: {name}", tuple(getattr(fit, f"{name}_K").tolist()), unit, more=fitted)


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


def memory(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """Bytes of a step: as it is, with blocks computed again, in parts; and seconds of an update with each.

    Bytes are the most in torch's record of a forward and a backward pass, beyond weights and averages, beside what the
    formulas of ``profile.memory`` say of activations. Seconds of blocks computed again: one forward pass more.
    """
    from dltutorial.profile import memory as counted
    from dltutorial.train.forecasting import build_model, squared_error
    from dltutorial.train.step import make_optimizer, make_step

    machine.use_cores()
    plain, formats = Recipe.of(preset), counted.FORMATS["fp32"]
    batch, n = _noise(plain, plain.global_batch_size), plain.global_batch_size
    ways: dict[str, dict[str, Any]] = {"as it is": {}, "blocks computed again": {"checkpoint_activations": True}}
    ways["in 4 parts"] = {"accumulate": 4}
    updates, models = {}, {}
    for how, knobs in ways.items():
        recipe = dataclasses.replace(plain, **knobs)
        model = models[how] = build_model(recipe)
        updates[how] = functools.partial(make_step(model, squared_error, make_optimizer(model, recipe), recipe), *batch)
        part = [tensor[: -(-n // recipe.accumulate)] for tensor in batch]
        backward = functools.partial(_backward, model, part)
        backward()  # the gradients are there from now on
        peak = counted.peak_bytes(backward, machine.device()) / 1e6
        shape = counted.Shape.of(recipe)
        told = shape.activation_bytes(len(part[0]), formats, checkpointing=recipe.checkpoint_activations) / 1e6
        yield BenchRow(f"bytes, {how}", (peak,), "MB", told)
    forward = functools.partial(squared_error, models["as it is"], *batch)
    before = alternate({"forward": forward, "update": updates["as it is"]}, repeats)
    told_s = dict.fromkeys(ways, before["update"].median_s)
    told_s["blocks computed again"] += before["forward"].median_s
    for how, timing in alternate(updates, repeats).items():
        yield BenchRow(f"an update, {how}", timing.samples_s, predicted=told_s[how])


def _backward(model: torch.nn.Module, batch: Sequence[torch.Tensor]) -> None:
    (model(batch[0]) - batch[1]).square().mean().backward()


def shards(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """Bytes a weight on the rank that holds most, beside ZeRO's formulas; seconds of an update, beside torch's own.

    Stages 1 to 3 are written by hand, in ``parallel.shards``; torch's stage 1 is ``ZeroRedundancyOptimizer``, its stage
    3 ``fully_shard``. With Adam; a rank for each GPU, or two on the CPU.
    """
    from dltutorial.comm import stopwatch
    from dltutorial.launch import launch
    from dltutorial.train import ddp_comparison
    from dltutorial.train.forecasting import build_model

    ranks, recipe = _for_ranks("shards", preset)
    cut = {"DDP": 0, "stage 1": 8, "stage 2": 12, "stage 3": 16, "ZeroRedundancyOptimizer": 8, "fully_shard": 16}
    own = {"stage 1": "ZeroRedundancyOptimizer", "stage 3": "fully_shard"}

    def on_rank() -> tuple[dict[str, int], dict[str, list[float]]]:
        batch, held = ddp_comparison.share(recipe), {}
        parts = {way: _in_shards(build_model(recipe), way) for way in cut}
        updates = {way: functools.partial(_update, *both, batch) for way, both in parts.items()}
        for way, (model, optimizer) in parts.items():
            updates[way]()
            _backward(model, batch)
            held[way] = _held(model, optimizer)
            optimizer.step()
        return held, ddp_comparison.in_turn(updates, repeats)

    found = launch(on_rank, ranks, timeout_s=600.0)
    seconds = stopwatch.slowest([times_s for _, times_s in found])
    for way, n_bytes in cut.items():
        most = max(held[way] for held, _ in found) / recipe.n_parameters
        yield BenchRow(f"bytes a weight, {way}", (most,), "B", 16 - n_bytes + n_bytes / ranks, {"ranks": f"{ranks}"})
    for way, timing in seconds.items():
        times = np.divide(timing.samples_s, seconds[own[way]].samples_s) if way in own else ()  # by turn
        more = {"× torch's own": f"{statistics.median(times):.2f}"} if way in own else {}
        yield BenchRow(f"an update, {way}", timing.samples_s, more=more)


def tensor(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """Messages of a step cut by heads over the ranks: four a block; seconds of it by hand, and by torch's own plan.

    By hand is ``parallel.tensor``, as in ``train --tensor``; torch's is ``parallelize_module``. Forward and backward
    pass, no update; a rank for each GPU, or two on the CPU.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from dltutorial.comm import stopwatch
    from dltutorial.launch import launch
    from dltutorial.parallel.tensor import cut_block
    from dltutorial.train import ddp_comparison
    from dltutorial.train.forecasting import build_model

    ranks, recipe = _for_ranks("tensor", preset)

    def on_rank() -> tuple[dict[str, int], dict[str, list[float]]]:
        line, batch = init_device_mesh(machine.device(), (ranks,)), ddp_comparison.share(recipe)
        by_hand: Any = build_model(recipe)
        plan: Any = build_model(recipe)
        counts: dict[str, int] = {}
        for block in by_hand.blocks:
            cut_block(block.attention, block.mlp, line.get_group())
        columns, rows = ColwiseParallel(), RowwiseParallel()
        names = {"attention.qkv": columns, "attention.out": rows, "mlp.0": columns, "mlp.2": rows}
        for block in plan.blocks:  # of q, k and v other rows than by hand: to the time it makes no difference
            block.attention.heads //= ranks
            parallelize_module(block, line, names)
        runs = {way: functools.partial(_backward, m, batch) for way, m in (("by hand", by_hand), ("torch", plan))}
        for way, run in runs.items():
            with CommDebugMode() as seen:
                run()
            counts[way] = seen.get_total_counts()
        return counts, ddp_comparison.in_turn(runs, repeats)

    (counts, _), *_ = found = launch(on_rank, ranks, timeout_s=600.0)
    for way, n in counts.items():
        yield BenchRow(f"messages, {way}", (float(n),), "", 4 * recipe.depth, {"ranks": f"{ranks}"})
    seconds = stopwatch.slowest([times_s for _, times_s in found])
    for way, timing in seconds.items():
        times = np.divide(timing.samples_s, seconds["torch"].samples_s)  # by turn
        yield BenchRow(f"a step, {way}", timing.samples_s, more={"× torch's own": f"{statistics.median(times):.2f}"})


def pipeline(preset: Preset, repeats: int) -> Iterator[BenchRow]:
    """The share of four ranks' time in which they idle, by order, beside that of the order played against the clock.

    Eight parts. An act computes, then sleeps until it has lasted 20 ms forward, 40 ms backward, as a host waits for its
    device; messages and waiting are real, by gloo.
    """
    from dltutorial.launch import launch
    from dltutorial.parallel import pipeline as by_hand
    from dltutorial.parallel import schedules

    whole, half, split = {"F": 0.02, "B": 0.04}, {"F": 0.01, "B": 0.02}, {"F": 0.02, "B": 0.02, "W": 0.02}
    orders: dict[str, tuple[Callable[[int, int], schedules.Orders], int, dict[str, float]]] = {
        "GPipe": (schedules.gpipe, 1, whole), "1F1B": (schedules.one_f_one_b, 1, whole),
        "interleaved, 2 stages a rank": (schedules.interleaved, 2, half),
        "zero bubble": (schedules.zero_bubble, 1, split),
    }  # fmt: skip

    def on_rank() -> dict[str, list[list[schedules.Span]]]:
        me, parts = torch.distributed.get_rank(), list(torch.randn(8, 16, 64))
        spans: dict[str, list[list[schedules.Span]]] = {}
        for name, (order, n, lasts) in orders.items():
            layers = {s: torch.nn.Sequential(torch.nn.Linear(64, 64)) for s in range(me, 4 * n, 4)}
            stages = {s: by_hand.postponed(layer) for s, layer in layers.items()}
            spans[name] = []
            for _ in range(repeats + 1):
                torch.distributed.barrier()
                acts = order(4, 8)[me], stages, 4 * n, parts[0].shape, parts
                spans[name].append(by_hand.run(*acts, lambda y, _: y.square().mean(), lasts).spans)
        return spans

    found = launch(on_rank, 4, timeout_s=300.0, backend="gloo")
    for name, (order, _, lasts) in orders.items():
        steps = list(zip(*(spans[name] for spans in found), strict=True))[1:]  # the first one warms up
        told = schedules.bubble(schedules.timed(order(4, 8), lasts))
        yield BenchRow(name, tuple(100 * schedules.bubble(step) for step in steps), "% idle", 100 * told)


def _in_shards(model: Any, way: str) -> tuple[torch.nn.Module, Any]:
    """The model to call, and the optimizer to step, of ``bench shards``."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    from dltutorial.parallel.shards import Sharded

    adam = functools.partial(torch.optim.Adam, lr=1e-4)
    if way.startswith("stage"):
        both = Sharded(model, adam, stage=int(way[-1]), blocks=model.blocks)
        return both, both
    if way == "fully_shard":
        mesh = init_device_mesh(machine.device(), (torch.distributed.get_world_size(),))
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh)
        return model, adam(model.parameters())
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return ddp, adam(ddp.parameters()) if way == "DDP" else ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam)


def _update(model: torch.nn.Module, optimizer: Any, batch: Sequence[torch.Tensor]) -> None:
    model.zero_grad()
    _backward(model, batch)
    optimizer.step()


def _held(model: Any, optimizer: Any) -> int:
    """Bytes of weights, gradients and averages on this rank: storages, each once."""
    inner = getattr(optimizer, "optim", getattr(optimizer, "optimizer", optimizer))
    kept = [*model.parameters(), *(unit.shard for unit in getattr(model, "units", ()))]
    kept += [weight.grad for weight in kept if weight.grad is not None]
    kept += [t for of in inner.state.values() for t in of.values() if torch.is_tensor(t) and t.ndim]
    storages = [(t.to_local() if hasattr(t, "to_local") else t).untyped_storage() for t in kept]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _noise(recipe: Recipe, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch: what the fields show makes no difference to the time."""
    x_BCHW = torch.randn(batch_size, recipe.n_channels, recipe.n_lat, recipe.n_lon, device=machine.device())
    return x_BCHW, x_BCHW.roll(1, -1)
