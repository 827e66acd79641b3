"""Wrong answers to the first part of chapter 23's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
def pde_residual(model, points_B2, a, b):
    points_B2 = points_B2.detach().requires_grad_()
    c_B = model(points_B2)
    (slope_B2,) = torch.autograd.grad(c_B.sum(), points_B2, create_graph=True)
    c_x_B, c_t_B = (slope_B2 + 0 * points_B2).unbind(1)
    (second_B2,) = torch.autograd.grad(c_x_B.sum(), points_B2, create_graph=True)
    return c_t_B + a * c_x_B - b * second_B2[:, 0]
"""
_with = functools.partial(altered, RIGHT)
_RETURN = "return c_t_B + a * c_x_B - b * second_B2[:, 0]"
_SECOND = "c_x_B.sum(), points_B2, create_graph=True"
_FIRST = "c_B.sum(), points_B2, create_graph=True"
_LINE = f"    (slope_B2,) = torch.autograd.grad({_FIRST})\n"
_TWICE = f"    torch.autograd.grad(c_B.sum(), points_B2)\n{_LINE}"
_DIFFERENCES = """
def pde_residual(model, points_B2, a, b):
    points_B2 = points_B2.detach()
    x, t = torch.eye(2).to(points_B2) * {h}
    c_B, left_B, right_B = model(points_B2), model(points_B2 - x), model(points_B2 + x)
    c_t_B = (model(points_B2 + t) - model(points_B2 - t)) / (2 * {h})
    return c_t_B + a * (right_B - left_B) / (2 * {h}) - b * (right_B - 2 * c_B + left_B) / {h} ** 2
"""
_UNUSED = (
    "create_graph=True)\n    return",
    "create_graph=True, allow_unused=True, materialize_grads=True)\n    return",
)
_ZERO = (" + 0 * points_B2", "")
_GUARD = """torch.zeros_like(points_B2),
    if c_x_B.requires_grad:
        (second_B2,) = torch.autograd.grad("""

RIGHT_TOO = [("a guard", _with(_ZERO, _UNUSED, ("torch.autograd.grad(c_x_B", f"{_GUARD}c_x_B")))]

WRONG = [
    ("plus diffusion", _with(("- b *", "+ b *")), "sign of the diffusion"),
    ("minus flow", _with(("+ a *", "- a *")), "sign of the flow"),
    ("t first", _with(("c_x_B, c_t_B = (slope", "c_t_B, c_x_B = (slope")), "first column"),
    ("names swapped at the end", _with((_RETURN, "return c_x_B + a * c_t_B - b * second_B2[:, 0]")), "first column"),
    ("squared slope", _with(("second_B2[:, 0]", "c_x_B**2")), "not the square of c_x"),
    ("mixed derivative", _with(("second_B2[:, 0]", "second_B2[:, 1]")), "derivative of c_x by x. Take"),
    ("both columns", _with(("second_B2[:, 0]", "second_B2.sum(1)")), "by x only"),
    ("squared", _with((_RETURN, f"{_RETURN.replace('return ', 'return (')}) ** 2")), "squares it later"),
    ("mean", _with((_RETURN, f"{_RETURN.replace('return ', 'return (')}).mean()")), "one residual for each point"),
    ("a column", _with((_RETURN, f"{_RETURN.replace('return ', 'return (')})[:, None]")), "Return the shape (B,)"),
    ("second without a graph", _with((_SECOND, "c_x_B.sum(), points_B2, retain_graph=True")), "create_graph"),
    ("second frees the graph", _with((_SECOND, "c_x_B.sum(), points_B2")), "in the second call, too"),
    ("first without a graph", _with(_ZERO, (_FIRST, "c_B.sum(), points_B2, retain_graph=True")), "in the first call"),
    ("first frees the graph", _with(_ZERO, (_FIRST, "c_B.sum(), points_B2")), "in the first call"),
    ("twice without a graph", _with((_LINE, _TWICE)), "in both calls"),
    ("gradients of means", _with((".sum()", ".mean()")), "too small by the factor B"),
    ("gradient of the mean c", _with(("c_B.sum()", "c_B.mean()")), "too small by the factor B"),
    ("gradient of the mean c_x", _with(("c_x_B.sum()", "c_x_B.mean()")), "Look at c_xx"),
    ("differences", _DIFFERENCES.format(h=1e-3), "instead of finite differences"),
    ("coarse differences", _DIFFERENCES.format(h=1e-2), "instead of finite differences"),
    ("fine differences", _DIFFERENCES.format(h=1e-4), "One forward pass"),
    ("float16", _with(("model(points_B2)", "model(points_B2.half()).half()")), "in the dtype of the points"),
    ("detached slope", _with((_RETURN, _RETURN.replace("c_t_B", "c_t_B.detach()"))), "c_t is a constant"),
    ("detached all", _with((_RETURN, f"{_RETURN.replace('return ', 'return (')}).detach()")), "create_graph"),
    ("constants as numbers", _with((_RETURN, _RETURN.replace("a *", "float(a) *"))), "may be a tensor"),
    ("a plane fails", _with(_ZERO), "materialize_grads"),
    ("a plane without weights fails", _with(_ZERO, _UNUSED), "has no weights"),
    ("all by t", _with(("c_x_B, c_t_B = (slope", "c_t_B, c_x_B = (slope"), ("second_B2[:, 0]", "second_B2[:, 1]")),
     "first column"),
    ("no graph of the slope",
     _with(("c_B.sum(), points_B2, create_graph=True", "c_B.sum(), points_B2, retain_graph=True")), "create_graph"),
    ("the points marked", _with(("points_B2.detach().requires_grad_()", "points_B2.requires_grad_()")), "copy"),
    ("backward", _with(("    return", "    c_B.sum().backward(retain_graph=True)\n    return")), "backward() adds"),
    ("called twice", _with(("    (second", "    model(points_B2)\n    (second")), "One forward pass"),
]  # fmt: skip
