"""Wrong answers to the exercise of chapter 05, each a misconception: (label, source, part of the hint expected)."""

RIGHT = """
import torch

def limited_step(state, change, dt, limit):
    step = dt * change
    largest = step.abs().max()
    scale = limit / largest.clamp(min=limit)
    return state + step * scale
"""


def _with(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


_SCALE = "    scale = limit / largest.clamp(min=limit)\n"
_IF = "    scale = 1.0\n    if largest > limit:\n        scale = limit / largest\n"

WRONG = [
    ("the if kept, the print gone", _with(_SCALE, _IF), "An if on a tensor"),
    ("the print kept", _with(_SCALE, _SCALE + '    print("largest step", largest)\n'), "cannot print from inside"),
    ("the scale as a Python number", _with("largest.clamp(min=limit)", "max(largest.item(), limit)"), "item, float"),
    ("a Python bool of a tensor", _with(_SCALE, _IF.replace("largest > limit", "bool(largest > limit)")),
     "item, float"),
    ("the branch dropped", _with(" * scale", ""), "was not scaled down"),
    ("always scaled", _with("largest.clamp(min=limit)", "largest"), "scaled *up*"),
    ("points cut off one by one", _with("step * scale", "step.clamp(-limit, limit)"), "bends the flow"),
    ("no absolute value", _with("step.abs().max()", "step.max()"), "absolute value"),
    ("the scale detached", _with("step.abs().max()", "step.detach().abs().max()"), "Do not detach it"),
    ("everything detached", _with("state + step * scale", "state.detach() + (step * scale).detach()"), "detached"),
    ("divides by 0 on the side not taken",
     _with("limit / largest.clamp(min=limit)", "torch.where(largest > limit, limit / largest, 1.0)"),
     "computes both sides"),
    ("changes its input", _with("state + step * scale", "state.add_(step * scale)"), "in place"),
    ("the step scaled in place", _with("step * scale", "step.mul_(scale)"), "overwritten"),
    ("the step taken backwards", _with("state + step", "state - step"), None),
    ("boolean indexing",
     _with(_SCALE, "    scale = (limit / largest.clamp(min=limit))\n    step[step.abs() > limit]\n"),
     "An if on a tensor"),
    (
        "left to Python altogether",
        RIGHT.replace("import torch\n", "import torch\n\n@torch.compiler.disable").replace(
            "def limited_step", "def helper"
        )
        + "\ndef limited_step(state, change, dt, limit):\n    return helper(state, change, dt, limit) + 0\n",
        None,
    ),
]  # fmt: skip
