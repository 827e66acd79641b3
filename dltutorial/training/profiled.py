"""A few training steps for a profiler to watch: ``python -m dltutorial.training.profiled --preset gpu``.

In: a preset and knobs of a recipe. Out: nothing of its own; ``nsys`` or ``ncu`` around it writes the report
(``observe.nsight`` has the command lines), or ``--trace FILE`` keeps a trace of torch's profiler.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dltutorial import machine
from dltutorial.config import Recipe, preset
from dltutorial.data import store, weather
from dltutorial.data.loaders import Pairs, endless_batches
from dltutorial.errors import CourseError
from dltutorial.observe import nsight, trace
from dltutorial.observe.batches import to_device
from dltutorial.observe.ranges import annotate
from dltutorial.training import run
from dltutorial.training.optim import make_optimizer
from dltutorial.training.step import make_step


def training_step(recipe: Recipe, data: Path) -> Callable[[], None]:
    """A function that loads one batch and trains on it, each part in a range of its own.

    Raises:
        CourseError: the data do not fit the recipe, or this machine lacks what it asks for.
    """
    split = store.open_split(data, "train")
    run.check_data(recipe, split)
    model = run.build_model(recipe)
    update = make_step(model, make_optimizer(model, recipe), recipe)
    device = next(model.parameters()).device.type
    batches = endless_batches(
        Pairs(split), recipe.global_batch_size, seed=recipe.seed, roll=recipe.roll, workers=recipe.workers
    )

    def step() -> None:
        with annotate("load"):
            batch = next(batches)
        with annotate("to device"):
            x_BCHW, y_BCHW = to_device(batch, device)
        update(x_BCHW, y_BCHW)

    return step


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run the steps; 2 if something is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m dltutorial.training.profiled", description=__doc__)
    parser.add_argument("--preset", default="auto", help="smoke, laptop, gpu or cluster")
    parser.add_argument("--steps", type=int, default=5, help="steps inside the profiler's window")
    parser.add_argument("--warmup", type=int, default=5, help="steps before it")
    parser.add_argument("--workers", type=int, default=0, help="processes that load")
    parser.add_argument("--trace", type=Path, help="keep a trace of torch's profiler: FILE.json or FILE.json.gz")
    asked = parser.parse_args(words)
    try:
        sizes = preset(asked.preset)
        machine.use_cores()
        step = training_step(Recipe.of(sizes, workers=asked.workers), weather.ensure(sizes))
        if asked.trace:
            trace.take(step, asked.steps, max(1, asked.warmup), file=asked.trace)
        else:
            nsight.capture(step, asked.steps, asked.warmup)
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
