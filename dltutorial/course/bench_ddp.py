"""``dltutorial bench ddp``: a data-parallel step, averaged naively, in buckets, overlapped, and by torch's DDP.

In: sizes, how often. Out: seconds of an update with each wrapper, steps in turn inside one launch, beside what the
bucket model predicts from parts measured before. One rank for each GPU, else two ranks on the CPU. Goal: the overlapped
step, which does what torch's DDP does, takes at most 1.10 times as long.
"""

import dataclasses
from collections.abc import Iterator

from dltutorial import machine
from dltutorial.config import Recipe
from dltutorial.course.bench_rows import Options, Row
from dltutorial.errors import CourseError

GOAL = 1.10  # times torch DDP's median
_MIB = 2**20
_CAP_MIB = 4.0  # on a CPU, where the network is small; torch's default elsewhere


def ddp(options: Options) -> Iterator[Row]:
    """Measure.

    Raises:
        CourseError: a single GPU, on which two ranks would get in each other's way.
    """
    from dltutorial.train import ddp_comparison

    world_size, recipe = ranks(), recipe_of(options.preset.name)
    cap_mib = 25.0 if machine.device() == "cuda" else _CAP_MIB
    step, link = ddp_comparison.measure_parts(world_size, recipe, options.repeats)
    seconds = {
        ddp_comparison.ALONE: step.backward_s + step.rest_s,
        "naive": step.seconds(link, 0, overlap=False),
        "bucketed": step.seconds(link, cap_mib * _MIB, overlap=False),
        "overlapped": step.seconds(link, cap_mib * _MIB, overlap=True),
        ddp_comparison.TORCH: step.seconds(link, cap_mib * _MIB, overlap=True),
    }
    found = ddp_comparison.compare(world_size, recipe, repeats=options.repeats, bucket_cap_mb=cap_mib)
    reference_s = found[ddp_comparison.TORCH].median_s
    for name, timing in found.items():
        budget = GOAL * reference_s if name == "overlapped" else None
        more = {"ranks": str(world_size), "of torch DDP": f"{timing.median_s / reference_s:.2f}"}
        yield Row(name, timing.samples_s, predicted=seconds[name], budget=budget, more=more)


def ranks() -> int:
    """How many to start here.

    Raises:
        CourseError: there is just one GPU.
    """
    n_gpus = len(machine.accelerators()) if machine.device() == "cuda" else 0
    if n_gpus == 1:
        raise CourseError("bench ddp needs a GPU for each rank, and there is one; set CUDA_VISIBLE_DEVICES= for CPUs")
    return n_gpus or 2


def recipe_of(preset: str) -> Recipe:
    """A transformer of about 6 million parameters with little to compute, or on a GPU the published one."""
    from dltutorial import config

    if preset in ("gpu", "cluster"):
        return dataclasses.replace(Recipe.of(config.preset(preset)), global_batch_size=4 * ranks())
    return Recipe(n_lat=32, n_lon=64, dim=256, depth=8, heads=4, global_batch_size=8)
