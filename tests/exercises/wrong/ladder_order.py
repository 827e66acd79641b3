"""Wrong answers to the exercise of chapter 07, each a misconception: (label, source, part of the hint expected)."""

RIGHT = """
def whole_s(parts):
    return max(parts["load"], sum(s for part, s in parts.items() if part != "load"))

def turned(parts, factors):
    return {part: s * factors.get(part, 1) for part, s in parts.items()}

def ladder_order(parts_s, changes):
    parts, left, order = dict(parts_s), dict(changes), []
    while left:
        best = min(left, key=lambda name: whole_s(turned(parts, left[name])))
        if whole_s(turned(parts, left[best])) >= whole_s(parts):
            break
        parts = turned(parts, left.pop(best))
        order.append((best, whole_s(parts)))
    return order
"""
_BEST = "min(left, key=lambda name: whole_s(turned(parts, left[name])))"
_STOP = "        if whole_s(turned(parts, left[best])) >= whole_s(parts):\n            break\n"


def _with(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


WRONG = [
    ("by the size of the part", _with(_BEST, "max(left, key=lambda name: max(parts[part] for part in left[name]))"),
     "Compare steps, not parts"),
    ("by the smallest factor", _with(_BEST, "min(left, key=lambda name: min(left[name].values()))"),
     "compare steps, not factors"),
    ("gains of the baseline, never again",
     _with(_BEST, "min(left, key=lambda name: whole_s(turned(parts_s, left[name])))"), "compare all others again"),
    ("smallest gain first",
     _with(_BEST,
           "max((n for n in left if whole_s(turned(parts, left[n])) < whole_s(parts)), "
           "key=lambda name: whole_s(turned(parts, left[name])), default=next(iter(left)))"),
     "largest gain comes first"),
    ("everything added",
     _with('max(parts["load"], sum(s for part, s in parts.items() if part != "load"))', "sum(parts.values())"), None),
    ("gains multiplied",
     _with("order.append((best, whole_s(parts)))",
           "gain = whole_s(parts_s) / whole_s(turned(parts_s, changes[best]))\n"
           "        order.append((best, (order[-1][1] if order else whole_s(parts_s)) / gain))"),
     "Gains do not multiply"),
    ("never stops", _with(_STOP, ""), "Stop when no change"),
    ("gains instead of seconds",
     _with("order.append((best, whole_s(parts)))", "order.append((best, whole_s(parts_s) / whole_s(parts)))"),
     "not its gain"),
    ("seconds saved",
     _with("order.append((best, whole_s(parts)))", "order.append((best, whole_s(parts_s) - whole_s(parts)))"),
     "not the seconds that were saved"),
    ("names only", _with("order.append((best, whole_s(parts)))", "order.append(best)"), "list of pairs"),
    ("seconds before the change",
     _with("        parts = turned(parts, left.pop(best))\n        order.append((best, whole_s(parts)))",
           "        order.append((best, whole_s(parts)))\n        parts = turned(parts, left.pop(best))"),
     "not before"),
    ("loading ignored",
     _with('max(parts["load"], sum(s for part, s in parts.items() if part != "load"))',
           "sum(s for part, s in parts.items() if part != 'load')"), None),
    ("one change only",
     _with("        order.append((best, whole_s(parts)))\n",
           "        order.append((best, whole_s(parts)))\n        break\n"), None),
]  # fmt: skip
