"""A few training steps in torch's profiler: ``python -m dltutorial.train.profiled --preset gpu --trace FILE``.

In: a preset and knobs of a recipe. Out: the trace. ``slurm/profile.sbatch`` runs it where there is no ``nsys``.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dltutorial import machine, node
from dltutorial.config import Recipe, add_options, preset
from dltutorial.errors import CourseError
from dltutorial.profile import trace
from dltutorial.profile.ranges import annotate
from dltutorial.profile.throughput import to_device
from dltutorial.science import cases
from dltutorial.train.loop import TrainState


def training_step(recipe: Recipe, data: Path) -> Callable[[], None]:
    """A function that loads one batch and trains on it, each part in a range of its own.

    CourseError: the data do not fit the recipe, this machine lacks what it asks for, or it is a login node.
    """
    node.refuse_on_login("training", "profile it in a job: sbatch -N 1 slurm/profile.sbatch")
    task = cases.case(recipe.task).make_task(recipe, data)
    update, batches = TrainState(task, recipe).update, iter(task.data(0))

    def step() -> None:
        with annotate("load"):
            batch = next(batches)
        with annotate("to device"):
            batch = to_device(batch, task.device)  # some loaders have done so already
        update(*batch)

    return step


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run the steps; 2 if something is not as it must be."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m dltutorial.train.profiled", description=about)
    parser.add_argument("--preset", default="auto", help="smoke, laptop, gpu or cluster")
    parser.add_argument("--steps", type=int, default=5, help="steps that are recorded")
    parser.add_argument("--warmup", type=int, default=5, help="steps before it")
    parser.add_argument("--trace", type=Path, required=True, help="the trace: FILE.json or FILE.json.gz")
    seen = {name for name, field in Recipe.knobs().items() if field.metadata["choices"]} | {"cuda_graph", "workers"}
    add_options(parser.add_argument_group("knobs, those of `dltutorial train` that a profiler sees"), seen)
    knobs = vars(parser.parse_args(words))
    name, steps, warmup, file = (knobs.pop(key) for key in ("preset", "steps", "warmup", "trace"))
    try:
        case = cases.case(knobs.get("task", "weather"))
        recipe = case.make_recipe(preset(name), knobs, None)
        machine.use_cores()
        trace.require_place(file)
        trace.take(training_step(recipe, case.ensure(recipe)), steps, warmup, file=file)
    except CourseError as error:
        print(f"dltutorial: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
