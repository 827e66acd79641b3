"""Explorers with example numbers: for the tests, also for those that run in a notebook."""

import numpy as np

from dltutorial.config import PRESETS
from dltutorial.convergence import curves
from dltutorial.course import explorers
from dltutorial.course.explorers.explorer import Explorer
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.probes import Figure
from dltutorial.scaling import clusters, workloads
from dltutorial.scaling.collective_cost import Prices


def examples() -> dict[str, Explorer]:
    """Every explorer by name."""
    products = {name: Figure(best, best, "FLOP/s", "an example") for name, best in (("fp32", 2e11), ("bf16", 4e11))}
    copies = Figure(2e10, 2e10, "bytes/s", "an example")
    machine = Peaks("example", "cpu", "2026-01-01T00:00:00+00:00", products, copies, {})
    points = {batch: [float(curves.steps(batch, 60, 280))] for batch in (16, 64, 256, 1024)}
    gradients = 2.0 ** np.random.default_rng(0).normal(-30, 4, 1000)
    return {
        "allreduce": explorers.allreduce(Prices(20e-6, 1 / 5e9, lanes=32), ranks=32),
        "batches": explorers.batches(points, 200, 100, best=(60, 280)),
        "memory": explorers.memory(PRESETS["gpu"], "fp32", device_gib=40),
        "numbers": explorers.numbers(gradients),
        "pipeline": explorers.pipeline(0.05, 0.03),
        "roofline": explorers.roofline(machine),
        "scaling": explorers.scaling(workloads.even(25e6).at(2.0), clusters.load("Summit"), samples=1),
    }
