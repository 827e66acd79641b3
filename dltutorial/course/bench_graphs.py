"""``dltutorial bench graphs``: what starting operations costs, and what recording a step saves.

In: sizes, how often. Out: the price of an operation, then a launch-bound network and the course's transformer, stepped
eagerly and replayed: as a CUDA graph on a GPU, elsewhere as a tape, which is no CUDA graph. On a GPU also compiled in
mode reduce-overhead. Predictions are made from smaller networks, before the measurement. One thread on a CPU.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dltutorial import machine
from dltutorial.config import Preset, Recipe
from dltutorial.course.bench_rows import Options, Row

if TYPE_CHECKING:
    import torch

    from dltutorial.train.launch_overhead import Line, Pair

_DIM, _DEPTH = 16, {"smoke": 32}  # of the launch-bound network; 64 blocks in larger presets
_TRANSFORMER_BATCH = 4


def graphs(options: Options) -> Iterator[Row]:
    """Measure; variants of one model take turns."""
    import torch

    from dltutorial.train import launch_overhead

    threads_before = torch.get_num_threads()
    machine.use_cores(1)  # one thread starts the operations
    try:
        yield _bare(options)
        lines = launch_overhead.overheads(_DIM, repeats=options.repeats)
        for line, how in zip(lines, ("an eager", "a replayed"), strict=True):
            yield Row(f"one operation in {how} step", (line.per_operation_s,))
        depth = _DEPTH.get(options.preset.name, 64)
        narrow = launch_overhead.narrow_pair(_DIM, depth)
        yield from _compared("narrow network", narrow, lines, options, _reduced(_narrow(depth)), launch_bound=True)
        models, batch = _transformers(options.preset)
        pair = launch_overhead.pair(*models, batch)
        yield from _compared("transformer", pair, lines, options, _reduced((models[0], batch)), launch_bound=False)
    finally:
        torch.set_num_threads(threads_before)


def _bare(options: Options) -> Row:
    import torch

    from dltutorial.profile.timing import alternate

    x, out = (torch.zeros(1, device=machine.device()) for _ in range(2))
    found = alternate({"add": lambda: torch.add(x, x, out=out)}, repeats=options.repeats)
    return Row("an addition of one number", found["add"].samples_s)


def _compared(
    name: str,
    pair: "Pair",
    lines: "tuple[Line, Line]",
    options: Options,
    reduced: "Callable[[], torch.Tensor] | None",
    *,
    launch_bound: bool,
) -> Iterator[Row]:
    """One model's step, eager and otherwise; the lines predict the eager one only if it is launch-bound."""
    from dltutorial.profile.timing import alternate
    from dltutorial.train.launch_overhead import replayed_step_s

    recorded = "replayed as a CUDA graph" if machine.device() == "cuda" else "replayed from a tape"
    variants = {"eager": pair.eager, recorded: pair.graphed}
    if reduced is not None:
        variants["compiled, reduce-overhead"] = reduced
    found = alternate(variants, repeats=options.repeats)
    eager_s, n = found["eager"].median_s, pair.n_operations
    predicted = {recorded: replayed_step_s(eager_s, n, lines, machine.device())}
    if launch_bound:
        predicted = {"eager": lines[0].step_s(n), recorded: lines[1].step_s(n)}
    for how, timing in found.items():
        more = {"operations": f"{n:,}", "gain": f"{eager_s / timing.median_s:.2f} ×"}
        yield Row(f"{name}, {how}", timing.samples_s, predicted=predicted.get(how), more=more)


def _reduced(
    made: "tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]",
) -> "Callable[[], torch.Tensor] | None":
    """The step of torch's own way to graphs; without a GPU the mode makes none, so there is nothing to compare."""
    from dltutorial.train.compiling import missing
    from dltutorial.train.forecasting import squared_error
    from dltutorial.train.graphs import WARMUP_STEPS
    from dltutorial.train.optim import make_optimizer
    from dltutorial.train.step import make_step

    if machine.device() != "cuda" or missing("cuda"):
        return None
    model, batch = made
    recipe = Recipe(compile="reduce-overhead", optimizer_impl="fused", clip_norm=0.0)
    step = make_step(model, squared_error, make_optimizer(model, recipe), recipe)
    for _ in range(WARMUP_STEPS):  # it compiles, then records, then replays
        step(*batch)
    return lambda: step(*batch)


def _narrow(depth: int) -> "tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]":
    import torch

    from dltutorial.models.tiny import NarrowMLP
    from dltutorial.train.launch_overhead import WINDOW

    x_BCHW = torch.randn(8, *WINDOW, device=machine.device())
    return NarrowMLP(WINDOW, _DIM, depth).to(machine.device()), (x_BCHW, x_BCHW.roll(1, -1))


def _transformers(preset: Preset) -> "tuple[list[torch.nn.Module], tuple[torch.Tensor, torch.Tensor]]":
    """The preset's transformer, twice, and a batch of noise: what the fields show makes no difference to the time."""
    import torch

    from dltutorial.train.forecasting import build_model

    recipe = Recipe.of(preset)
    shape = (_TRANSFORMER_BATCH, recipe.n_channels, recipe.n_lat, recipe.n_lon)
    x_BCHW = torch.randn(shape, device=machine.device())
    return [build_model(recipe) for _ in range(2)], (x_BCHW, x_BCHW.roll(1, -1))
