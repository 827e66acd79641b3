"""A model's mean loss as a function of its weights: value, gradient, curvature, gradients of single samples.

In: a model, samples and a loss. Out: numbers and flat rows, so that whoever looks at gradients, eigenvectors or slices
of the landscape needs to know nothing of layers. Works through the samples in pieces, so that memory stays small.

The product of the Hessian with a vector costs about as much as two gradients, and the Hessian is never built:
Pearlmutter 1994, doi:10.1162/neco.1994.6.1.147; here as the forward derivative of the backward one, with torch.func.

Legend: N weights, B samples.
"""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F

from dltutorial.errors import CourseError

Loss = Callable[[Tensor, Tensor], Tensor]


class Objective:
    """The mean loss on given samples. It keeps a copy of the model, so that training on changes nothing here."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss = F.cross_entropy, chunk: int = 4096) -> None:
        """Copy the model, in evaluation mode: dropout is off, batch norm uses its running means.

        Args:
            model: only its trainable parameters count as weights.
            x, y: samples and targets, on the model's device.
            loss: the mean over them, as ``cross_entropy``.
            chunk: samples worked on at once.

        Raises:
            CourseError: no samples, unequal numbers of samples and targets, or nothing to train.
        """
        if not len(x) or len(x) != len(y):
            raise CourseError(f"{len(x)} samples and {len(y)} targets; give as many of both, at least one")
        self.x, self.y, self._loss, self._chunk = x, y, loss, chunk
        self._model = copy.deepcopy(model).eval()
        named = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        if not named:
            raise CourseError("no parameter of this model is to be trained, so it has no gradient; set requires_grad")
        self._shapes = {name: p.shape for name, p in named.items()}
        self.weights_N = torch.cat([p.detach().flatten() for p in named.values()])

    @property
    def n_weights(self) -> int:
        """How many weights there are."""
        return len(self.weights_N)

    def value(self, weights_N: Tensor | None = None) -> float:
        """The mean loss, at the model's own weights or at others."""
        w_N = self.weights_N if weights_N is None else weights_N
        with torch.no_grad():
            return float(sum(share * self._mean_loss(w_N, x, y).double() for share, x, y in self._pieces()))

    def gradient(self) -> Tensor:
        """The gradient of the mean loss, flat."""
        total_N = torch.zeros_like(self.weights_N)
        for share, x, y in self._pieces():
            total_N += share * grad(self._mean_loss)(self.weights_N, x, y)
        return total_N

    def hessian_times(self, vector_N: Tensor) -> Tensor:
        """The Hessian of the mean loss times a vector: how the gradient changes along it."""
        product_N = torch.zeros_like(self.weights_N)
        for share, x, y in self._pieces():
            slope = lambda w_N, x=x, y=y: grad(self._mean_loss)(w_N, x, y)  # noqa: E731
            product_N += share * jvp(slope, (self.weights_N,), (vector_N,))[1].detach()
        return product_N

    def sample_squares(self) -> Tensor:
        """|g|² of every single sample's gradient g, (B,)."""
        one = lambda x, y: grad(self._mean_loss)(self.weights_N, x[None], y[None]).square().sum()  # noqa: E731
        return torch.cat([vmap(one)(x, y).detach() for _, x, y in self._pieces(max(self._chunk // 16, 1))])

    def batch_gradients(self, pick_B: Tensor, size: int) -> Tensor:
        """The gradients of consecutive batches of ``size`` among the picked samples, one a row, in float64."""
        slope = vmap(lambda x, y: grad(self._mean_loss)(self.weights_N, x, y))
        batches = pick_B.to(self.x.device).view(-1, size).split(max(self._chunk // size, 1))
        return torch.cat([slope(self.x[picks], self.y[picks]).detach().double() for picks in batches])

    def _mean_loss(self, weights_N: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = weights_N.split([shape.numel() for shape in self._shapes.values()])
        named = {n: part.view(shape) for (n, shape), part in zip(self._shapes.items(), parts, strict=True)}
        return self._loss(functional_call(self._model, named, (x,)), y)

    def _pieces(self, chunk: int = 0) -> Iterator[tuple[float, Tensor, Tensor]]:
        """(share of all samples, samples, targets)."""
        chunk = chunk or self._chunk
        for x, y in zip(self.x.split(chunk), self.y.split(chunk), strict=True):
            yield len(x) / len(self.x), x, y
