"""One update of the weights: the optimizer that a recipe names, and the step that it makes.

``for-loop`` updates one tensor after another, ``foreach`` all tensors with a few kernels for each operation, ``fused``
all of them with one kernel. The arithmetic is the same. Loshchilov and Hutter 2017 (arXiv:1711.05101).
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from dltutorial.engine.compiling import compiled, explained
from dltutorial.engine.graphs import CudaGraph, GraphedStep
from dltutorial.engine.precision import Precision
from dltutorial.engine.recipe import LoopRecipe, OptimizerRecipe
from dltutorial.optim.lamb import LAMB
from dltutorial.optim.lars import LARC, LARS
from dltutorial.optim.layerwise import without_adaptation
from dltutorial.optim.schedules import cosine, warm_up
from dltutorial.profile.ranges import annotate

Step = Callable[..., Tensor]


def train_step(
    model: Callable[..., Tensor], batch: Sequence[Tensor], loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer, clip_norm: float = 0.0, precision: Precision | None = None, accumulate: int = 1,
) -> Tensor:  # fmt: skip
    """Compute the loss, differentiate it, move the weights.

    Args:
        model: wrapped or compiled as it may be.
        batch: on the model's device.
        loss: ``loss(model, *batch)``, a scalar tensor.
        optimizer: holds the model's parameters.
        clip_norm: largest global gradient norm; 0 does not clip.
        precision: of the arithmetic; default: float32.
        accumulate: parts of the batch that go through the model in turns; their gradients add up.

    Returns:
        The loss before the update: a detached scalar tensor. It stays on the device, because reading it as a Python
        number would make the processor wait for the accelerator in every step.
    """
    precision = precision or Precision("fp32", batch[0].device.type)
    optimizer.zero_grad(set_to_none=True)
    parts = list(zip(*(tensor.tensor_split(accumulate) for tensor in batch), strict=True))
    total = torch.zeros((), device=batch[0].device)
    with precision.products():
        for n, part in enumerate(parts):
            last = n + 1 == accumulate  # after it ranks average
            with nullcontext() if last else getattr(model, "no_sync", nullcontext)():
                with annotate("forward"), precision.autocast():
                    value = loss(model, *part) * (len(part[0]) / len(batch[0]))
                with annotate("backward"):
                    precision.scaled(value).backward()
            total += value.detach()
        with annotate("optimizer"):
            precision.update(optimizer, clip_norm)
    return total


def make_step(
    model: nn.Module, loss: Callable[..., Tensor], optimizer: torch.optim.Optimizer, recipe: LoopRecipe,
    precision: Precision | None = None,
) -> Step:  # fmt: skip
    """``step(*batch)``: an update as the recipe wants it, in its precision, compiled or not, as a graph or not.

    Raises:
        CourseError: this machine cannot do what the recipe asks for.
    """
    device = next(model.parameters()).device.type
    precision = precision or Precision(recipe.precision, device)
    precision.spare(model)
    called = compiled(model, recipe.compile)

    def step(*batch: Tensor) -> Tensor:
        return train_step(called, batch, loss, optimizer, recipe.clip_norm, precision, recipe.accumulate)

    if recipe.compile != "off":
        step = explained(recipe.compile)(step)
    return GraphedStep(step, CudaGraph(device)) if recipe.cuda_graph else step


def make_optimizer(model: nn.Module, recipe: LoopRecipe) -> torch.optim.Optimizer:
    """AdamW, SGD with momentum, LARS, LARC or LAMB.

    AdamW's and SGD's weight decay acts on matrices, not on biases, norms, positions and the patch embedding. The other
    three spare biases and norms, which no ratio scales either; they always work like ``foreach``.
    """
    how = recipe.optimizer_impl
    implementation = {"auto": {}, "for-loop": {"foreach": False, "fused": False}}.get(how, {how: True})
    rate: float | torch.Tensor = recipe.learning_rate
    if recipe.cuda_graph:  # a graph sees no Python number change: the rate lives on the device
        rate = torch.tensor(rate, device=next(model.parameters()).device)
    betas = recipe.beta1, recipe.beta2
    if recipe.optimizer in ("lars", "larc", "lamb"):
        groups = without_adaptation(model, weight_decay=recipe.weight_decay)
        if recipe.optimizer == "lars":
            # With a trust coefficient of 1 the rate is, as LAMB's, the share of its norm by which a layer moves.
            return LARS(groups, rate, recipe.beta1, trust_coefficient=1.0)
        if recipe.optimizer == "larc":  # the rate is SGD's, and an upper bound
            return LARC(groups, rate, recipe.beta1)
        return LAMB(groups, rate, betas, capturable=recipe.cuda_graph)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim != 2], "weight_decay": 0.0},
    ]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=recipe.beta1, **implementation)
    implementation |= {"capturable": True} if recipe.cuda_graph else {}
    return torch.optim.AdamW(groups, lr=rate, betas=betas, **implementation)


def learning_rate(step: int, recipe: OptimizerRecipe) -> float:
    """Of one update, counted from 0: it rises linearly, then falls along half a cosine to ``final_rate_ratio``.

    The warm-up's first update already moves. Past the last step the rate stays at its end.
    """
    decay = cosine(recipe.steps - recipe.warmup_steps, recipe.final_rate_ratio)
    return recipe.learning_rate * warm_up(recipe.warmup_steps, then=decay)(step)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Change the rate of all groups, in place where a captured graph reads it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
