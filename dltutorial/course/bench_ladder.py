"""``dltutorial bench ladder``: from what a newcomer writes to the best this machine can do.

In: a preset and how often. Out: one row for the baseline, for each knob alone, and for each on top of those before:
samples per second, what was predicted from the parts of the baseline, the share of the measured matmul peak, the
peak of memory, the loss after the same updates.
"""

from collections.abc import Iterator

from dltutorial import machine
from dltutorial.config import Preset
from dltutorial.course.bench_rows import Options, Row
from dltutorial.data import weather
from dltutorial.profile import peaks
from dltutorial.profile.peaks import Peaks
from dltutorial.train import compare, step_breakdown
from dltutorial.train import ladder as climbing
from dltutorial.train.compare import Result
from dltutorial.train.ladder import Rung, Variant

_TURN_S = {"cpu": 0.5, "cuda": 1.0}


def ladder_of(preset: Preset, device: str) -> tuple[Variant, tuple[Rung, ...], tuple[Rung, ...]]:
    """The baseline, the rungs and the rungs beside them.

    On a GPU the published model stands on data that lie uncompressed: inflated, one batch of them would take minutes.
    """
    layout = climbing.PLAIN if preset.name in ("gpu", "cluster") else climbing.COMPRESSED
    start = climbing.baseline(preset, device, layout)
    return start, climbing.rungs(start, device), climbing.side_rungs(device)


def ladder(options: Options) -> Iterator[Row]:
    """Predict, then race; rows appear at the end, since all variants run to the end together."""
    from tqdm.auto import tqdm

    device = machine.device()
    machine.use_cores()
    start, steps, beside = ladder_of(options.preset, device)
    routes = climbing.routes(steps, beside)
    variants = {name: start.taking(*rungs) for name, rungs in routes.items()}
    data = climbing.data(weather.ensure(options.preset), variants)
    peak = peaks.measure()
    account = step_breakdown.measure(start, [*steps, *beside], data, options.repeats)
    turn_s = _TURN_S[device]
    with tqdm(total=(options.repeats + 1) * len(variants), desc="ladder", unit="turn") as bar:
        results = compare.compare(variants, data, rounds=options.repeats, turn_s=turn_s, seen=lambda name: bar.update())
    gains = compare.gains(results)
    for name, result in results.items():
        predicted = account.predicted(routes[name]) * results["baseline"].median
        yield _row(name, variants[name], result, predicted, gains[name], peak)
    for rung in steps:
        if rung.missing:
            tqdm.write(f"no {rung.name}: {rung.missing}")


def _row(name: str, variant: Variant, result: Result, predicted: float, gain: float, peak: Peaks) -> Row:
    recipe, memory = variant.recipe, result.peak_bytes
    flop_per_s = 3 * recipe.forward_flop * result.median
    best = max(figure.best for figure in peak.matmul.values() if figure)
    more = {
        "gain, quickest rounds": f"{gain:.2f} ×",
        "of its matmul peak": _share(flop_per_s, peak, recipe.precision),
        "of the best matmul peak": f"{flop_per_s / best:.1%}",
        "peak memory": "not available" if memory is None else f"{memory / 1e9:.2f} GB",
        "final loss": f"{result.final_loss:.5f} after {result.updates}",
        "first turn": f"{result.first_s:.1f} s",
    }
    return Row(name, result.samples_per_s, "samples/s", predicted=predicted, more=more)


def _share(flop_per_s: float, peak: Peaks, dtype: str) -> str:
    figure = peak.matmul.get(dtype)
    return f"{flop_per_s / figure.best:.1%} of {dtype}" if figure else "not available"
