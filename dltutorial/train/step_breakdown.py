"""A step in parts, and what each rung of the ladder makes of them: the prediction of a gain before it is measured.

In: the seconds of each part of a step (load, launch, products, attention, optimizer, rest), and the factor by which a
knob changes each. Out: the seconds of the step with any knobs taken, and the order in which to take them. A part that
is p of the whole and becomes k times as quick makes the whole 1 / (1 − p + p/k) times as quick: Amdahl 1967
(doi.org/10.1145/1465482.1465560).

``measure`` finds both, and trains no variant: the loader runs without a step, the linear layers without a model,
attention and the optimizer alone. What compiling gains is counted: a fused kernel reads and writes once.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial import node
from dltutorial.config import Recipe
from dltutorial.data import store
from dltutorial.data.loaders import loader_config, make_loader
from dltutorial.models.vit import naive_attention
from dltutorial.profile import work
from dltutorial.profile.timing import alternate
from dltutorial.train.forecasting import build_model, squared_error
from dltutorial.train.ladder import Rung, Variant
from dltutorial.train.precision import Precision
from dltutorial.train.step import make_optimizer, make_step

LOAD, LAUNCH, PRODUCTS, ATTENTION, OPTIMIZER, REST = "load", "launch", "products", "attention", "optimizer", "rest"
_PRODUCTS = ("mm", "convolution", "attention")  # in the names of their operators


@dataclass(frozen=True)
class Effect:
    """What one knob does.

    Attributes:
        name: of the rung.
        factors: part → seconds after, over seconds before.
        why: where the factors come from, in a few words.
        flags: of ``StepParts``, such as ``{"waits": False}``.
    """

    name: str
    factors: Mapping[str, float]
    why: str = ""
    flags: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class StepParts:
    """One training step in parts.

    Attributes:
        seconds: part → seconds. ``load`` and ``launch`` are the host's, all others the device's.
        on_device: the host has a device to wait for; otherwise one processor does everything, one after another.
        waits: the host reads the loss after every step, so that it loads nothing while the device computes.
        ahead: a thread loads the next batch while this one is used.
    """

    seconds: Mapping[str, float]
    on_device: bool = False
    waits: bool = False
    ahead: bool = False

    @property
    def whole_s(self) -> float:
        """Seconds from one step to the next."""
        load_s, launch_s = self.seconds.get(LOAD, 0.0), self.seconds.get(LAUNCH, 0.0)
        compute_s = sum(seconds for part, seconds in self.seconds.items() if part not in (LOAD, LAUNCH))
        if not self.on_device:
            return load_s + launch_s + compute_s
        if self.ahead:
            return max(load_s, launch_s, compute_s)
        if self.waits:
            return load_s + max(launch_s, compute_s)
        return max(load_s + launch_s, compute_s)

    def taking(self, effects: Iterable[Effect]) -> "StepParts":
        """The same step with some knobs turned."""
        seconds, flags = dict(self.seconds), dict[str, bool]()
        for effect in effects:
            for part, factor in effect.factors.items():
                seconds[part] = seconds.get(part, 0.0) * factor
            flags |= effect.flags
        return dataclasses.replace(self, seconds=seconds, **flags)

    def share(self, part: str) -> float:
        """A part's seconds over the whole step's."""
        return self.seconds.get(part, 0.0) / self.whole_s


def climb(step: StepParts, effects: Sequence[Effect]) -> dict[str, float]:
    """One knob after another, in the given order: name → how many times as fast as at the start."""
    return {
        effect.name: step.whole_s / step.taking(effects[: number + 1]).whole_s for number, effect in enumerate(effects)
    }


def best_order(step: StepParts, effects: Iterable[Effect]) -> list[tuple[str, float]]:
    """Always the knob that leaves the shortest step, until none shortens it: (name, seconds of the step after it)."""
    left, order = list(effects), []
    while left:
        best = min(left, key=lambda effect: step.taking([effect]).whole_s)
        after = step.taking([best])
        if after.whole_s >= step.whole_s:
            break
        step = after
        left.remove(best)
        order.append((best.name, step.whole_s))
    return order


@dataclass(frozen=True)
class Breakdown:
    """The baseline in parts, and what each rung does to them.

    Attributes:
        step: the baseline.
        effects: by the name of the rung, on top of the rungs before it.
        effects_alone: where they differ, by themselves: attention by its formula gains otherwise from precision.
    """

    step: StepParts
    effects: Mapping[str, Effect]
    effects_alone: Mapping[str, Effect]

    def predicted(self, rungs: Sequence[Rung]) -> float:
        """How many times as fast as the baseline with these rungs taken."""
        names = [rung.name for rung in rungs]
        effects = self.effects if "attention" in names else {**self.effects, **self.effects_alone}
        return self.step.whole_s / self.step.taking(effects[name] for name in names).whole_s


def measure(start: Variant, rungs: Sequence[Rung], data: Mapping[str, store.Split], repeats: int = 5) -> Breakdown:
    """Measure the baseline's parts and what the rungs make of them; the quickest of some tries counts.

    Raises:
        CourseError: this is a login node.
    """
    node.refuse_on_login("measuring steps")
    recipe = start.recipe
    device = next(build_model(recipe).parameters()).device.type
    pieces = {"step": _update(recipe, device), "for-loop": _move(recipe, "for-loop"), "fused": _move(recipe, "fused")}
    for name in {"fp32", *(str(rung.knobs["precision"]) for rung in rungs if "precision" in rung.knobs)}:
        pieces[f"products {name}"] = _products(recipe, name, device)
        pieces[f"attention {name}"] = _attention(recipe, True, name, device)
        if not recipe.fused_attention:
            pieces[f"formula {name}"] = _attention(recipe, False, name, device)
    if device != "cpu":
        small = torch.ones(1, device=device)
        pieces["hundred launches"] = lambda: [small.add_(1) for _ in range(100)]
    pieces["naive loader"] = _load(start, data, device)
    pieces["tuned loader"] = _load(start.taking(*(rung for rung in rungs if rung.layout)), data, device)
    found_s = {name: timing.best_s for name, timing in alternate(pieces, repeats, device=device).items()}

    kind = "attention" if recipe.fused_attention else "formula"  # of the baseline's

    def ratio(after: str, before: str) -> float:
        return found_s[after] / found_s[before]

    def precision(rung: Rung, part: str) -> Effect:
        name = str(rung.knobs["precision"])
        products, attended = (ratio(f"{name_of} {name}", f"{name_of} fp32") for name_of in ("products", part))
        return Effect(rung.name, {PRODUCTS: products, ATTENTION: attended}, f"fp32 against {name}, alone")

    def optimizer(rung: Rung) -> Effect:
        many, few = (_n_operators(pieces[name]) for name in ("for-loop", "fused"))
        factors = {OPTIMIZER: ratio("fused", "for-loop"), LAUNCH: 1 - (many - few) / _n_operators(pieces["step"])}
        return Effect(rung.name, factors, f"both alone; {many} operations become {few}")

    makers: dict[str, Callable[[Rung], Effect]] = {
        "loader": lambda rung: Effect(
            rung.name, {LOAD: ratio("tuned loader", "naive loader")}, "both loaders, alone", {"ahead": True}
        ),
        "loss": lambda rung: Effect(rung.name, {}, "the host no longer waits", {"waits": False}),
        "attention": lambda rung: Effect(
            rung.name, {ATTENTION: ratio("attention fp32", f"{kind} fp32")}, "both, alone"
        ),
        "precision": lambda rung: precision(rung, "attention"),
        "tf32": lambda rung: precision(rung, "attention"),
        "optimizer": optimizer,
        "compile": lambda rung: _compiled(rung, recipe, device),
        "graph": lambda rung: Effect(rung.name, {LAUNCH: 0.0}, "one launch a step"),
    }
    seconds = {
        PRODUCTS: found_s["products fp32"],
        ATTENTION: found_s[f"{kind} fp32"],
        OPTIMIZER: found_s["for-loop"],
    }
    rest_s = max(0.0, found_s["step"] - sum(seconds.values()))  # what of the whole step no piece explains
    launch_s = _n_operators(pieces["step"]) * found_s["hundred launches"] / 100 if device != "cpu" else 0.0
    host = {LOAD: found_s["naive loader"], LAUNCH: launch_s}
    step = StepParts(host | seconds | {REST: rest_s}, device != "cpu", waits=recipe.log_every == 1)
    alone = {rung.name: precision(rung, kind) for rung in rungs if "precision" in rung.knobs}
    return Breakdown(step, {rung.name: makers[rung.name](rung) for rung in rungs}, alone)


def _update(recipe: Recipe, device: str) -> Callable[[], object]:
    """A whole update on a batch that is there already."""
    model = build_model(recipe)
    shape = (recipe.global_batch_size, recipe.n_channels, recipe.n_lat, recipe.n_lon)
    batch = [torch.randn(shape, device=device) for _ in range(2)]
    return functools.partial(make_step(model, squared_error, make_optimizer(model, recipe), recipe), *batch)


def _move(recipe: Recipe, implementation: str) -> Callable[[], object]:
    """Clipping and the optimizer's step, on gradients that are there already."""
    model = build_model(recipe)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer = make_optimizer(model, dataclasses.replace(recipe, optimizer_impl=implementation))
    return lambda: Precision().update(optimizer, recipe.clip_norm)


def _attention(recipe: Recipe, fused: bool, precision: str, device: str) -> Callable[[], object]:
    """Attention of all layers, forth and back."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    shape = (3, recipe.global_batch_size, recipe.heads, recipe.n_tokens, recipe.dim // recipe.heads)
    layers = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(recipe.depth)]
    attend = F.scaled_dot_product_attention if fused else naive_attention
    return _forth_and_back(lambda: [attend(*qkv) for qkv in layers], layers, Precision(precision, device))


def _products(recipe: Recipe, precision: str, device: str) -> Callable[[], object]:
    """The four linear layers of every block, forth and back."""
    D = recipe.dim
    sizes = [(D, D), (D, 4 * D), (4 * D, D), (D, 3 * D)]
    blocks = [nn.Sequential(*(nn.Linear(*size) for size in sizes)).to(device) for _ in range(recipe.depth)]
    weights = [p for block in blocks for p in block.parameters()]
    shape = (len(blocks), recipe.global_batch_size * recipe.n_tokens, D)
    xs = torch.randn(shape, device=device, requires_grad=True)
    pairs = list(zip(blocks, xs, strict=True))
    return _forth_and_back(lambda: [block(x) for block, x in pairs], [xs, *weights], Precision(precision, device))


def _forth_and_back(
    forward: Callable[[], list[Tensor]], inputs: list[Tensor], precision: Precision
) -> Callable[[], object]:
    """All layers forth, then all back, as in a step: what the backward pass needs is kept meanwhile."""

    def call() -> None:
        with precision.products():
            with precision.autocast():
                outputs = forward()
            torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs])

    return call


def _load(variant: Variant, data: Mapping[str, store.Split], device: str) -> Callable[[], object]:
    """A batch, without a thread that reads ahead: it would work between two calls, and seem to take no time."""
    recipe = variant.recipe
    config = dataclasses.replace(loader_config(recipe.loader), prefetch=0)
    size, split = recipe.global_batch_size, data[variant.layout]
    return functools.partial(next, make_loader(split, size, config, seed=recipe.seed, roll=recipe.roll, device=device))


def _n_operators(run: Callable[[], object]) -> int:
    return len(work.count(run).operators)


def _compiled(rung: Rung, recipe: Recipe, device: str) -> Effect:
    """What lies between two products is read and written once: as many bytes as the products read and write."""
    tuned = dataclasses.replace(recipe, optimizer_impl="fused", fused_attention=True)
    operators = work.count(_update(tuned, device)).operators
    products = [operator for operator in operators if any(word in operator.name for word in _PRODUCTS)]
    product_bytes = sum(operator.n_bytes for operator in products)
    other_bytes = sum(operator.n_bytes for operator in operators) - product_bytes
    factor = min(1.0, product_bytes / other_bytes) if other_bytes else 1.0
    why = f"{other_bytes / 1e6:.0f} MB outside products become {min(product_bytes, other_bytes) / 1e6:.0f} MB"
    return Effect(rung.name, {REST: factor, LAUNCH: min(1.0, 2 * len(products) / len(operators))}, why)
