"""Wrong answers to the exercise of chapter 14, each a misconception: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
@torch.no_grad()
def larc_step(parameters, velocities, rate, momentum, decay, trust):
    for w, v in zip(parameters, velocities):
        if w.grad is None:
            continue
        g, own, factor = w.grad, decay, 1.0
        if w.ndim == 1:
            own = 0.0
        else:
            below = g.norm() + own * w.norm()
            if w.norm() > 0 and below > 0:
                factor = min(trust * w.norm(), rate * below) / (rate * below) if rate else 1.0
        v.mul_(momentum).add_(factor * (g + own * w))
        w -= rate * v
"""
_BELOW = "below = g.norm() + own * w.norm()"
_FACTOR = "factor = min(trust * w.norm(), rate * below) / (rate * below) if rate else 1.0"
_V = "v.mul_(momentum).add_(factor * (g + own * w))"
_W = "w -= rate * v"
_GUARD = "            if w.norm() > 0 and below > 0:\n                factor"
_NO_GUARD = "            factor"
_VECTOR = "        if w.ndim == 1:\n            own = 0.0\n        else:\n"

CHAPTERS = """
@torch.no_grad()
def larc_step(parameters, velocities, rate, momentum, decay, trust):
    for w, v in zip(parameters, velocities):
        if w.grad is None:
            continue
        move, own = w.grad, rate
        if w.ndim > 1:
            above, below = trust * w.norm(), w.grad.norm() + decay * w.norm()
            own = rate * torch.where((above > 0) & (below > 0), above / below, 1.0)
            move = w.grad + decay * w
        w -= v.mul_(momentum).add_(own * move)
"""

_with = functools.partial(altered, RIGHT)


WRONG = [
    ("the chapter's LARS", CHAPTERS, "moves with γ times λ"),
    ("the chapter's LARS, capped",
     altered(CHAPTERS,
             ("own = rate * torch.where((above > 0) & (below > 0), " "above / below, 1.0)",
              "own = torch.where((above > 0) & (below > 0), above / below, rate).clamp(max=rate)")),
     "γ is outside of the velocity"),
    ("λ not divided by γ", _with((_FACTOR, "factor = min(trust * w.norm() / below, rate)")), "moves with γ times λ"),
    ("λ capped at one", _with((_FACTOR, "factor = min(trust * w.norm() / below, 1.0)")), "moves with γ times λ"),
    ("not capped", _with((_FACTOR, "factor = trust * w.norm() / (rate * below) if rate else 1.0")), "LARS does this"),
    ("the larger of the two", _with(("min(trust", "max(trust")), "Use the smaller one"),
    ("zero by zero at the end of a schedule",
     _with((_FACTOR, "factor = min(trust * w.norm() / below, torch.tensor(" "rate)) / torch.tensor(rate)")),
     "If γ is 0"),
    ("γ of zero is an error", _with((" if rate else 1.0", "")), "If γ is 0"),
    ("decay not below", _with((_BELOW, "below = g.norm()")), "missing in the denominator"),
    ("the norm of the sum", _with((_BELOW, "below = (g + own * w).norm()")), "sum of two norms"),
    ("decay not in the step", _with((_V, "v.mul_(momentum).add_(factor * g)")), "missing in the velocity"),
    ("no decay at all", _with((_BELOW, "below = g.norm()"), ("(g + own * w)", "g")), "There is no weight decay"),
    ("decay around the ratio", _with((_V, "v.mul_(momentum).add_(factor * g)"), (_W, "w -= rate * v + rate * own * w")),
     "does not multiply the weight decay"),
    ("one λ for all layers",
     _with(("    for w, v",
            "    W = torch.cat([p.flatten() for p in parameters])\n"
            "    G = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()\n"
            "                   for p in parameters])\n    for w, v"), (_BELOW, "below = G.norm() + own * W.norm()"),
           ("min(trust * w.norm()", "min(trust * W.norm()")), "All layers have the same λ"),
    ("biases limited and decayed", _with((_VECTOR, "        if True:\n")), "limited by λ, and it had weight decay"),
    ("biases limited", _with((_VECTOR, "        if True:\n            own = decay if w.ndim > 1 else 0.0\n")),
     "A bias was limited"),
    ("biases decayed", _with(("            own = 0.0\n", "            pass\n")), "A bias had weight decay"),
    ("zeros stay", _with((_GUARD, _NO_GUARD), ("/ (rate * below) if rate", "/ (rate * below) if rate and below > 0")),
     "stay zero forever"),
    ("divided by zero", _with((_GUARD, _NO_GUARD)), "a division by zero"),
    ("eps below", _with((_BELOW, "below = g.norm() + own * w.norm() + 1e-6")), "if the gradient is small"),
    ("raw gradients remembered", _with((_V, "v.mul_(momentum).add_(g + own * w)"), (_W, "w -= rate * factor * v")),
     "before you add it to the velocity"),
    ("the rate inside", _with((_V, "v.mul_(momentum).add_(rate * factor * (g + own * w))"), (_W, "w -= v")),
     "γ is outside of the velocity"),
    ("no rate", _with((_W, "w -= v")), "The rate γ is missing"),
    ("velocity not kept", _with((_V, "v = momentum * v + factor * (g + own * w)")), "lost after the call"),
    ("an average", _with((_V, "v.mul_(momentum).add_((1 - momentum) * factor * (g + own * w))")), None),
    ("SGD", _with((_FACTOR, "pass")), "Use the smaller one"),
    ("upside down", _with((_FACTOR, "factor = min(trust * below / w.norm() / rate, 1.0) if rate else 1.0")),
     "upside down"),
    ("no root",
     _with((_BELOW, "below = g.square().sum() + own * w.square().sum()"),
           ("min(trust * w.norm()", "min(trust * w.square().sum()")), "square root is missing"),
    ("no trust coefficient", _with(("min(trust * ", "min(")), "trust coefficient is missing"),
    ("norms of numbers",
     _with((_BELOW, "below = g.abs() + own * w.abs()"), ("if w.norm() > 0 and below > 0", "if (below > 0).all()"),
           (_FACTOR, "factor = (trust * w.abs() / below / rate).clamp(max=1) if rate else 1.0")),
     "not one value for each weight"),
    ("uphill", _with((_W, "w += rate * v")), "direction of the gradient"),
    ("a new tensor", _with((_W, "w = w - rate * v")), "did not change"),
    ("gradients changed", _with(("        v.mul_", "        g += own * w\n        v.mul_"), ("(g + own * w))", "g)")),
     "Do not change parameter.grad"),
    ("None is a gradient", _with(("        if w.grad is None:\n            continue\n", "")), None),
]  # fmt: skip
