"""Wrong answers to the second part of chapter 19's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
def choose_mesh(ranks, node, heads, blocks, batch, states_gb, sample_gb, cap_gb, talk):
    best = None
    for t in range(1, ranks + 1):
        for p in range(1, ranks + 1):
            if ranks % (t * p):
                continue
            d = ranks // (t * p)
            m = batch // d
            if heads % t or node % t or blocks % p or batch % d:
                continue
            held = states_gb / (t * p) + min(m, p) * sample_gb / (t * p)
            slow = (m + p - 1) / m * (1 + talk * (t - 1) / t)
            if held <= cap_gb and (best is None or slow < best[0]):
                best = slow, (d, t, p)
    return best and best[1]
"""
_with = functools.partial(altered, RIGHT)
_HELD = "states_gb / (t * p) + min(m, p) * sample_gb / (t * p)"

WRONG = [
    ("GPipe's activations", _with(("min(m, p) * sample", "m * sample")), "not all m"),
    ("one part", _with(("min(m, p) * sample", "sample")), "more than one micro-batch"),
    ("as many parts as stages", _with(("min(m, p) * sample", "p * sample")), "fewer micro-batches than stages"),
    ("states whole", _with(("states_gb / (t * p) +", "states_gb +")), "divided by t and p"),
    ("states not cut by t", _with(("states_gb / (t * p) +", "states_gb / p +")), "parallelism divides the states"),
    ("states not cut by p", _with(("states_gb / (t * p) +", "states_gb / t +")), "only the states of its own blocks"),
    ("activations not cut by p", _with(("sample_gb / (t * p)", "sample_gb / t")), "activations of its own blocks"),
    ("activations not cut by t", _with(("sample_gb / (t * p)", "sample_gb / p")), "activations are divided by t"),
    ("states alone", _with((_HELD, "states_gb / (t * p)")), "activations in flight need memory"),
    ("activations alone", _with((_HELD, "min(m, p) * sample_gb / (t * p)")), "states need memory"),
    ("messages are free", _with((" * (1 + talk * (t - 1) / t)", "")), "costs communication"),
    ("no bubble", _with(("(m + p - 1) / m * ", "")), "larger bubble"),
    ("the bubble's share of all time", _with(("(m + p - 1) / m * ", "(1 + (p - 1) / (m + p - 1)) * ")), "of the total"),
    ("the whole batch in each group", _with(("(m + p - 1) / m * ", "(batch + p - 1) / batch * ")), "m is batch / d"),
    ("the whole batch everywhere", _with(("m = batch // d\n", "m = batch\n")), "and for the bubble"),
    ("parts dealt to stages, too", _with(("m = batch // d\n", "m = batch / (d * p)\n")), "for every p"),
    ("messages for each other rank", _with(("talk * (t - 1) / t", "talk * (t - 1)")), "Divide by t"),
    ("a pipeline in one node", _with(("or node % t", "or node % t or t * p > node")), "may use several nodes"),
    ("a bubble of one stage", _with(("(m + p - 1) / m * ", "(1 + p / m) * ")), "A single stage"),
    ("plus, not times", _with(("(m + p - 1) / m * (1 + talk * (t - 1) / t)",
     "(m + p - 1) / m + talk * (t - 1) / t")), "multiply"),
    ("t up to a node", _with(("node % t", "t > node")), "be in one node"),
    ("four pieces at most", _with(("range(1, ranks + 1):\n        for p", "range(1, 5):\n        for p")), None),
    ("powers of two",
     _with(("            if ranks % (t * p):", "            if ranks % (t * p) or t & (t - 1) or p & (p - 1):")), None),
    ("eight stages at most", _with(("for p in range(1, ranks + 1)", "for p in range(1, 9)")), None),
    ("four parts at most", _with(("min(m, p) * sample", "min(m, p, 4) * sample")), None),
    ("most data", _with(("(m + p - 1) / m * (1 + talk * (t - 1) / t)", "-d")), "most groups"),
    ("least data", _with(("(m + p - 1) / m * (1 + talk * (t - 1) / t)", "d")), ""),
    ("beyond the node", _with((" or node % t", "")), "be in one node"),
    ("half a head", _with(("heads % t or ", "")), "complete heads"),
    ("uneven stages", _with((" or blocks % p", "")), "p must divide their number"),
    ("uneven groups", _with((" or batch % d", " or batch < d")), "d must divide the batch"),
    ("strictly below", _with(("held <= cap_gb", "held < cap_gb")), "exactly the memory"),
    ("another order", _with(("(d, t, p)\n", "(t, d, p)\n")), "another order"),
    ("no cap", _with(("held <= cap_gb and ", "")), "into the memory"),
    ("an empty mesh", _with(("return best and best[1]", "return best[1] if best else (0, 0, 0)")), "return None"),
    ("a list", _with(("(d, t, p)\n", "[d, t, p]\n")), "as a tuple"),
    ("the first that fits", _with(("(best is None or slow < best[0])", "best is None")), None),
]  # fmt: skip
