"""``dltutorial bench scaling``: steps on more and more ranks, real and emulated, beside what the simulator says.

Real training on as many ranks as there are cores (or GPUs), each with a batch of its own. Beyond them real all-reduces
of gloo around an *emulated* step, a timed wait: on up to 8 ranks. Then the simulator itself, for 1 to 27,360 GPUs, and
the published runs, whose efficiencies it predicts without having been fitted to them.

In: sizes, how often. Out: one row a measurement, with the prediction beside it. What an all-reduce costs here is
measured first, by itself; every prediction of a step is made from that, before the step is run.
"""

import time
import warnings
from collections.abc import Iterator

import numpy as np

from dltutorial import machine
from dltutorial.comm import stopwatch
from dltutorial.config import Recipe
from dltutorial.course.bench_rows import Options, Row
from dltutorial.launch import launch
from dltutorial.scaling import clusters, emulated, published, real_steps, simulator, workloads

RANKS = (1, 2, 4, 8)
BUDGET_S = 0.5  # of the simulator


def scaling(options: Options) -> Iterator[Row]:
    """Real, emulated, simulated, published."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*ranks share.*")  # that is the point of the emulated step
        yield from _real(options)
        yield from _emulated(options)
    yield _simulator(options)
    yield from _published()


def available_ranks() -> int:
    """How many ranks can compute without sharing a core, or a GPU; at most 8."""
    if machine.device() == "cuda":
        return min(8, len(machine.accelerators()))
    return min(8, machine.cores())


def _real(options: Options) -> Iterator[Row]:
    recipe = Recipe.of(options.preset, global_batch_size=max(1, options.preset.global_batch_size // 4))
    one_s = None
    for ranks in range(1, available_ranks() + 1):
        found = np.array(launch(real_steps.steps, ranks, recipe, 2 * options.repeats))  # ranks, steps, 2
        step_s = found[..., 1].max(0)  # the slowest rank's
        one_s = one_s or float(np.median(step_s))
        efficiency = one_s / float(np.median(step_s))
        waiting = float(np.median(found[..., 1] - found[..., 0]) / np.median(step_s))
        more = {"efficiency": f"{efficiency:.0%}", "communication": f"{waiting:.0%}"}
        yield Row(f"real training, ranks: {ranks}", tuple(step_s.tolist()), more=more)


def _emulated(options: Options) -> Iterator[Row]:
    network = stopwatch.measure_network(RANKS[1:], 2 * options.repeats)
    work = emulated.workload_for(network)
    one_s: dict[str, float] = {}
    for ranks in RANKS:
        wanted = emulated.variants(work, ranks)
        told = {name: emulated.predict(variant, network, ranks).step_s[0] for name, variant in wanted.items()}
        found = launch(emulated.steps, ranks, wanted, 2 * options.repeats, backend="gloo")
        for name in wanted:
            step_s = emulated.step_times(found, name)
            median_s = float(np.median(step_s))
            one_s.setdefault(name, median_s)
            efficiency = one_s[name] / median_s / (ranks if name.startswith("strong") else 1)
            what = f"emulated, {name}, ranks: {ranks}"
            yield Row(what, tuple(step_s.tolist()), predicted=told[name], more={"efficiency": f"{efficiency:.0%}"})


def _simulator(options: Options) -> Row:
    gpus = np.arange(1, 27361)
    network, cluster = workloads.resnet50().at(748.0, 2), clusters.load("Summit")
    samples = []
    for _ in range(options.repeats):
        start = time.perf_counter()
        simulator.simulate(network, cluster, gpus, 32, spread=published.GPU_SPREAD)
        samples.append(time.perf_counter() - start)
    return Row("simulate every number of GPUs from 1 to 27,360", tuple(samples), budget=BUDGET_S)


def _published() -> Iterator[Row]:
    for run in published.runs():
        more = {"efficiency": f"{run.efficiency:.0%}", "error": f"{100 * run.error:+.0f} points"}
        what = f"published: {run.what} ({run.key})"
        yield Row(what, (run.efficiency,), "of ideal", predicted=run.predicted(), more=more)
