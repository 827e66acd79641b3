"""Wrong answers to the exercise of chapter 02, each a misconception: (label, source, part of the hint expected)."""

RIGHT = """
def bottleneck(step):
    if step.product_s + step.other_s >= 0.75 * step.step_s:
        return "computing"
    parts = {
        "loading": step.wait_s,
        "waiting": step.synchronise_s + step.gap_s,
        "calling": step.launch_s,
    }
    return max(parts, key=parts.get)
"""


def _with(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


_RULE = '    if step.product_s + step.other_s >= 0.75 * step.step_s:\n        return "computing"\n'

WRONG = [
    ("less than three quarters: 0.6", _with("0.75", "0.6"), "less than three quarters"),
    ("less than three quarters: 0.7", _with("0.75", "0.7"), "less than three quarters"),
    ("more than three quarters: 0.85", _with("0.75", "0.85"), "three quarters of the step or more"),
    ("the longest part of the host, whatever is computed", _with(_RULE, ""), "look at that first"),
    ("a longest part that is computing is to blame, however short",
     _with("0.75 * step.step_s", "max(step.wait_s, step.synchronise_s + step.gap_s, step.launch_s)"),
     "less than three quarters"),
    ("products alone are computing", _with("step.product_s + step.other_s", "step.product_s"), None),
    ("only a device computes", _with("step.product_s + step.other_s", "(step.device_s or 0)"), "product_s and other_s"),
    ("more than, not at least", _with(">=", ">"), "three quarters of the step or more"),
    ("an idle device means launches", _with("    return max(parts, key=parts.get)", '    return "calling"'),
     "look at wait_s"),
    ("any wait for data is to blame",
     RIGHT.replace("    if", '    if step.wait_s > 0.2 * step.step_s:\n        return "loading"\n    if'), None),
    ("any synchronising call is to blame",
     RIGHT.replace("    if", '    if step.n_synchronise >= 1:\n        return "waiting"\n    if'), "look at wait_s"),
    ("many calls are to blame", RIGHT.replace("    if", '    if step.n_calls > 150:\n        return "calling"\n    if'),
     None),
    ("a device busy for half of the time", _with("0.75", "0.5"), "less than three quarters"),
    ("always busy", _with("0.75", "0.999"), "three quarters of the step or more"),
    ("the wait for a device alone", _with("step.synchronise_s + step.gap_s", "step.synchronise_s"),
     "synchronise_s and"),
    ("the gap alone", _with("step.synchronise_s + step.gap_s", "step.gap_s"), "synchronise_s and gap_s"),
    ("loading on another thread", _with("step.wait_s", "step.read_s"), "look at wait_s"),
    ("the shortest part", _with("max(parts", "min(parts"), "look at wait_s"),
    ("the share, not the name", _with("max(parts, key=parts.get)", "max(parts.values())"), "four names"),
    ("the library's name", _with('return "computing"', 'return "compute-bound"'), "four names"),
    ("nothing returned", _with("    return max(parts, key=parts.get)", "    max(parts, key=parts.get)"), None),
]  # fmt: skip
