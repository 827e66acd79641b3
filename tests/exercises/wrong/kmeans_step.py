"""Wrong answers to chapter 25's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
def kmeans_step(x_ND, centres_KD):
    (K, D), now_KD, x_ND = centres_KD.shape, centres_KD.double(), x_ND.double()
    near_N, label_N = (x_ND[:, None] - now_KD).square().sum(2).min(1)
    sums_KD = torch.zeros(K, D + 1, dtype=torch.double)
    sums_KD[:, :D].index_add_(0, label_N, x_ND)
    sums_KD[:, D] = label_N.bincount(minlength=K)
    packed = torch.cat((sums_KD.flatten(), near_N.sum()[None]))
    dist.all_reduce(packed)
    sums_KD, count_K1 = packed[:-1].view(K, D + 1).split((D, 1), 1)
    centres = torch.where(count_K1 > 0, sums_KD / count_K1.clamp(min=1), now_KD)
    return centres.to(centres_KD.dtype), packed[-1].item()
"""
_with = functools.partial(altered, RIGHT)
_SUM = "    dist.all_reduce(packed)\n"
_CENTRES = "    centres = torch.where(count_K1 > 0, sums_KD / count_K1.clamp(min=1), now_KD)\n"
_OWN = _SUM.replace("    dist", "    own_K1 = sums_KD[:, D:].clone()\n    dist")
_INERTIA = "packed[-1].item()"
_AT_NEW = """    near_N = (x_ND[:, None] - centres).square().sum(2).amin(1)
    dist.all_reduce(total := near_N.sum())
    return centres.to(centres_KD.dtype), total.item()"""
_RETURN = "    return centres.to(centres_KD.dtype), packed[-1].item()"
_GATHER = """    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, x_ND)
    x_ND = torch.cat(every)
"""
_FIRST = "    near_N, label_N = (x_ND[:, None] - now_KD).square().sum(2).min(1)\n"

RIGHT_TOO = [
    ("two messages", _with((_SUM, "    dist.all_reduce(packed[:-1])\n    dist.all_reduce(packed[-1:])\n"))),
    ("products instead of differences",
     _with((_FIRST, "    square = x_ND.square().sum(1, keepdim=True) - 2 * x_ND @ now_KD.T + now_KD.square().sum(1)\n"
                    "    near_N, label_N = square.min(1)\n"))),
    ("one-hot products",
     _with(("    sums_KD[:, :D].index_add_(0, label_N, x_ND)\n",
            "    sums_KD[:, :D] = torch.nn.functional.one_hot(label_N, K).double().T @ x_ND\n"))),
]  # fmt: skip

WRONG = [
    ("a mean of means",
     _with((_SUM, "    sums_KD[:, :D] = torch.where(sums_KD[:, D:] > 0, sums_KD[:, :D] / sums_KD[:, D:], now_KD)\n"
                  "    sums_KD[:, D] = 1\n    packed[:-1] = sums_KD.flatten()\n" + _SUM)),
     "A mean of the ranks' means"),
    ("NaN where a cluster is empty", _with((_CENTRES, "    centres = sums_KD / count_K1\n")), "stays where it is"),
    ("0 where a cluster is empty", _with((_CENTRES, "    centres = sums_KD / count_K1.clamp(min=1)\n")),
     "stays where it is"),
    ("empty by this rank's count",
     _with((_SUM, _OWN), (_CENTRES, _CENTRES.replace("where(count_K1", "where(own_K1"))), "looked at its own count"),
    ("all rows are gathered", _with((_FIRST, _GATHER + _FIRST), (_SUM, "")), "Do not send rows"),
    ("ties go to the last",
     _with((_FIRST, _FIRST + "    label_N = K - 1 - (x_ND[:, None] - now_KD).square().sum(2).flip(1).argmin(1)\n")),
     "lower index"),
    ("counts are not summed",
     _with((_SUM, _OWN), (_CENTRES, "    count_K1 = own_K1\n" + _CENTRES)), "counts are of this rank only"),
    ("this rank alone", _with((_SUM, "")), "this rank's rows only"),
    ("sums in the rows' type", _with(("x_ND = centres_KD.shape, centres_KD.double(), x_ND.double()",
                                      "x_ND = centres_KD.shape, centres_KD.double(), x_ND"),
                                     ("x_ND[:, None] -", "x_ND.double()[:, None] -"),
                                     ("index_add_(0, label_N, x_ND)",
                                      "copy_(torch.zeros(K, D, dtype=x_ND.dtype).index_add_(0, label_N, x_ND))")),
     "float64 from the start"),
    ("all in 32 bits, by products",
     _with((_FIRST, "    a, b = x_ND.float(), now_KD.float()\n"
                    "    square = a.square().sum(1, keepdim=True) - 2 * a @ b.T + b.square().sum(1)\n"
                    "    label_N = square.argmin(1)\n    near_N = (x_ND - now_KD[label_N]).square().sum(1)\n")),
     "float64 from the start"),
    ("inertia at the new centres", _with((_RETURN, _AT_NEW)), "at the new centres"),
    ("distances are not squared", _with(("near_N.sum()", "near_N.sqrt().sum()")), "Square the distances"),
    ("a mean instead of the inertia", _with((_INERTIA, "(packed[-1] / count_K1.sum()).item()")), "not a mean"),
    ("this rank's inertia", _with((_INERTIA, "near_N.sum().item()")), "this rank's rows only"),
    ("rank 0 alone has the answer", _with((_SUM, "    dist.reduce(packed, 0)\n")), "all-reduce instead of reduce"),
    ("other ranks return nothing",
     _with((_RETURN, "    if dist.get_rank() == 0:\n        return centres.to(centres_KD.dtype), packed[-1].item()")),
     "all-reduce instead of reduce"),
    ("a rank without rows stays away",
     _with((_FIRST, "    if len(x_ND) == 0:\n        return centres_KD, 0.0\n" + _FIRST)), "all must call the same"),
    ("centres in 64 bits", _with(("centres.to(centres_KD.dtype)", "centres")), "type of the given centres"),
    ("the inertia is a tensor", _with((_INERTIA, "packed[-1]")), "a Python float"),
    ("a message a cluster",
     _with((_SUM, "    for part in packed[:-1].split(D + 1):\n        dist.all_reduce(part)\n"
                  "    dist.all_reduce(packed[-1:])\n")), "at most two messages"),
    ("the rows are changed", _with((_RETURN, "    given_ND = x_ND.sub_(1)\n" + _RETURN)), "Copy them before"),
    ("the centres alone", _with((_RETURN, "    return centres.to(centres_KD.dtype)")), "Return two values"),
]  # fmt: skip
