"""Wrong answers to the exercise of chapter 24, each a misconception: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
@torch.no_grad()
def apply_late(parameters, velocities, gradients, taken_at, version, rate, momentum, largest):
    late = version - taken_at
    if late < 0:
        raise ValueError("of the future")
    if late > largest:
        return version
    if not all(g is None or g.isfinite().all() for g in gradients):
        return version
    for w, v, g in zip(parameters, velocities, gradients):
        if g is None:
            continue
        v.mul_(momentum).add_(g / max(1, late))
        w -= rate * v
    return version + 1
"""
_V = "v.mul_(momentum).add_(g / max(1, late))"
_W = "w -= rate * v"
_FUTURE = '    if late < 0:\n        raise ValueError("of the future")\n'
_BROKEN = "    if not all(g is None or g.isfinite().all() for g in gradients):\n        return version\n"
_NONE = "        if g is None:\n            continue\n"

_with = functools.partial(altered, RIGHT)


RIGHT_TOO = [
    ("by hand", _with((_V, "v.copy_(momentum * v + g / (late or 1))"), (_W, "w.sub_(v, alpha=rate)"))),
    ("with torch", _with((_V, "v.copy_(torch.add(v * momentum, g, alpha=1 / max(late, 1)))"))),
]
WRONG = [
    ("not divided", _with((_V, "v.mul_(momentum).add_(g)")), "counts in full. Divide"),
    ("divided by zero", _with(("max(1, late)", "late")), "smallest possible divisor"),
    ("divided by one more", _with(("max(1, late)", "(1 + late)")), "g / (τ + 1)"),
    ("divided by the root", _with(("max(1, late)", "max(1, late) ** 0.5")), "g / √τ"),
    ("staleness upside down", _with(("max(1, late)", "max(1, taken_at - version)")), "counts in full. Divide"),
    ("the old velocity divided, too", _with((_V, "v.mul_(momentum).div_(max(1, late)).add_(g / max(1, late))")),
     "also divided the old velocity"),
    ("the step divided", _with((_V, "v.mul_(momentum).add_(g)"), (_W, "w -= rate / max(1, late) * v")),
     "divided the step"),
    ("damped", _with((_V, "v.mul_(momentum).add_((1 - momentum) * g / max(1, late))")), "(1 - m)"),
    ("momentum twice", _with((_V, "v.mul_(momentum).mul_(momentum).add_(g / max(1, late))")),
     "used the momentum twice"),
    ("velocity forgotten", _with((_V, "v = momentum * v + g / max(1, late)")), "not kept"),
    ("uphill", _with((_W, "w += rate * v")), "uphill"),
    ("no rate", _with((_W, "w -= v")), "rate is missing"),
    ("new weights", _with((_W, "w = w - rate * v")), "weights did not change"),
    ("the worker's tensors divided", _with((_V, "v.mul_(momentum).add_(g.div_(max(1, late)))")),
     "tensors of the worker"),
    ("None is zero", _with((_NONE, "        g = torch.zeros_like(w) if g is None else g\n")), "Skip it"),
    ("None ends it", _with((_NONE, "        if g is None:\n            return version + 1\n")), "Skip it"),
    ("None is an error", _with((_NONE, "")), None),
    ("never dropped", _with(("    if late > largest:\n        return version\n", "")), "Drop a message"),
    ("dropped too early", _with(("late > largest", "late >= largest")), "still counts"),
    ("dropped, and yet a version", _with(("    if late > largest:\n        return version\n",
     "    if late > largest:\n        return version + 1\n")), "stays the same"),
    ("version not counted", _with(("return version + 1", "return version")), "increases the version"),
    ("the worker's version", _with(("return version + 1", "return taken_at + 1")), "increases the version"),
    ("NaN applied", _with((_BROKEN, "")), "drop the whole message"),
    ("NaN alone looked for", _with(("g.isfinite().all()", "not g.isnan().any()")), "drop the whole message"),
    ("NaN skips its layer only", _with((_BROKEN, ""), (_NONE,
     "        if g is None or not g.isfinite().all():\n            continue\n")), "drop the whole message"),
    ("broken, and yet a version", _with((_BROKEN, _BROKEN.replace("return version", "return version + 1"))),
     "stays the same"),
    ("a future version counts in full", _with((_FUTURE, "")), "has not reached this version"),
    ("a future version is dropped", _with((_FUTURE, "    if late < 0:\n        return version\n")),
     "has not reached this version"),
    ("the error comes after the update", _with((_FUTURE, ""), ("    return version + 1",
     '    if late < 0:\n        raise ValueError("late")\n    return version + 1')), "has not reached this version"),
]  # fmt: skip
