"""``dltutorial bench convergence``: updates to a target accuracy against batch size, with SGD and with Adam.

In: a preset, which decides the batch sizes. Out: how long the simulation of all images takes; for each optimizer and
batch size the updates that five seeds needed at the learning rate tuned for that size, beside the fitted curve
S_min (1 + B_crit / B); then S_min and B_crit, and how long the whole sweep took. Repeats would give the same numbers:
the seeds are fixed, their spread is shown.
"""

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dltutorial import machine
from dltutorial.course.bench_rows import Options, Row

if TYPE_CHECKING:
    from dltutorial.convergence.curves import Fit
    from dltutorial.convergence.sweep import Sweep

IMAGES = 24_000


def convergence(options: Options) -> Iterator[Row]:
    """The simulation, then SGD, then Adam."""
    from dltutorial.convergence import sweep
    from dltutorial.data import lenses, surveys

    machine.use_cores()
    start_s = time.perf_counter()
    lenses.simulate(IMAGES)
    yield Row(f"{IMAGES:,} images of lenses simulated", (time.perf_counter() - start_s,), budget=10.0)
    surveys.lenses()  # read, or simulated and kept: it is no part of the sweep
    for optimizer in ("sgd", "adam"):
        start_s = time.perf_counter()
        found, fit = sweep.measure(options.preset.name, optimizer=optimizer)
        took_s = time.perf_counter() - start_s
        yield from _points(optimizer, found, fit)
        yield from _fit(optimizer, fit)
        yield Row(f"{optimizer}: whole sweep", (took_s,), budget=60.0)


def _points(optimizer: str, found: "Sweep", fit: "Fit") -> Iterator[Row]:
    """One row for each batch size; seeds that were not there are named, and not among the samples."""
    for remark in found.remarks():
        print(f"{optimizer}: {remark}")
    for point in found.points:
        there = tuple(float(steps) for steps in point.steps_S if math.isfinite(steps))
        if not there:
            continue
        more = {
            "seeds": f"{point.reached} of {len(point.steps_S)}",
            "rate": f"2^{math.log2(point.best_rate):.0f}",
            "images": f"{point.batch_size * point.median:,.0f}",
        }
        predicted = float(fit.steps(point.batch_size))
        yield Row(f"{optimizer}: batch {point.batch_size}", there, "updates", predicted=predicted, more=more)


def _fit(optimizer: str, fit: "Fit") -> Iterator[Row]:
    """The two constants, with the middle nine tenths of the resampled fits."""
    for name, value, values, unit, span in (
        ("S_min", fit.s_min, fit.s_min_K, "updates", fit.s_min_range),
        ("B_crit", fit.b_crit, fit.b_crit_K, "images", fit.b_crit_range),
    ):
        more = {"fitted": f"{value:.0f} ({span[0]:.0f} to {span[1]:.0f})"}
        yield Row(f"{optimizer}: {name}", tuple(values.tolist()), unit, more=more)
