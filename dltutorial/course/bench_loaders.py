"""``dltutorial bench loaders``: the rungs of chapter 03's ladder, the layouts on disk, and overlap with a step.

In: a preset, how often. Out: samples per second, each rung beside its prediction and beside the yardstick: what
copying the same bytes out of the page cache allows. Loaders take turns.
"""

import statistics
from collections.abc import Iterator, Mapping

from dltutorial import machine
from dltutorial.config import Recipe
from dltutorial.course.bench_rows import Options, Row

UNIT = "samples/s"
YARDSTICK = "copy of the same bytes from the page cache"


def loaders(options: Options) -> Iterator[Row]:
    """Rungs, then layouts read by one and the same loader, then the tuned loader beside a step."""
    from dltutorial.data import loader_ladder

    machine.use_cores(1)  # one core for the loader; the other is free for a step, or for a worker
    splits = loader_ladder.prepare(options.preset)
    batch_size = min(8, options.preset.global_batch_size)
    yield from _rungs(splits, batch_size, options)
    yield from _layouts(splits, batch_size, options)
    yield from _beside_a_step(splits, batch_size, options)


def _rungs(splits: Mapping, batch_size: int, options: Options) -> Iterator[Row]:
    """The host's part of every rung; then augmentation where the device does it."""
    from dltutorial.data import formats, loader_ladder
    from dltutorial.data.loader_ladder import RUNGS
    from dltutorial.data.loaders import LOADERS

    figures = loader_ladder.measure_costs(splits["hdf5-chunk1-gzip4"], splits["npy"], batch_size)
    variants = {r.cause: loader_ladder.host_loader(splits[r.layout], batch_size, r.loader) for r in RUNGS}
    variants[YARDSTICK] = lambda: loader_ladder.copies(splits["npy"], batch_size)
    found = loader_ladder.rates(variants, batch_size, rounds=options.repeats)
    naive = statistics.median(found[RUNGS[0].cause])
    for rung in RUNGS:
        year = formats.open_year(splits[rung.layout].files[0])
        predicted = 1 / figures.pair_s(year, LOADERS[rung.loader])
        more = {
            "× naive": f"{statistics.median(found[rung.cause]) / naive:,.0f}",
            "of the copy": f"{_ratio(found[rung.cause], found[YARDSTICK]):.0%}",
        }
        yield Row(rung.cause, found[rung.cause], UNIT, predicted, more=more)
    yield Row(YARDSTICK, found[YARDSTICK], UNIT)


def _layouts(splits: Mapping, batch_size: int, options: Options) -> Iterator[Row]:
    """Every layout under the loader that opens files once and augments in float32."""
    from dltutorial.data import formats, loader_ladder

    variants = {name: loader_ladder.host_loader(split, batch_size, "lean") for name, split in splits.items()}
    for name, samples in loader_ladder.rates(variants, batch_size, rounds=options.repeats).items():
        size = sum(map(formats.stored_bytes, splits[name].files))
        yield Row(f"lean loader, {name}", samples, UNIT, more={"MB on disk": f"{size / 1e6:.1f}"})


def _beside_a_step(splits: Mapping, batch_size: int, options: Options) -> Iterator[Row]:
    """I/O, synthetic and full throughput, for loaders with and without overlap."""
    from dltutorial.data.loaders import LOADERS, LoaderConfig, make_loader, tuned
    from dltutorial.profile import throughput
    from dltutorial.train import forecasting
    from dltutorial.train.optim import make_optimizer
    from dltutorial.train.step import train_step

    split = splits["npy"]
    shape = dict(zip(("n_channels", "n_lat", "n_lon"), split.shape, strict=True))
    recipe = Recipe.of(options.preset, **shape, dim=options.preset.dim // 2, depth=max(1, options.preset.depth // 2))
    model = forecasting.build_model(recipe)
    optimizer = make_optimizer(model, recipe)
    gzip = splits["hdf5-chunk1-gzip4"]
    for name, where, config in (
        ("gzip, no overlap", gzip, LOADERS["open"]),
        ("gzip, a thread reads ahead", gzip, LoaderConfig(keep_open=True, prefetch=2)),
        ("gzip, one worker", gzip, LoaderConfig(keep_open=True, workers=1)),
        ("tuned", split, tuned(machine.device())),
    ):
        found = throughput.measure(
            lambda where=where, config=config: make_loader(
                where, batch_size, config, roll=True, device=machine.device()
            ),
            lambda batch: train_step(model, batch, forecasting.squared_error, optimizer, recipe.clip_norm),
            rounds=options.repeats,
        )
        parts = {"I/O": found.io, "synthetic": found.synthetic, "full": found.full}
        for part, rate in parts.items():
            limit = found.limit if part == "full" else None
            more = {"of min(I/O, synthetic)": f"{found.of_limit:.2f}"} if part == "full" else {}
            yield Row(f"{name}: {part}", rate.samples_per_s, UNIT, limit, more=more)


def _ratio(values: tuple[float, ...], others: tuple[float, ...]) -> float:
    """The median over turns: a slow moment hits both of its round."""
    return statistics.median(value / other for value, other in zip(values, others, strict=True))
