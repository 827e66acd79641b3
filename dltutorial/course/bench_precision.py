"""``dltutorial bench precision``: what each precision costs and gives on this machine.

In: sizes, how often. Out: seconds of one large matrix product and of one whole update of the preset's vision
transformer, for every precision this machine has, each beside what its peaks predict; bytes kept for the backward
pass, peak memory, and the loss after a short training.

The prediction of an update: of a float32 step, matrix products take FLOP / peak at least; in another precision only
they change. The float32 step itself is compared with its products alone.
"""

import dataclasses
from collections.abc import Callable, Iterator

from dltutorial import machine
from dltutorial.config import Recipe
from dltutorial.course.bench_rows import Options, Row
from dltutorial.profile import peaks
from dltutorial.profile.peaks import Peaks

NAMES = ("fp32", "tf32", "bf16", "fp16")
TRAINED_STEPS = 30
_TOO_SLOW = 8.0  # times float32's products: without units, fp16 can take a hundred times as long


def precision(options: Options) -> Iterator[Row]:
    """Products first, then updates; variants take turns."""
    machine.use_cores()
    found = peaks.measure()
    there = [name for name in NAMES if found.matmul.get(name)]
    quick = [name for name in there if found.peak_flops_per_s("fp32") < _TOO_SLOW * found.peak_flops_per_s(name)]
    for name in sorted(set(there) - set(quick)):
        ratio = found.peak_flops_per_s("fp32") / found.peak_flops_per_s(name)
        print(f"{name} left out: its products take {ratio:.0f} × as long as float32's here")
    yield from _products(quick, found, options)
    yield from _updates(quick, found, options)


def _products(names: list[str], found: Peaks, options: Options) -> Iterator[Row]:
    """One product of n × n matrices, n a size at which the peak is reached."""
    from dltutorial.profile.timing import alternate

    n = 4096 if found.device == "cuda" else 1024
    timings = alternate({name: _product(n, name, found.device) for name in names}, options.repeats)
    for name, timing in timings.items():
        speed = timings["fp32"].median_s / timing.median_s
        more = {"× fp32": f"{speed:.2f}", "GFLOP/s": f"{2e-9 * n**3 / timing.median_s:,.0f}"}
        predicted_s = 2 * n**3 / found.peak_flops_per_s(name)
        yield Row(f"product {n} × {n}, {name}", timing.samples_s, predicted=predicted_s, more=more)


def _product(n: int, name: str, device: str) -> Callable[[], object]:
    import torch

    from dltutorial.train.precision import Precision

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    chosen = Precision(name, device)

    def run() -> object:
        with chosen.products():
            return a @ b

    return run


def _updates(names: list[str], found: Peaks, options: Options) -> Iterator[Row]:
    """A whole update with the preset's model and batch, and a short training with each precision."""
    from dltutorial.profile.timing import alternate

    recipe = Recipe.of(options.preset, steps=TRAINED_STEPS, log_every=TRAINED_STEPS // 3, track=())
    recipes = {name: dataclasses.replace(recipe, precision=name) for name in names}
    ends = {name: _trained(recipe) for name, recipe in recipes.items()}
    timings = alternate({name: _update(recipe) for name, recipe in recipes.items()}, options.repeats)
    flop = 3 * recipe.global_batch_size * recipe.forward_flop
    product_s = {name: flop / found.peak_flops_per_s(name) for name in names}
    rest_s = max(0.0, timings["fp32"].best_s - product_s["fp32"])
    for name, timing in timings.items():
        loss, peak_bytes = ends[name]
        more = {
            "× fp32": f"{timings['fp32'].median_s / timing.median_s:.2f}",
            "GFLOP/s": f"{1e-9 * flop / timing.median_s:,.0f}",
            "kept for backward": f"{_kept_bytes(recipes[name]) / 1e6:,.0f} MB",
            "peak memory": "–" if peak_bytes is None else f"{peak_bytes / 1e9:.2f} GB",
            f"loss after {TRAINED_STEPS}": f"{loss:.4f}",
        }
        predicted_s = product_s["fp32"] if name == "fp32" else rest_s + product_s[name]
        yield Row(f"ViT update, {name}", timing.samples_s, predicted=predicted_s, more=more)


def _update(recipe: Recipe) -> Callable[[], object]:
    """One update on the same batch each time."""
    from dltutorial.train.forecasting import build_model, squared_error
    from dltutorial.train.optim import make_optimizer
    from dltutorial.train.step import make_step

    model = build_model(recipe)
    step = make_step(model, squared_error, make_optimizer(model, recipe), recipe)
    x_BCHW, y_BCHW = next(_waves(recipe))
    return lambda: step(x_BCHW, y_BCHW)


def _trained(recipe: Recipe) -> tuple[float, int | None]:
    """Loss at the end of a short training, and the most memory that the device held meanwhile; None on a CPU."""
    import torch

    from dltutorial.train.forecasting import build_model, squared_error
    from dltutorial.train.loop import loop
    from dltutorial.train.task import Task

    on_cuda = machine.device() == "cuda"
    if on_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    *_, last = loop(Task(build_model(recipe), lambda skip: _waves(recipe), squared_error), recipe)
    return last.loss, torch.cuda.max_memory_allocated() if on_cuda else None


def _kept_bytes(recipe: Recipe) -> int:
    """What a forward pass keeps for the backward pass, as torch does it."""
    from torch.nn import functional as F

    from dltutorial.profile.memory import counting_saved
    from dltutorial.train.forecasting import build_model
    from dltutorial.train.precision import Precision

    model = build_model(recipe)
    x_BCHW, y_BCHW = next(_waves(recipe))
    with counting_saved(model) as kept, Precision(recipe.precision, x_BCHW.device.type).autocast():
        F.mse_loss(model(x_BCHW), y_BCHW)
    return sum(kept.values())


def _waves(recipe: Recipe) -> Iterator[tuple]:
    """Plane waves that travel, the same in every run: a task that can be learned, without a data set."""
    import torch

    device = machine.device()
    generator = torch.Generator().manual_seed(recipe.seed)
    lon_W = torch.linspace(0, 2 * torch.pi, recipe.n_lon + 1)[:-1]
    lat_H1 = torch.linspace(0, torch.pi, recipe.n_lat)[:, None]
    while True:
        shape = (recipe.global_batch_size, recipe.n_channels, 1, 1)
        phase_BC11 = 2 * torch.pi * torch.rand(shape, generator=generator)
        number_BC11 = torch.randint(1, 5, shape, generator=generator)
        x_BCHW, y_BCHW = (
            torch.sin(number_BC11 * lon_W + phase_BC11 - shift) * torch.sin(lat_H1) for shift in (0.0, 0.5)
        )
        yield x_BCHW.to(device), y_BCHW.to(device)
