"""Postpone the gradients of weights: a backward pass in two actions, B and W, for the zero-bubble schedule.

In B a stage computes the gradient of its input, for which the rank before it waits. Nobody waits for the gradients of
the weights. Therefore they can be computed later, in W, when the rank would be idle otherwise. Between B and W the
stage saves what W needs.

    B    grad_x       = grad_y · weight           now; x and grad_y are saved for W
    W    weight.grad += grad_yᵀ · x               later
         bias.grad   += grad_y, summed over S

``postpone_weight_gradients`` changes the linear layers of a stage, and ``add_weight_gradients`` is W. All other
parameters, such as those of norms, get their gradients in B. They are small.

Legend: x is the input of a linear layer, and y is its output. grad_x and grad_y are the gradients of the loss with
respect to x and y, and grad_y is also called the *upstream gradient*. S samples and tokens of a micro-batch, I inputs
and O outputs of a linear layer.

Source: Qi et al. 2023 (arXiv:2401.10241).
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LinearWithPostponedWeights(torch.autograd.Function):
    """A linear layer whose backward pass computes the gradient of the input, and saves what the weights need.

    x has the shape (…, I), and the output has the shape (…, O).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor, postponed: list) -> Tensor:
        """Compute the outputs, as any linear layer does."""
        ctx.save_for_backward(x, weight_OI, bias_O)
        ctx.postponed = postponed
        return F.linear(x, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple:  # type: ignore[override]
        """Return the gradient of the input. ``grad_y`` is the gradient of the output."""
        x, weight_OI, bias_O = ctx.saved_tensors
        ctx.postponed.append((x, grad_y, weight_OI, bias_O))
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_y @ weight_OI
        return grad_x, None, None, None


def postpone_weight_gradients(stage: Any) -> Any:
    """Change the linear layers of a stage, so that they compute the gradients of their weights in W.

    Args:
        stage: A module. Its linear layers have biases, and no weight is frozen.

    Returns:
        The same module. Its attribute ``postponed`` lists what B saves for W. ``pipeline_parallel`` takes the list
        after each B.
    """
    stage.postponed = []
    for layer in stage.modules():
        if type(layer) is nn.Linear:
            layer.forward = functools.partial(forward_with_postponed_weights, layer, stage.postponed)  # type: ignore[method-assign]
    return stage


def forward_with_postponed_weights(layer: nn.Linear, postponed: list, x: Tensor) -> Tensor:
    """Replace the forward method of a linear layer."""
    return LinearWithPostponedWeights.apply(x, layer.weight, layer.bias, postponed)


def add_weight_gradients(postponed: list) -> None:
    """Add the gradients of the weights to ``.grad``, from what the backward pass has saved."""
    for x, grad_y, weight_OI, bias_O in postponed:
        x_SI = x.flatten(0, -2)
        grad_y_SO = grad_y.flatten(0, -2)
        accumulate(weight_OI, grad_y_SO.T @ x_SI)
        accumulate(bias_O, grad_y_SO.sum(0))


def accumulate(parameter: Tensor, gradient: Tensor) -> None:
    """Add a gradient to ``parameter.grad``."""
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad = parameter.grad + gradient
