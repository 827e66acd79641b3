"""The parts of a step, each measured by itself, with and without its knob: what ``costs`` predicts from.

In: the baseline, its data and the rungs. Out: a ``costs.Step`` of the baseline and one ``costs.Effect`` for each
rung. No variant is trained: the loader runs without a step, the linear layers without a model, attention and the
optimizer alone. What compiling gains is counted, not measured: a fused kernel reads and writes once.

Legend: B samples, T tokens, D width, N heads, E = D/N.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
from dltutorial.train import forecasting
from dltutorial.train.costs import ATTENTION, LAUNCH, LOAD, OPTIMIZER, PRODUCTS, REST, Effect, Step
from dltutorial.train.ladder import Rung, Variant
from dltutorial.train.optim import make_optimizer
from dltutorial.train.precision import Precision
from dltutorial.train.step import make_step

_PRODUCTS = ("mm", "convolution", "attention")  # in the names of their operators


@dataclass(frozen=True)
class Account:
    """The baseline in parts, and what each rung does to them.

    Attributes:
        step: the baseline.
        effects: by the name of the rung, on top of the rungs before it.
        effects_alone: where they differ, by themselves: attention by its formula gains otherwise from precision.
    """

    step: Step
    effects: Mapping[str, Effect]
    effects_alone: Mapping[str, Effect]

    def predicted(self, rungs: Sequence[Rung]) -> float:
        """How many times as fast as the baseline with these rungs taken."""
        names = [rung.name for rung in rungs]
        effects = self.effects if "attention" in names else {**self.effects, **self.effects_alone}
        return self.step.whole_s / self.step.taking(effects[name] for name in names).whole_s


def measure(start: Variant, rungs: Sequence[Rung], data: Mapping[str, store.Split], repeats: int = 5) -> Account:
    """Measure the baseline's parts and what the rungs make of them; the quickest of some tries counts.

    Raises:
        CourseError: this is a login node.
    """
    node.refuse_on_login("measuring steps")
    lab = _Lab(start.recipe)
    precisions = {str(rung.knobs["precision"]) for rung in rungs if "precision" in rung.knobs}
    with contextlib.ExitStack() as ending:
        loaders = {name: _loader(variant, data, lab.device) for name, variant in _loading(start, rungs).items()}
        for batches in loaders.values():
            ending.callback(batches.close)
        pieces = lab.pieces(precisions) | {name: functools.partial(next, it) for name, it in loaders.items()}
        found_s = {name: timing.best_s for name, timing in alternate(pieces, repeats, device=lab.device).items()}
    step = _baseline(lab, found_s)
    makers = {
        "loader": lambda rung: _ahead(_ratio(rung, LOAD, found_s, "tuned loader", "naive loader")),
        "loss": lambda rung: Effect(rung.name, {}, "the host no longer waits", {"waits": False}),
        "attention": lambda rung: _attention(rung, start.recipe, found_s),
        "precision": lambda rung: _precision(rung, "fused", found_s),
        "tf32": lambda rung: _precision(rung, "fused", found_s),
        "optimizer": lambda rung: _optimizer(lab, rung, found_s),
        "compile": lambda rung: _compiled(lab, rung),
        "graph": lambda rung: Effect(rung.name, {LAUNCH: 0.0}, "one launch a step"),
    }
    kind = _kind(start.recipe)
    first = {rung.name: _precision(rung, kind, found_s) for rung in rungs if "precision" in rung.knobs}
    return Account(step, {rung.name: makers[rung.name](rung) for rung in rungs}, first)


class _Lab:
    """The baseline's model and one batch, and its pieces as functions without arguments."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.model = recipe, forecasting.build_model(recipe)
        self.device = next(self.model.parameters()).device.type
        shape = (recipe.global_batch_size, recipe.n_channels, recipe.n_lat, recipe.n_lon)
        self.x_BCHW, self.y_BCHW = (torch.randn(shape, device=self.device) for _ in range(2))

    def step(self, **knobs: object) -> Callable[[], object]:
        """A whole update on a batch that is there already."""
        recipe = dataclasses.replace(self.recipe, **knobs)
        model = forecasting.build_model(recipe) if knobs else self.model
        update = make_step(model, forecasting.squared_error, make_optimizer(model, recipe), recipe)
        return lambda: update(self.x_BCHW, self.y_BCHW)

    def update(self, implementation: str) -> Callable[[], object]:
        """Clipping and the optimizer's step, on gradients that are there already."""
        recipe = dataclasses.replace(self.recipe, optimizer_impl=implementation)
        model = forecasting.build_model(recipe)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer = make_optimizer(model, recipe)
        return lambda: Precision("fp32", self.device).update(optimizer, recipe.clip_norm)

    def attention(self, fused: bool, precision: str) -> Callable[[], object]:
        """Attention of all layers, forth and back."""
        recipe, dtype = self.recipe, {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
        shape = (3, recipe.global_batch_size, recipe.heads, _tokens(recipe), recipe.dim // recipe.heads)
        layers = [torch.randn(shape, device=self.device, dtype=dtype, requires_grad=True) for _ in range(recipe.depth)]
        attend = F.scaled_dot_product_attention if fused else naive_attention
        return self._forth_and_back(lambda: [attend(*qkv) for qkv in layers], layers, precision)

    def products(self, precision: str) -> Callable[[], object]:
        """The four linear layers of every block, forth and back."""
        D = self.recipe.dim
        sizes = [(D, D), (D, 4 * D), (4 * D, D), (D, 3 * D)]
        blocks = [nn.Sequential(*(nn.Linear(*size) for size in sizes)) for _ in range(self.recipe.depth)]
        weights = [p for block in blocks for p in block.to(self.device).parameters()]
        shape = (len(blocks), self.recipe.global_batch_size * _tokens(self.recipe), D)
        xs = torch.randn(shape, device=self.device, requires_grad=True)
        pairs = list(zip(blocks, xs, strict=True))
        return self._forth_and_back(lambda: [block(x) for block, x in pairs], [xs, *weights], precision)

    def pieces(self, precisions: set[str]) -> dict[str, Callable[[], object]]:
        """Everything that is timed, by name."""
        found = {"step": self.step(), "for-loop": self.update("for-loop"), "fused": self.update("fused")}
        for precision in {"fp32", *precisions}:
            found[f"products {precision}"] = self.products(precision)
            found[f"fused {precision}"] = self.attention(True, precision)
            if not self.recipe.fused_attention:
                found[f"formula {precision}"] = self.attention(False, precision)
        if self.device != "cpu":
            small = torch.ones(1, device=self.device)
            found["hundred launches"] = lambda: [small.add_(1) for _ in range(100)]
        return found

    def _forth_and_back(
        self, forward: Callable[[], list[Tensor]], inputs: list[Tensor], name: str
    ) -> Callable[[], object]:
        """All layers forth, then all back, as in a step: what the backward pass needs is kept meanwhile."""
        precision = Precision(name, self.device)

        def call() -> None:
            with precision.products():
                with precision.autocast():
                    outputs = forward()
                torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs])

        return call


def _tokens(recipe: Recipe) -> int:
    return (recipe.n_lat // recipe.patch) * (recipe.n_lon // recipe.patch)


def _baseline(lab: _Lab, found_s: Mapping[str, float]) -> Step:
    """What of the whole step no piece explains is the rest."""
    recipe, kind = lab.recipe, _kind(lab.recipe)
    parts = {
        PRODUCTS: found_s["products fp32"],
        ATTENTION: found_s[f"{kind} fp32"],
        OPTIMIZER: found_s["for-loop"],
    }
    rest_s = max(0.0, found_s["step"] - sum(parts.values()))
    on_device = lab.device != "cpu"
    launch_s = len(work.count(lab.step()).operators) * found_s["hundred launches"] / 100 if on_device else 0.0
    return Step(
        {LOAD: found_s["naive loader"], LAUNCH: launch_s} | parts | {REST: rest_s},
        on_device,
        waits=recipe.log_every == 1,
    )


def _kind(recipe: Recipe) -> str:
    return "fused" if recipe.fused_attention else "formula"


def _loading(start: Variant, rungs: Sequence[Rung]) -> dict[str, Variant]:
    """The loaders to time, the baseline's and those of the rungs."""
    return {"naive loader": start} | {f"tuned {rung.name}": start.taking(rung) for rung in rungs if rung.layout}


def _loader(variant: Variant, data: Mapping[str, store.Split], device: str) -> Iterator:
    """Without a thread that reads ahead: it would work between two calls, and seem to take no time."""
    recipe = variant.recipe
    config = dataclasses.replace(loader_config(recipe.loader), prefetch=0)
    size, knobs = recipe.global_batch_size, {"seed": recipe.seed, "roll": recipe.roll}
    return make_loader(data[variant.layout], size, config, device=device, **knobs)


def _ahead(effect: Effect) -> Effect:
    return dataclasses.replace(effect, flags={"ahead": True})


def _ratio(rung: Rung, part: str, found_s: Mapping[str, float], after: str, before: str) -> Effect:
    return Effect(rung.name, {part: found_s[after] / found_s[before]}, f"{before} against {after}, alone")


def _attention(rung: Rung, recipe: Recipe, found_s: Mapping[str, float]) -> Effect:
    if recipe.fused_attention:
        return Effect(rung.name, {}, "fused from the start")
    return _ratio(rung, ATTENTION, found_s, "fused fp32", "formula fp32")


def _precision(rung: Rung, kind: str, found_s: Mapping[str, float]) -> Effect:
    """Products and attention change; attention by its formula and fused do so differently."""
    name = str(rung.knobs["precision"])
    factors = {PRODUCTS: found_s[f"products {name}"] / found_s["products fp32"]}
    factors[ATTENTION] = found_s[f"{kind} {name}"] / found_s[f"{kind} fp32"]
    return Effect(rung.name, factors, f"fp32 against {name}, alone")


def _optimizer(lab: _Lab, rung: Rung, found_s: Mapping[str, float]) -> Effect:
    """Fewer kernels do the same: less time of the device, and fewer launches of the host."""
    loop, fused = (len(work.count(lab.update(name)).operators) for name in ("for-loop", "fused"))
    launches = 1 - (loop - fused) / len(work.count(lab.step()).operators)
    return Effect(
        rung.name,
        {OPTIMIZER: found_s["fused"] / found_s["for-loop"], LAUNCH: launches},
        f"both alone; {loop} operations become {fused}",
    )


def _compiled(lab: _Lab, rung: Rung) -> Effect:
    """What lies between two products is read and written once: as many bytes as the products read and write."""
    operators = work.count(lab.step(optimizer_impl="fused", fused_attention=True)).operators
    products = [operator for operator in operators if any(word in operator.name for word in _PRODUCTS)]
    product_bytes = sum(operator.n_bytes for operator in products)
    other_bytes = sum(operator.n_bytes for operator in operators) - product_bytes
    factor = min(1.0, product_bytes / other_bytes) if other_bytes else 1.0
    why = f"{other_bytes / 1e6:.0f} MB outside products become {min(product_bytes, other_bytes) / 1e6:.0f} MB"
    return Effect(rung.name, {REST: factor, LAUNCH: min(1.0, 2 * len(products) / len(operators))}, why)
