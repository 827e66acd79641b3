"""Wrong answers to the exercise of chapter 04, each a misconception: (label, source, part of the hint expected)."""

RIGHT = """
def scaled_update(loss, optimizer, scale, good_steps, interval=2000):
    optimizer.zero_grad()
    (loss * scale).backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    for gradient in gradients:
        gradient /= scale
    if not all(gradient.isfinite().all() for gradient in gradients):
        return scale / 2, 0
    optimizer.step()
    if good_steps + 1 == interval:
        return scale * 2, 0
    return scale, good_steps + 1
"""
_UNSCALE = "    for gradient in gradients:\n        gradient /= scale\n"
_LOOK = "    if not all(gradient.isfinite().all() for gradient in gradients):\n"


def _with(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


WRONG = [
    ("not unscaled", _with(_UNSCALE, ""), "still scaled"),
    ("unscaled twice", _with(_UNSCALE, _UNSCALE * 2), "Unscale once"),
    ("the loss not scaled", _with("(loss * scale)", "loss").replace(_UNSCALE, ""), "too late"),
    (
        "gradients scaled afterwards",
        _with("(loss * scale).backward()", "loss.backward()").replace(
            _UNSCALE, "    for gradient in gradients:\n        gradient *= scale\n" + _UNSCALE
        ),
        "too late",
    ),
    ("never cleared", _with("    optimizer.zero_grad()\n", ""), "Gradients add up"),
    ("no update", _with("    optimizer.step()\n", ""), "did not move"),
    ("does not skip",
     _with(_LOOK, "    optimizer.step()\n" + _LOOK).replace("/ 2, 0\n    optimizer.step()\n", "/ 2, 0\n"),
     "do not call optimizer.step"),
    ("sets bad gradients to 0 and steps",
     _with("        return scale / 2, 0\n",
           "        for g in gradients:\n            g.zero_()\n"
           "        optimizer.step()\n        return scale / 2, 0\n"), "do not call optimizer.step"),
    ("looks for NaN only", _with(_LOOK, "    if any(g.isnan().any() for g in gradients):\n"), "inf as well as for NaN"),
    ("looks for inf only", _with(_LOOK, "    if any(g.isinf().any() for g in gradients):\n"), "NaN went into"),
    ("looks at the first tensor only", _with(_LOOK, "    if not gradients[0].isfinite().all():\n"), "every tensor"),
    ("looks at the loss only", _with(_LOOK, "    if not loss.isfinite():\n"), "Look at the gradients"),
    ("grows after an overflow", _with("scale / 2", "scale * 2"), "grew after an overflow"),
    ("a floor under the scale", _with("scale / 2, 0", "max(scale / 2, 1.0), 0"), "no floor at 1"),
    ("keeps the scale after an overflow", _with("scale / 2, 0", "scale, 0"), "The scale stayed"),
    ("keeps the count after an overflow", _with("scale / 2, 0", "scale / 2, good_steps"), "starts again from 0"),
    ("grows a step late", _with("good_steps + 1 == interval", "good_steps == interval"), "Count this update too"),
    ("grows a step early", _with("good_steps + 1 == interval", "good_steps + 2 == interval"), "too early"),
    ("grows at each good update", _with("good_steps + 1 == interval", "True"), "not after each one"),
    ("never starts to count again", _with("scale * 2, 0", "scale * 2, good_steps + 1"), "starts again from 0"),
    ("goes on growing",
     _with("good_steps + 1 == interval", "good_steps + 1 >= interval").replace("* 2, 0", "* 2, good_steps + 1"),
     "starts again from 0"),
    ("unscaled after the step",
     _with(_UNSCALE, "").replace("    optimizer.step()\n", "    optimizer.step()\n" + _UNSCALE), "before step()"),
    ("returns the count first", _with("scale / 2, 0", "0, scale / 2"), "Return the scale first"),
    ("returns the scale only", _with("    return scale, good_steps + 1\n", "    return scale\n"), "Return both"),
    ("trips over a weight without a gradient", _with(" if p.grad is not None", ""), None),
]  # fmt: skip
