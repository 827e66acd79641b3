"""Training steps on as many ranks as there are cores or GPUs: real computing, one all-reduce of all gradients.

In: a recipe; ``recipe.global_batch_size`` samples for *each* rank (weak scaling). Out, on every rank: seconds of
computing and of the whole step. The data are noise, the same in every step: only the time is of interest. Gradients
travel after the backward pass, in one piece; chapter 09 does better.

Legend: S steps.
"""

import time

import numpy as np

from dltutorial.config import Recipe


def steps(recipe: Recipe, n_steps: int) -> np.ndarray:
    """On every rank: do some updates; returns seconds of computing and of the whole step, shape (S, 2).

    The first two updates warm up and do not count.
    """
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    from dltutorial.train.forecasting import build_model
    from dltutorial.train.optim import make_optimizer

    model = build_model(recipe)
    optimizer = make_optimizer(model, recipe)
    device = next(model.parameters()).device
    shape = (recipe.global_batch_size, recipe.n_channels, recipe.n_lat, recipe.n_lon)
    x_BCHW, y_BCHW = (torch.randn(shape, device=device) for _ in range(2))
    found = []
    for _ in range(n_steps + 2):
        dist.barrier()
        start = _now(device.type)
        optimizer.zero_grad(set_to_none=True)
        F.mse_loss(model(x_BCHW), y_BCHW).backward()
        computed = _now(device.type)
        average_gradients(model)
        communicated = _now(device.type)
        optimizer.step()
        end = _now(device.type)
        found.append((end - start - (communicated - computed), end - start))
    return np.array(found[2:])


def average_gradients(model) -> None:
    """One all-reduce of all gradients, in one flat array."""
    import torch
    import torch.distributed as dist

    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(part.view_as(grad))


def _now(device: str) -> float:
    """The clock, once the device has done what it was asked to."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()
