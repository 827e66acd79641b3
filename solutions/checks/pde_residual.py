"""Checks of chapter 23's exercise, first part: what an equation leaves of a network, by autograd.

Each case calls the learner's function with a small model whose derivatives are known, in float64.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close

A, B = 0.7, 0.3
_GRAPH = "The first derivative is differentiated again, and all of it by the weights: create_graph=True each time."
_SECOND = (
    "c_xx is differentiated once more, by the weights: create_graph=True in the second call, too; "
    "retain_graph is not enough."
)
_NO_GRAPH = "c_x has no graph: create_graph=True in the first call."
_MEAN = "B times too small: the gradient of a mean. Take the sum."
_NEARLY = "Nearly right: derivatives by autograd, no differences, in the dtype of the points."
_FIRST = "The first column of points is x, the second t."
_PLANE = "c_x does not depend on the points here: allow_unused=True, materialize_grads=True give zeros for that."
_RAMP = (
    "Without weights c_x has no graph at all here, and is not differentiated again: the second derivative is 0. "
    "With 0 * points added to the slope it hangs on the points."
)
_OWN = "Differentiate by a copy of your own: points.detach().requires_grad_()."


class _Wave(nn.Module):
    """c = w sin(2x + 3t + 0.5) exp(-x), and it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.calls = nn.Parameter(torch.tensor(1.5, dtype=torch.float64)), 0

    def forward(self, points: Tensor) -> Tensor:
        self.calls += 1
        x, t = points.unbind(1)
        return self.w * torch.sin(2 * x + 3 * t + 0.5) * torch.exp(-x)

    def parts(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """c_x, c_xx, c_t, c_xt, worked out by hand."""
        x, t = points.unbind(1)
        s, c, e = torch.sin(2 * x + 3 * t + 0.5), torch.cos(2 * x + 3 * t + 0.5), torch.exp(-x)
        w = self.w.detach()
        return w * e * (2 * c - s), w * e * (-3 * s - 4 * c), w * e * 3 * c, w * e * 3 * (-2 * s - c)


class _Plane(nn.Module):
    """c = w · (x, t)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0, 3.0], dtype=torch.float64))

    def forward(self, points: Tensor) -> Tensor:
        return points @ self.w


def _points(n: int = 6) -> Tensor:
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def _values(fn: Callable, n: int) -> None:
    model, points = _Wave(), _points(n)
    c_x, c_xx, c_t, c_xt = model.parts(points)
    right = c_t + A * c_x - B * c_xx
    mistakes = [
        (c_t + A * c_x, "c_xx is 0 or missing here. The first derivative is differentiated again: create_graph=True."),
        (c_t + A * c_x + B * c_xx, "Diffusion stands on the other side: - b c_xx."),
        (c_t - A * c_x - B * c_xx, "The flow stands on the left: + a c_x."),
        (c_x + A * c_t - B * c_xx, _FIRST),
        (c_x + A * c_t - B * c_xt, _FIRST),
        (c_x + A * c_t + 9 * B * model(points).detach(), _FIRST),
        (c_t + A * c_x - B * c_x**2, "The second derivative is no square of the first: differentiate c_x again."),
        (c_t + A * c_x - B * c_xt, "c_xx is c_x differentiated by x, not by t: its first column."),
        (c_t + A * c_x - B * (c_xx + c_xt), "c_x differentiated by x alone: do not add the column of t."),
        (right.square(), "The residual itself, not its square: the loss squares it."),
        (right.abs(), "The residual has a sign."),
        (right.mean(), "One residual for each point, shape (B,)."),
        (right.sum(), "One residual for each point, shape (B,)."),
        (right[:, None], "Shape (B,), as the model's."),
        *((value, _MEAN) for value in (right / n, (c_t + A * c_x) / n - B * c_xx / n**2)),
        (c_t + A * c_x - B * c_xx / n, f"c_xx is {_MEAN}"),
    ]
    try:
        got = fn(model, points, A, B)
    except RuntimeError as error:
        if "does not have a grad_fn" in str(error):
            error.add_note(_NO_GRAPH)
        elif "retain_graph" in str(error):
            error.add_note(_GRAPH)
        raise
    if isinstance(got, Tensor) and got.shape == right.shape:
        off = (got.detach() - right).abs().max()
        mistakes += [(got, _NEARLY)] if off < 0.01 * right.abs().max() else []
    expect_close(got, right, "c_t + a c_x - b c_xx, point by point.", mistakes, rtol=1e-6)


def _weights(fn: Callable) -> None:
    """The residual can be differentiated by the weights"""
    model, points = _Wave(), _points()
    left = fn(model, points, A, B)
    if not isinstance(left, Tensor) or not left.requires_grad:
        raise Wrong("a residual that training can differentiate", "one without a graph", _GRAPH)
    try:
        (slope,) = torch.autograd.grad(left.square().sum(), [model.w], allow_unused=True)
    except RuntimeError as error:
        if "retain_graph" in str(error):
            error.add_note(_SECOND)
        raise
    c_x, c_xx, c_t, _ = model.parts(points)
    parts = {"c_t": c_t, "a c_x": A * c_x, "b c_xx": -B * c_xx}
    right, w = sum(parts.values()), model.w.detach()
    without = []
    for name, part in parts.items():
        without.append((2 * (right * (right - part)).sum() / w, f"{name} is a constant here. {_GRAPH}"))
    expect_close(slope, 2 * right.square().sum() / w, _GRAPH, without, rtol=1e-6)


def _constants(fn: Callable) -> None:
    """The residual can be differentiated by a and b"""
    model, points = _Wave(), _points()
    a, b = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (A, B))
    slopes = torch.autograd.grad(fn(model, points, a, b).sum(), [a, b], allow_unused=True)
    c_x, c_xx, _, _ = model.parts(points)
    for name, slope, right in zip("ab", slopes, (c_x.sum(), -c_xx.sum()), strict=True):
        hint = f"{name} may be a tensor that is trained: no float(), no .item(), no detach()."
        if slope is None:
            raise Wrong(f"a gradient of {name}", None, hint)
        expect_close(slope, right, hint, rtol=1e-6)


def _plane(fn: Callable) -> None:
    """A model that is a plane has no second derivative"""
    try:
        got = fn(_Plane(), _points(), A, B)
    except RuntimeError as error:
        if "used in the graph" in str(error):
            error.add_note(_PLANE)
        raise
    expect_close(got, torch.full((6,), 3 + A * 2, dtype=torch.float64), _PLANE, rtol=1e-6)


def _ramp(fn: Callable) -> None:
    """A plane without weights: its slope has no graph"""
    try:
        got = fn(lambda points: 2 * points[:, 0] + 3 * points[:, 1], _points(), A, B)
    except RuntimeError as error:
        if "does not require grad" in str(error):
            error.add_note(_RAMP)
        raise
    expect_close(got, torch.full((6,), 3 + A * 2, dtype=torch.float64), _RAMP, rtol=1e-6)


def _points_stay(fn: Callable) -> None:
    """The points that were given are as they were"""
    points = _points()
    before = points.clone()
    fn(_Wave(), points, A, B)
    if points.requires_grad or points.grad is not None or not torch.equal(points, before):
        raise Wrong("points as they were", "they record gradients now, or have changed", _OWN)


def _nothing_left(fn: Callable) -> None:
    """Nothing is added to the weights' gradients, and the model runs once"""
    model = _Wave()
    fn(model, _points(), A, B)
    if model.w.grad is not None:
        raise Wrong("no .grad on the weights", model.w.grad, "torch.autograd.grad returns gradients; backward() adds.")
    if model.calls != 1:
        raise Wrong("1 call of the model", model.calls, "One forward pass has all derivatives in its graph.")


def _no_grad_data(fn: Callable) -> None:
    """Points from inside a graph: their history is not yours"""
    start = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    try:
        left = fn(_Wave(), _points() * start, A, B)
    except RuntimeError as error:
        error.add_note(_OWN)
        raise
    (slope,) = torch.autograd.grad(left.sum(), [start], allow_unused=True)
    if slope is not None:
        raise Wrong("no gradient to where the points came from", slope, _OWN)


EXERCISE = Exercise(
    name="pde_residual",
    chapter="23",
    cases=(
        case("Six points of a wave", _values, 6),
        case("One point", _values, 1),
        _weights,
        _constants,
        _plane,
        _ramp,
        _points_stay,
        _no_grad_data,
        _nothing_left,
    ),
    hints=(
        "Which of the inputs is differentiated by, and who records that?",
        "Each point's value depends on its own row alone. What is then the gradient of the sum of all values?",
        "Two things are differentiated later: c_x, for c_xx; and the whole, for training. What must stay for that?",
    ),
    code=(
        "points = points.detach().requires_grad_()",
        "(slope,) = torch.autograd.grad(c.sum(), points, create_graph=True)",
    ),
)
