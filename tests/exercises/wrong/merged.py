"""Wrong answers to the second part of chapter 18's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
import torch

def merged(parts):
    log_sums = torch.stack([log_sum for _, log_sum in parts])
    whole = torch.logsumexp(log_sums, 0)
    less = torch.where(whole == -torch.inf, 0, whole)
    return sum(values * torch.exp(log_sum - less) for values, log_sum in parts), whole
"""
_with = functools.partial(altered, RIGHT)

CHAPTERS = """
import torch

def merge(one, other):
    log_sum = torch.logaddexp(one[1], other[1])
    return sum(mixed * torch.exp(part - log_sum) for mixed, part in (one, other)), log_sum

def merged(parts):
    found = parts[0]
    for part in parts[1:]:
        found = merge(found, part)
    return found
"""

WRONG = [
    ("a mean", _with(("sum(values * torch.exp(log_sum - less) for", "sum(values / len(parts) for")), "a plain mean"),
    ("weights that do not add up to 1", _with(("torch.exp(log_sum - less)", "torch.exp(log_sum)")), "divide by their"),
    ("values alone", _with((", whole\n", "\n")), "Return both"),
    ("the log-sum of the last part", _with((", whole\n", ", parts[-1][1]\n")), "that of all results together"),
    ("naive exponentials", _with(("torch.logsumexp(log_sums, 0)", "torch.exp(log_sums).sum(0).log()")),
     "Only differences"),
    ("log-sums as weights", _with(("torch.exp(log_sum - less)", "log_sum / log_sums.sum(0)")), "not the log-sums"),
    ("log-sums added", _with((", whole\n", ", log_sums.sum(0)\n")), "Logarithms of sums do not add"),
    ("the sum itself", _with((", whole\n", ", whole.exp()\n")), "Return its logarithm"),
    ("one maximum for all rows", _with(("torch.logsumexp(log_sums, 0)",
     "log_sums.max() + (log_sums - log_sums.max()).exp().sum(0).log()")), "its own largest"),
    ("four parts only", _with(("    log_sums", "    parts = parts[:4]\n    log_sums")), "Merging pairs"),
    ("two parts only", _with(("    log_sums", "    parts = parts[:2]\n    log_sums")), "Merging pairs"),
    ("relative to the first part", _with(("torch.logsumexp(log_sums, 0)",
     "parts[0][1] + torch.exp(log_sums - parts[0][1]).sum(0).log()")), "no number"),
    ("the chapter's merge, folded", CHAPTERS, "Such results have weight 0"),
    ("no part has any key", _with((" - less", " - whole")), "Such results have weight 0"),
    ("parts without keys left out", _with(("    log_sums", "    parts = [part for part in parts if "
     "part[1].isfinite().all()]\n    log_sums")), None),
    ("in place", _with(("sum(values * torch.exp(log_sum - less) for",
     "sum(values.mul_(torch.exp(log_sum - less)) for")), "may be used again"),
]  # fmt: skip
