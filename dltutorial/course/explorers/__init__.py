"""Explorers: one for each idea that is better moved than read. A cell that ends with ``explorers.batches(…)`` shows it.

Each is a small function over a model of the library that has tests of its own.
"""

from dltutorial.course.explorers.allreduce import allreduce
from dltutorial.course.explorers.batches import batches
from dltutorial.course.explorers.explorer import Explorer
from dltutorial.course.explorers.launches import launches
from dltutorial.course.explorers.memory import memory
from dltutorial.course.explorers.numbers import numbers
from dltutorial.course.explorers.overlap import overlap
from dltutorial.course.explorers.pipeline import pipeline
from dltutorial.course.explorers.roofline import roofline
from dltutorial.course.explorers.scaling import scaling


def examples() -> dict[str, Explorer]:
    """Every explorer by name, with example numbers."""
    import numpy as np

    from dltutorial.comm.cost import Prices
    from dltutorial.config import PRESETS, Recipe
    from dltutorial.convergence import curves
    from dltutorial.parallel.bucket_model import Link, Step
    from dltutorial.profile.peaks import Peaks
    from dltutorial.profile.probes import Figure
    from dltutorial.scaling import clusters, workloads

    products = {name: Figure(best, best, 1, "FLOP/s", "an example") for name, best in (("fp32", 2e11), ("bf16", 4e11))}
    copies = Figure(2e10, 2e10, 1, "bytes/s", "an example")
    machine = Peaks("example", "cpu", 2, "2026-01-01T00:00:00+00:00", None, {}, products, copies, {})
    points = {batch: [float(curves.steps(batch, 60, 280))] for batch in (16, 64, 256, 1024)}
    gradients = 2.0 ** np.random.default_rng(0).normal(-30, 4, 1000)
    return {
        "allreduce": allreduce(Prices(20e-6, 1 / 5e9, 1 / 20e9, lanes=32), ranks=32),
        "batches": batches(points, 200, 100, best=(60, 280)),
        "launches": launches(400, 7e-6, 2.5e-6),
        "memory": memory(Recipe.of(PRESETS["gpu"])),
        "numbers": numbers(gradients, log2_scale=16),
        "overlap": overlap(Step([2**20] * 40, backward_s=6e-3, rest_s=4e-3), Link(2e-4, 5e9), bucket_mib=4),
        "pipeline": pipeline(0.05, 0.03),
        "roofline": roofline(machine, {"add": (1 / 12, 1.5e9), "layer, batch of 256": (110, 1.7e11)}),
        "scaling": scaling(workloads.even("assumed", 25e6).at(2.0), clusters.load("Summit")),
    }
