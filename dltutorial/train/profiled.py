"""A few training steps for a profiler to watch: ``python -m dltutorial.train.profiled --preset gpu``.

In: a preset and knobs of a recipe. Out: nothing of its own; ``nsys`` or ``ncu`` around it writes the report
(chapter 02 has the command lines), or ``--trace FILE`` keeps a trace of torch's profiler.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from dltutorial import machine, node
from dltutorial.config import Recipe, add_options, preset
from dltutorial.data import weather
from dltutorial.errors import CourseError
from dltutorial.profile import ranges, trace
from dltutorial.profile.events import STEP
from dltutorial.profile.ranges import annotate
from dltutorial.profile.throughput import to_device
from dltutorial.train import forecasting
from dltutorial.train.loop import TrainState


def training_step(recipe: Recipe, data: Path) -> Callable[[], None]:
    """A function that loads one batch and trains on it, each part in a range of its own.

    Raises:
        CourseError: the data do not fit the recipe, this machine lacks what it asks for, or it is a login node.
    """
    node.refuse_on_login("training", "profile it in a job: sbatch -N 1 slurm/profile.sbatch")
    task = forecasting.make_task(recipe, data)
    update, batches = TrainState(task, recipe).update, iter(task.data(0))

    def step() -> None:
        with annotate("load"):
            batch = next(batches)
        with annotate("to device"):
            batch = to_device(batch, task.device)  # some loaders have done so already
        update(*batch)

    return step


def capture(run_step: Callable[[], None], steps: int = 5, warmup: int = 5) -> None:
    """Run ``warmup + steps`` steps, the last ones with ranges switched on, in the window of ``nsys`` and ``ncu``.

    Both record between ``cudaProfilerStart`` and ``cudaProfilerStop`` only: steady steps, and a small report.
    """
    for _ in range(warmup):
        run_step()
    window = torch.cuda.profiler.profile() if torch.cuda.is_available() else contextlib.nullcontext()
    with window, ranges.enabled():
        for _ in range(steps):
            with annotate(STEP):
                run_step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run the steps; 2 if something is not as it must be."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m dltutorial.train.profiled", description=about)
    parser.add_argument("--preset", default="auto", help="smoke, laptop, gpu or cluster")
    parser.add_argument("--steps", type=int, default=5, help="steps inside the profiler's window")
    parser.add_argument("--warmup", type=int, default=5, help="steps before it")
    parser.add_argument("--trace", type=Path, help="keep a trace of torch's profiler: FILE.json or FILE.json.gz")
    seen = {name for name, field in Recipe.knobs().items() if field.metadata["choices"]} | {"cuda_graph", "workers"}
    add_options(parser.add_argument_group("knobs, those of `dltutorial train` that a profiler sees"), seen)
    knobs = vars(parser.parse_args(words))
    name, steps, warmup, file = (knobs.pop(key) for key in ("preset", "steps", "warmup", "trace"))
    try:
        sizes = preset(name)
        recipe = Recipe.of(sizes, **knobs)
        machine.use_cores()
        step = training_step(recipe, weather.ensure(sizes))
        if file:
            trace.take(step, steps, max(1, warmup), file=file)
        else:
            capture(step, steps, warmup)
    except CourseError as error:
        print(f"dltutorial: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
