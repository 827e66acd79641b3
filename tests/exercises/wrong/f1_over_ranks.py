"""Wrong answers to chapter 21's exercise, second part: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
def f1_over_ranks(said_NK, there_NK, all_reduce):
    kinds = said_NK & there_NK, said_NK & ~there_NK, ~said_NK & there_NK
    counts_3K = torch.stack([kind.sum(0) for kind in kinds])
    all_reduce(counts_3K)

    def f1(hits, false, missed):
        return 2 * hits / (2 * hits + false + missed).clamp(min=1)

    return f1(*counts_3K.sum(1)).item(), f1(*counts_3K).mean().item()
"""
_with = functools.partial(altered, RIGHT)
_LAST = "    return f1(*counts_3K.sum(1)).item(), f1(*counts_3K).mean().item()"
_MEANS = """    both = torch.tensor([f1(*counts_3K.sum(1)).item(), f1(*counts_3K).mean().item(), 1.0])
    all_reduce(both)
    return (both[0] / both[2]).item(), (both[1] / both[2]).item()"""
_SUM = "    all_reduce(counts_3K)\n"

RIGHT_TOO = [("tensors", _with((_LAST, "    return f1(*counts_3K.sum(1)), f1(*counts_3K).mean()")))]

WRONG = [
    ("a mean of the ranks' F1", _with((_SUM, ""), (_LAST, _MEANS)), "A mean of the ranks' F1"),
    ("a sum of the ranks' F1", _with((_SUM, ""), (_LAST, _MEANS.replace(" / both[2]", ""))), "A mean of the ranks' F1"),
    ("this rank alone", _with((_SUM, "")), "samples of this rank only"),
    ("the sum of a copy", _with(("all_reduce(counts_3K)", "all_reduce(counts_3K.clone())")), "sum of a copy is lost"),
    ("what all_reduce returns", _with(("    all_reduce(c", "    counts_3K = all_reduce(c")), "returns nothing"),
    ("what all_reduce returns, as three", _with((_SUM, "    hits, false, missed = all_reduce(counts_3K)\n")),
     "returns nothing"),
    ("intersection over union",
     _with(("return 2 * hits / (2 * hits + false + missed)", "return hits / (hits + false + missed)")),
     "2 hits / (2 hits + false alarms"),
    ("intersection over union of classes",
     _with((_LAST,
            "    hits, false, missed = counts_3K\n    each = hits / (hits + false + missed).clamp(min=1)\n"
            "    return f1(*counts_3K.sum(1)).item(), each.mean().item()")), "for each class"),
    ("F1 of means",
     _with((_LAST,
            "    hits, false, missed = counts_3K\n    p = (hits / (hits + false).clamp(min=1)).mean()\n"
            "    r = (hits / (hits + missed).clamp(min=1)).mean()\n"
            "    return f1(*counts_3K.sum(1)).item(), (2 * p * r / (p + r)).item()")), "for each class"),
    ("swapped", _with((_LAST, "    return f1(*counts_3K).mean().item(), f1(*counts_3K.sum(1)).item()")), "swapped"),
    ("macro twice", _with((_LAST, "    return (f1(*counts_3K).mean().item(),) * 2")), "swapped"),
    ("NaN for an absent class", _with((".clamp(min=1)", "")), "no NaN"),
    ("absent classes left out", _with(("f1(*counts_3K).mean()", "f1(*counts_3K[:, counts_3K.sum(0) > 0]).mean()")),
     "counts in the macro mean"),
    ("an absent class is perfect",
     _with(("        return 2 * hits / (2 * hits + false + missed).clamp(min=1)",
            "        n = 2 * hits + false + missed\n"
            "        return torch.where(n > 0, 2 * hits / n.clamp(min=1), 1.0)")), "counts in the macro mean"),
    ("a rank without samples stays away", _with((_SUM, "    if len(said_NK):\n        all_reduce(counts_3K)\n")),
     "equally often"),
    ("misses forgotten", _with(("(2 * hits + false + missed)", "(2 * hits + 2 * false)")), "+ false alarms + misses"),
    ("added twice", _with((_SUM, "    all_reduce(counts_3K)\n    all_reduce(counts_3K)\n")), "3 × K"),
    ("F1 of weights by samples",
     _with((_SUM, ""), (_LAST, _MEANS.replace("    all_reduce", "    both *= len(said_NK)\n    all_reduce"))), None),
    ("one answer", _with((_LAST, "    return f1(*counts_3K.sum(1)).item()")), "Return both"),
    ("the samples are changed", _with((_SUM, "    all_reduce(counts_3K)\n    said_NK.zero_()\n")), "still need"),
]  # fmt: skip
