"""The optimizer of a run. In: a model and a recipe. Out: the optimizer and implementation that the recipe names.

``for-loop`` updates one tensor after another, ``foreach`` all tensors with a few kernels for each operation, ``fused``
all of them with one kernel. The arithmetic is the same. Loshchilov and Hutter 2017 (arXiv:1711.05101).
"""

import torch
from torch import nn

from dltutorial.config import LoopRecipe, OptimizerRecipe
from dltutorial.optim.lamb import LAMB
from dltutorial.optim.lars import LARC, LARS
from dltutorial.optim.layerwise import without_adaptation
from dltutorial.optim.schedules import cosine, warm_up


def make_optimizer(model: nn.Module, recipe: LoopRecipe) -> torch.optim.Optimizer:
    """AdamW, SGD with momentum, LARS, LARC or LAMB.

    AdamW's and SGD's weight decay acts on matrices, not on biases, norms, positions and the patch embedding. The other
    three spare biases and norms, which no ratio scales either.
    """
    implementation = {
        "auto": {},
        "for-loop": {"foreach": False, "fused": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }[recipe.optimizer_impl]
    rate: float | torch.Tensor = recipe.learning_rate
    if recipe.cuda_graph:  # a graph sees no Python number change: the rate lives on the device
        rate = torch.tensor(rate, device=next(model.parameters()).device)
    betas = recipe.beta1, recipe.beta2
    if recipe.optimizer in ("lars", "larc", "lamb"):
        groups = without_adaptation(model, weight_decay=recipe.weight_decay)
        foreach = implementation.get("foreach")
        if recipe.optimizer == "lars":
            # With a trust coefficient of 1 the rate is, as LAMB's, the share of its norm by which a layer moves.
            return LARS(groups, rate, recipe.beta1, trust_coefficient=1.0, foreach=foreach)
        if recipe.optimizer == "larc":  # the rate is SGD's, and an upper bound
            return LARC(groups, rate, recipe.beta1, foreach=foreach)
        return LAMB(groups, rate, betas, foreach=foreach, capturable=recipe.cuda_graph)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim != 2], "weight_decay": 0.0},
    ]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=recipe.beta1, **implementation)
    if recipe.cuda_graph:
        implementation["capturable"] = True
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
