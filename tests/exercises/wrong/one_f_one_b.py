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
    ("GPipe", _with((_AHEAD, "ahead = m")), "are GPipe"),
    ("no warm-up", _with((_AHEAD, "ahead = 0")), "Only one micro-batch"),
    ("all ranks alike", _with((_AHEAD, "ahead = min(m, p - 1)")), "Every rank has the same warm-up"),
    ("the last rank warms up longest", _with((_AHEAD, "ahead = min(m, rank)")), "farthest from the loss"),
    ("one more than needed", _with((_AHEAD, "ahead = min(m, p - rank)")), "One micro-batch more than necessary"),
    ("one too few", _with((_AHEAD, "ahead = min(m, max(0, p - rank - 2))")), "One micro-batch too few"),
    ("backward first in a pair", _with(
        ("""        if ahead + part < m:
            order.append(("F", ahead + part))
        order.append(("B", part))
""", """        if ahead == 0:
            order.append(("F", part))
        order.append(("B", part))
        if 0 < ahead and ahead + part < m:
            order.append(("F", ahead + part))
""")), "One micro-batch too few"),
    ("more forwards than parts", _with((_AHEAD, "ahead = p - rank - 1"), ("        if ahead + part < m:\n    ", "")),
     "only m micro-batches"),
    ("no way back at the end", _with(("    for part in range(m):\n", "    for part in range(m - ahead):\n")),
     "have no backward pass"),
    ("the warm-up's parts forgotten", _with(('order = [("F", part) for part in range(ahead)]', "order = []")),
     "have no forward pass"),
    ("from 1", _with(("    return order", "    return [(kind, part + 1) for kind, part in order]")), "numbered from 0"),
    ("last first", _with((_AHEAD, "ahead = m"), ('("B", part)', '("B", m - 1 - part)')), "has the first backward"),
    ("backward before forward", _with(("    return order", "    return sorted(order)")), "needs the forward pass"),
    ("words", _with(("    return order", "    return [f'{action}' for action in order]")), "Each pass is a pair"),
    ("all ranks' orders", _with(("    return order", "    return [order] * p")), "Each pass is a pair"),
    ("a micro-batch twice", _with(("    return order", "    return order + [('B', m - 1)]")), "2 m passes"),
]  # fmt: skip
