"""Wrong answers to the exercise of chapter 14, each a misconception: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
@torch.no_grad()
def lars_step(parameters, velocities, rate, momentum, decay, trust):
    for w, v in zip(parameters, velocities):
        if w.grad is None:
            continue
        g, own, ratio = w.grad, decay, 1.0
        if w.ndim == 1:
            own = 0.0
        else:
            below = g.norm() + own * w.norm()
            if w.norm() > 0 and below > 0:
                ratio = trust * w.norm() / below
        v.mul_(momentum).add_(rate * ratio * (g + own * w))
        w -= v
"""
_BELOW = "below = g.norm() + own * w.norm()"
_RATIO = "ratio = trust * w.norm() / below"
_V = "v.mul_(momentum).add_(rate * ratio * (g + own * w))"
_GUARD = "            if w.norm() > 0 and below > 0:\n                ratio"
_NO_GUARD = "            ratio"
_VECTOR = "        if w.ndim == 1:\n            own = 0.0\n        else:\n"


_with = functools.partial(altered, RIGHT)


WRONG = [
    ("decay not below", _with((_BELOW, "below = g.norm()")), "missing from the denominator"),
    ("the norm of the sum", _with((_BELOW, "below = (g + own * w).norm()")), "two norms"),
    ("decay not in the step", _with((_V, "v.mul_(momentum).add_(rate * ratio * g)")), "missing from the step"),
    ("no decay at all", _with((_BELOW, "below = g.norm()"), ("(g + own * w)", "g")), "nowhere"),
    (
        "decay around the ratio",
        _with((_V, "v.mul_(momentum).add_(rate * ratio * g)"), ("w -= v", "w -= v + rate * own * w")),
        "went around",
    ),
    (
        "one ratio for all layers",
        _with(
            ("    for w, v", "    W = torch.cat([p.flatten() for p in parameters])\n"
             "    G = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()\n"
             "                   for p in parameters])\n    for w, v"),
            (_BELOW, "below = G.norm() + own * W.norm()"),
            (_RATIO, "ratio = trust * W.norm() / below"),
        ),
        "one ratio for all layers",
    ),
    (
        "biases adapted and decayed",
        _with((_VECTOR, "        if True:\n")),
        "scaled by a ratio, and decayed",
    ),
    ("biases adapted", _with((_VECTOR, "        if True:\n            own = decay if w.ndim > 1 else 0.0\n")),
     "A bias was scaled"),
    ("biases decayed", _with(("            own = 0.0\n", "            pass\n")), "A bias was decayed"),
    ("zeros stay", _with((_GUARD, _NO_GUARD), ("/ below", "/ (below if below > 0 else 1.0)")), "can never leave zero"),
    ("divided by zero", _with((_GUARD, _NO_GUARD)), "divided by zero"),
    ("η where a norm is zero", _with(("g, own, ratio = w.grad, decay, 1.0", "g, own, ratio = w.grad, decay, trust"),
                                     ("            own = 0.0\n", "            own, ratio = 0.0, 1.0\n")),
     "1, not η"),
    ("eps below", _with((_BELOW, "below = g.norm() + own * w.norm() + 1e-6")), "swallows a small gradient"),
    (
        "raw gradients remembered",
        _with((_V, "v.mul_(momentum).add_(g + own * w)"), ("w -= v", "w -= rate * ratio * v")),
        "Scale first, then remember",
    ),
    (
        "the rate outside",
        _with((_V, "v.mul_(momentum).add_(ratio * (g + own * w))"), ("w -= v", "w -= rate * v")),
        "the rate of its own time",
    ),
    ("the rate twice", _with(("w -= v", "w -= rate * v")), "The rate came in twice"),
    ("no rate", _with(("rate * ratio", "ratio")), "The rate is missing"),
    ("velocity not kept", _with((_V, "v = momentum * v + rate * ratio * (g + own * w)")), "not kept"),
    (
        "an average",
        _with((_V, "v.mul_(momentum).add_((1 - momentum) * rate * ratio * (g + own * w))")),
        None,
    ),
    ("upside down", _with((_RATIO, "ratio = trust * below / w.norm()")), "upside down"),
    ("no root", _with(("w.norm()", "w.square().sum()"), ("g.norm()", "g.square().sum()")), "left out the root"),
    ("no trust coefficient", _with((_RATIO, "ratio = w.norm() / below")), "trust coefficient is missing"),
    ("norms of numbers", _with((_BELOW, "below = g.abs() + own * w.abs()"),
                               ("if w.norm() > 0 and below > 0", "if (below > 0).all()"),
                               (_RATIO, "ratio = trust * w.abs() / below")), "not one of each number"),
    ("uphill", _with(("w -= v", "w += v")), "uphill"),
    ("a new tensor", _with(("w -= v", "w = w - v")), "did not change"),
    ("gradients changed", _with(("        v.mul_", "        g += own * w\n        v.mul_"), ("(g + own * w))", "g)")),
     "as it is"),
    ("None is a gradient", _with(("        if w.grad is None:\n            continue\n", "")), None),
]  # fmt: skip
