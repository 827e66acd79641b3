"""Wrong answers to the second part of chapter 16's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
def least_recomputing(blocks, budget):
    def peak(again):
        held = sum(b[1] if n in again else b[0] for n, b in enumerate(blocks))
        return held + max([blocks[n][0] for n in again], default=0)

    def work(again):
        return sum(blocks[n][2] for n in again)

    plans = [{n for n in range(len(blocks)) if bits >> n & 1} for bits in range(1 << len(blocks))]
    able = [plan for plan in plans if peak(plan) <= budget]
    return min(able, key=work, default=None)
"""
_with = functools.partial(altered, RIGHT)
GREEDY = """
def least_recomputing(blocks, budget):
    def peak(again):
        held = sum(b[1] if n in again else b[0] for n, b in enumerate(blocks))
        return held + max([blocks[n][0] for n in again], default=0)

    again = set()
    for n in sorted(range(len(blocks)), key=lambda n: WORTH):
        if peak(again) <= budget:
            return again
        again.add(n)
    return again if peak(again) <= budget else None
"""

WRONG = [
    ("no moment", _with((" + max([blocks[n][0] for n in again], default=0)", "")), "for a moment"),
    ("the moment of the whole", _with(("max([blocks[n][0] for n in again], default=0)",
     "sum(blocks[n][0] for n in again)")), None),
    ("the moment of the first", _with(("max([blocks[n][0] for n in again], default=0)",
     "next(iter([blocks[n][0] for n in sorted(again)]), 0)")), None),
    ("the moment of the dearest", _with(("max([blocks[n][0] for n in again], default=0)",
     "max([(blocks[n][2], blocks[n][0]) for n in again], default=(0, 0))[1]")), None),
    ("a mean moment", _with(("max([blocks[n][0] for n in again], default=0)",
     "sum(blocks[n][0] for n in again) / max(1, len(again))")), None),
    ("neighbours only", _with(("able = [plan for plan in plans if",
     "able = [plan for plan in plans if (not plan or max(plan) - min(plan) == len(plan) - 1) and")), None),
    ("the fewest, then the least work", _with(("key=work", "key=lambda plan: (len(plan), work(plan))")), None),
    ("from 1", _with(("return min(able, key=work, default=None)",
     "best = min(able, key=work, default=None); return best if best is None else {n + 1 for n in best}")), ""),
    ("inputs are free", _with(("b[1] if n in again", "0 if n in again")), "is also saved. Count it"),
    ("the input of the largest once", _with(("max([blocks[n][0] for", "max([blocks[n][0] - blocks[n][1] for")),
     "counts twice"),
    ("the largest of all blocks", _with(("max([blocks[n][0] for n in again], default=0)", "max(b[0] for b in blocks)")),
     "not all blocks"),
    ("the largest of all blocks, if any is computed again",
     _with(("max([blocks[n][0] for n in again], default=0)", "max(b[0] for b in blocks) * bool(again)")),
     "not all blocks"),
    ("strictly below", _with(("<= budget", "< budget")), "exactly the budget"),
    ("no plan is an empty one", _with((", default=None)", ", default=set())")), "Return None"),
    ("a list", _with(("return min(able, key=work, default=None)",
     "best = min(able, key=work, default=None); return best if best is None else sorted(best)")), "Return a set"),
    ("the fewest blocks", _with(("key=work", "key=len")), None),
    ("all or nothing",
     _with(("able = [plan for plan in plans", "able = [plan for plan in (plans[0], plans[-1])")), None),
    ("most bytes first", GREEDY.replace("WORTH", "blocks[n][1] - blocks[n][0]"), None),
    ("least work first", GREEDY.replace("WORTH", "blocks[n][2]"), None),
    ("bytes per FLOP", GREEDY.replace("WORTH", "blocks[n][2] / (blocks[n][0] - blocks[n][1])"), None),
]  # fmt: skip
