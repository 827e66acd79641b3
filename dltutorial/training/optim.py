"""The optimizer of a run. In: a model and a recipe. Out: AdamW, in the implementation the recipe names.

``for-loop`` updates one tensor after another, ``foreach`` all tensors with a few kernels for each operation, ``fused``
all of them with one kernel. The arithmetic is the same. Loshchilov and Hutter 2017 (arXiv:1711.05101).
"""

import torch
from torch import nn

from dltutorial.config import Recipe


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW; weight decay acts on matrices, not on biases, norms, positions and the patch embedding."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim != 2], "weight_decay": 0.0},
    ]
    implementation = {
        "auto": {},
        "for-loop": {"foreach": False, "fused": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }[recipe.optimizer_impl]
    rate: float | torch.Tensor = recipe.learning_rate
    if recipe.cuda_graph:  # a graph sees no Python number change: the rate lives on the device
        device = next(model.parameters()).device
        rate, implementation = torch.tensor(rate, device=device), implementation | {"capturable": True}
    return torch.optim.AdamW(groups, lr=rate, betas=(recipe.beta1, recipe.beta2), **implementation)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Change the rate of all groups, in place where a captured graph reads it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
