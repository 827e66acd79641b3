"""Wrong answers to the first part of chapter 19's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
def one_f_one_b(rank, p, m):
    ahead = min(m, p - rank - 1)
    order = [("F", part) for part in range(ahead)]
    for part in range(m):
        if ahead + part < m:
            order.append(("F", ahead + part))
        order.append(("B", part))
    return order
"""
_AHEAD = "ahead = min(m, p - rank - 1)"
_with = functools.partial(altered, RIGHT)

WRONG = [
    ("GPipe", _with((_AHEAD, "ahead = m")), "that is GPipe"),
    ("no warm-up", _with((_AHEAD, "ahead = 0")), "One part at a time"),
    ("all ranks alike", _with((_AHEAD, "ahead = min(m, p - 1)")), "Every rank warms up alike"),
    ("the last rank warms up longest", _with((_AHEAD, "ahead = min(m, rank)")), "farthest from the loss"),
    ("one more than needed", _with((_AHEAD, "ahead = min(m, p - rank)")), "A part more than needed"),
    ("one too few", _with((_AHEAD, "ahead = min(m, max(0, p - rank - 2))")), "A part too few"),
    ("backward first in a pair", _with(
        ("""        if ahead + part < m:
            order.append(("F", ahead + part))
        order.append(("B", part))
""", """        if ahead == 0:
            order.append(("F", part))
        order.append(("B", part))
        if 0 < ahead and ahead + part < m:
            order.append(("F", ahead + part))
""")), "A part too few"),
    ("more forwards than parts", _with((_AHEAD, "ahead = p - rank - 1"), ("        if ahead + part < m:\n    ", "")),
     "no more parts than m"),
    ("no way back at the end", _with(("    for part in range(m):\n", "    for part in range(m - ahead):\n")),
     "never came back"),
    ("the warm-up's parts forgotten", _with(('order = [("F", part) for part in range(ahead)]', "order = []")),
     "never go forward"),
    ("from 1", _with(("    return order", "    return [(kind, part + 1) for kind, part in order]")), "numbered from 0"),
    ("last first", _with((_AHEAD, "ahead = m"), ('("B", part)', '("B", m - 1 - part)')), "last part comes back first"),
    ("backward before forward", _with(("    return order", "    return sorted(order)")), "before it went forward"),
    ("words", _with(("    return order", "    return [f'{act}' for act in order]")), "Each act is a pair"),
    ("all ranks' orders", _with(("    return order", "    return [order] * p")), "Each act is a pair"),
    ("a part twice", _with(("    return order", "    return order + [('B', m - 1)]")), "2 m acts"),
]  # fmt: skip
