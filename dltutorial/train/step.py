"""One update of the weights: the heart of every chapter."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dltutorial.config import LoopRecipe
from dltutorial.profile.ranges import annotate
from dltutorial.train.compiling import compiled, explained
from dltutorial.train.graphs import GraphedStep
from dltutorial.train.precision import Precision

Step = Callable[..., Tensor]


def train_step(
    model: Callable[..., Tensor],
    batch: Sequence[Tensor],
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    clip_norm: float = 0.0,
    precision: Precision | None = None,
) -> Tensor:
    """Compute the loss, differentiate it, move the weights.

    Args:
        model: wrapped or compiled as it may be.
        batch: on the model's device.
        loss: ``loss(model, *batch)``, a scalar tensor.
        optimizer: holds the model's parameters.
        clip_norm: largest global gradient norm; 0 does not clip.
        precision: of the arithmetic; default: float32.

    Returns:
        The loss before the update: a detached scalar tensor. It stays on the device, because reading it as a Python
        number would make the processor wait for the accelerator in every step.
    """
    precision = precision or Precision("fp32", batch[0].device.type)
    optimizer.zero_grad(set_to_none=True)
    with precision.products():
        with annotate("forward"), precision.autocast():
            value = loss(model, *batch)
        with annotate("backward"):
            precision.scaled(value).backward()
        with annotate("optimizer"):
            precision.update(optimizer, clip_norm)
    return value.detach()


def make_step(
    model: nn.Module,
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    recipe: LoopRecipe,
    precision: Precision | None = None,
) -> Step:
    """``step(*batch)``: an update as the recipe wants it, in its precision, compiled or not, as a graph or not.

    Raises:
        CourseError: this machine cannot do what the recipe asks for.
    """
    device = next(model.parameters()).device.type
    precision = precision or Precision(recipe.precision, device)
    called = compiled(model, recipe.compile)

    def step(*batch: Tensor) -> Tensor:
        return train_step(called, batch, loss, optimizer, recipe.clip_norm, precision)

    if recipe.compile != "off":
        step = explained(recipe.compile)(step)
    return GraphedStep(step, device) if recipe.cuda_graph else step
