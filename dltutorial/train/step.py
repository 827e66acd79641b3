"""One update of the weights: the heart of every chapter.

Legend: B samples, C channels, H × W grid points.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial.config import Recipe
from dltutorial.profile.ranges import annotate
from dltutorial.train.compiling import compiled, explained
from dltutorial.train.graphs import GraphedStep
from dltutorial.train.precision import Precision

Step = Callable[[Tensor, Tensor], Tensor]


def train_step(
    model: Callable[[Tensor], Tensor],
    x_BCHW: Tensor,
    y_BCHW: Tensor,
    optimizer: torch.optim.Optimizer,
    clip_norm: float = 0.0,
    precision: Precision | None = None,
) -> Tensor:
    """Forecast, compare, differentiate, update.

    Args:
        model: maps the state now to the next state.
        x_BCHW: the state now, normalised.
        y_BCHW: the state to forecast.
        optimizer: holds the model's parameters.
        clip_norm: largest global gradient norm; 0 does not clip.
        precision: of the arithmetic; default: float32.

    Returns:
        The mean squared error before the update: a detached scalar tensor. It stays on the device, because reading
        it as a Python number would make the processor wait for the accelerator in every step.
    """
    precision = precision or Precision("fp32", x_BCHW.device.type)
    optimizer.zero_grad(set_to_none=True)
    with precision.products():
        with annotate("forward"), precision.autocast():
            loss = F.mse_loss(model(x_BCHW), y_BCHW)
        with annotate("backward"):
            precision.backward(loss)
        with annotate("optimizer"):
            precision.update(optimizer, clip_norm)
    return loss.detach()


def make_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    precision: Precision | None = None,
) -> Step:
    """The update as the recipe wants it: its precision, compiled or not, launched one by one or as a graph.

    Raises:
        CourseError: this machine cannot do what the recipe asks for.
    """
    device = next(model.parameters()).device.type
    precision = precision or Precision(recipe.precision, device)
    forecast = compiled(model, recipe.compile)

    def step(x_BCHW: Tensor, y_BCHW: Tensor) -> Tensor:
        return train_step(forecast, x_BCHW, y_BCHW, optimizer, recipe.clip_norm, precision)

    if recipe.compile != "off":
        step = explained(recipe.compile)(step)
    return GraphedStep(step, device) if recipe.cuda_graph else step
