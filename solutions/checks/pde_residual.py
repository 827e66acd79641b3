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
_GRAPH = "Both derivatives are differentiated again. Use create_graph=True in both calls."
_SECOND = (
    "Training differentiates c_xx by the weights. Use create_graph=True in the second call, too. "
    "retain_graph=True is not enough."
)
_NO_GRAPH = "c_x has no graph. Use create_graph=True in the first call."
_MEAN = "The value is too small by the factor B, as in the gradient of a mean. Use the sum."
_NEARLY = "Nearly correct. Use autograd instead of finite differences, in the dtype of the points."
_FIRST = "The first column of the points is x, and the second one is t."
_PLANE = "c_x does not depend on the points here. allow_unused=True and materialize_grads=True give zeros."
_RAMP = (
    "This model has no weights, so c_x has no graph, and autograd cannot differentiate it. Its derivative is 0. "
    "If you add 0 * points to the slope, it has a graph."
)
_OWN = "Differentiate by your own copy: points.detach().requires_grad_()."


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
        (c_t + A * c_x, "c_xx is 0 or missing. Differentiate c_x again, with create_graph=True in the first call."),
        (c_t + A * c_x + B * c_xx, "The sign of the diffusion is wrong. It is - b c_xx."),
        (c_t - A * c_x - B * c_xx, "The sign of the flow is wrong. It is + a c_x."),
        (c_x + A * c_t - B * c_xx, _FIRST),
        (c_x + A * c_t - B * c_xt, _FIRST),
        (c_x + A * c_t + 9 * B * model(points).detach(), _FIRST),
        (c_t + A * c_x - B * c_x**2, "c_xx is not the square of c_x. Differentiate c_x again."),
        (c_t + A * c_x - B * c_xt, "c_xx is the derivative of c_x by x. Take the first column, not the second one."),
        (c_t + A * c_x - B * (c_xx + c_xt), "Differentiate c_x by x only. Do not add the column of t."),
        (right.square(), "Return the residual itself. The loss squares it later."),
        (right.abs(), "Keep the sign of the residual."),
        (right.mean(), "Return one residual for each point, with the shape (B,)."),
        (right.sum(), "Return one residual for each point, with the shape (B,)."),
        (right[:, None], "Return the shape (B,), like the model."),
        *((value, _MEAN) for value in (right / n, (c_t + A * c_x) / n - B * c_xx / n**2)),
        (c_t + A * c_x - B * c_xx / n, f"Look at c_xx. {_MEAN}"),
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
    expect_close(got, right, "The residual is c_t + a c_x - b c_xx at each point.", mistakes, rtol=1e-6)


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
        hint = f"{name} may be a tensor that is trained. Do not call float(), .item() or detach() on it."
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
        raise Wrong("no .grad on the weights", model.w.grad, "Use torch.autograd.grad. backward() adds to .grad.")
    if model.calls != 1:
        raise Wrong("1 call of the model", model.calls, "One forward pass has a graph with all derivatives.")


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
        "By which tensor do you differentiate, and does it require gradients?",
        "Each concentration depends only on its own row. What is then the gradient of the sum of all concentrations?",
        "You differentiate c_x again, and training differentiates the residual. Which option keeps the graph for this?",
    ),
    code=(
        "points = points.detach().requires_grad_()",
        "(slope,) = torch.autograd.grad(c.sum(), points, create_graph=True)",
    ),
)
