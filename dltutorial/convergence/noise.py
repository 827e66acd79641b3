"""Gradients of many batches at the same weights, and from every sample's own what is signal and what is noise.

In: a model, samples and targets; the loss is the mean cross-entropy. Out: rows of flat gradients; |G|², the squared
length of the exact gradient, and tr(Σ), the variance of one sample's gradient summed over all weights. Their ratio
tr(Σ) / |G|² is the simple noise scale: McCandlish et al. 2018 (arXiv:1812.06162), appendix A. Chapter 13 estimates both
from batches of two sizes.

Legend: B samples picked, M batches, N weights.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from dltutorial.errors import CourseError

_SAMPLES_AT_ONCE, _ROWS_AT_ONCE = 4096, 256  # so that memory stays small


def batch_gradients(model: nn.Module, x: Tensor, y: Tensor, pick_B: Tensor, size: int) -> Tensor:
    """The gradients of consecutive batches of ``size`` among the picked samples: (M, N), in float64.

    Args:
        model: at whose weights; all of them count.
        x, y: samples and targets, on the model's device.
        pick_B: numbers of samples; a multiple of ``size``.
        size: samples of a batch.
    """
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, (x,)), y)

    slopes, rows = vmap(grad(loss), in_dims=(None, 0, 0)), list[Tensor]()
    for pick_MB in pick_B.to(x.device).view(-1, size).split(max(min(_SAMPLES_AT_ONCE // size, _ROWS_AT_ONCE), 1)):
        found = slopes(weights, x[pick_MB], y[pick_MB])
        rows.append(torch.cat([part.flatten(1) for part in found.values()], 1).double())
    return torch.cat(rows)


def exact(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """|G|² and tr(Σ), unbiased, from every sample's own gradient. Dear, for reference.

    Raises:
        CourseError: fewer than two samples.
    """
    n = len(x)
    if n < 2:
        raise CourseError(f"{n} samples have no variance; give at least 2")
    total_N, squares = torch.zeros((), dtype=torch.float64), 0.0
    for pick_B in torch.arange(n).split(_ROWS_AT_ONCE):
        gradients_BN = batch_gradients(model, x, y, pick_B, 1).cpu()
        total_N, squares = total_N + gradients_BN.sum(0), squares + float(gradients_BN.square().sum())
    mean_square = float((total_N / n).square().sum())
    trace = (squares / n - mean_square) * n / (n - 1)
    return mean_square - trace / n, trace
