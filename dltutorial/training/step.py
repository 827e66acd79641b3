"""One update of the weights: the heart of every chapter.

Legend: B samples, C channels, H × W grid points.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def train_step(
    model: nn.Module, x_BCHW: Tensor, y_BCHW: Tensor, optimizer: torch.optim.Optimizer, clip_norm: float = 0.0
) -> Tensor:
    """Forecast, compare, differentiate, update.

    Args:
        model: maps the state now to the next state.
        x_BCHW: the state now, normalised.
        y_BCHW: the state to forecast.
        optimizer: holds the model's parameters.
        clip_norm: largest global gradient norm; 0 does not clip.

    Returns:
        The mean squared error before the update: a detached scalar tensor. It stays on the device, because reading
        it as a Python number would make the processor wait for the accelerator in every step.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = F.mse_loss(model(x_BCHW), y_BCHW)
    loss.backward()
    if clip_norm > 0:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    return loss.detach()
