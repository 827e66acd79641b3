"""Wrong answers to the first part of chapter 17's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
def deal(sizes, n):
    has, owners = [0] * n, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owners[index] = has.index(min(has))
        has[owners[index]] += sizes[index]
    return owners


def step(self):
    for p, owner in zip(self.parameters, self.owners, strict=True):
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.reduce(p.grad, owner)
        p.grad /= dist.get_world_size()
    if self.optimizer:
        self.optimizer.step()
    for p, owner in zip(self.parameters, self.owners, strict=True):
        dist.broadcast(p.data, owner)


class Dealt:
    def __init__(self, parameters, make_optimizer):
        self.parameters = [p for p in parameters if p.requires_grad]
        self.owners = deal([p.numel() for p in self.parameters], dist.get_world_size())
        mine = [p for p, owner in zip(self.parameters, self.owners) if owner == dist.get_rank()]
        self.optimizer = make_optimizer(mine) if mine else None

    deal, step = staticmethod(deal), step
"""
_with = functools.partial(altered, RIGHT)
_UPDATE = "    if self.optimizer:\n        self.optimizer.step()\n"
_SENDS = """    for p, owner in zip(self.parameters, self.owners, strict=True):
        dist.broadcast(p.data, owner)
"""

WRONG = [
    ("a sum", _with(("        p.grad /= dist.get_world_size()\n", "")), "Divide by the number of ranks"),
    ("an all-reduce", _with(("dist.reduce(p.grad, owner)", "dist.all_reduce(p.grad)")), "gives the sum to all"),
    ("dealt in turn", _with(("owners[index] = has.index(min(has))", "owners[index] = index % n")), "largest tensor"),
    ("all from rank 0", _with(("dist.broadcast(p.data, owner)", "dist.broadcast(p.data, 0)")), "Each owner must send"),
    ("a gradient skipped", _with(("        p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n",
     "        if p.grad is None:\n            continue\n")), "One rank sends or waits"),
    ("nothing sent back", _with((_SENDS, "")), "Each owner must send"),
    ("sent before the update", _with((_UPDATE + _SENDS, _SENDS + _UPDATE)), ""),
    ("dealt in their order", _with((", key=lambda index: -sizes[index]", "")), "the largest tensor first"),
    ("the smallest first", _with(("-sizes[index])", "sizes[index])")), "the largest tensor first"),
    ("all to rank 0", _with(("owners[index] = has.index(min(has))", "owners[index] = 0")), "the largest tensor first"),
    ("ranks from 1", _with(("return owners", "return [owner + 1 for owner in owners]")), "from 0 to n - 1"),
    ("one owner too few", _with(("return owners", "return owners[1:]")), "one rank for each size"),
    ("an owner without a gradient does nothing",
     _with(("        p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n"
            "        dist.reduce(p.grad, owner)\n        p.grad /= dist.get_world_size()\n",
     "        g = torch.zeros_like(p) if p.grad is None else p.grad\n        dist.reduce(g, owner)\n"
     "        if p.grad is not None:\n            p.grad = g / dist.get_world_size()\n")), None),
    ("zeros on rank 1 alone", _with(("if p.grad is None else p.grad",
     "if p.grad is None and dist.get_rank() == 1 else p.grad")), None),
    ("all have an optimizer",
     _with(("    if self.optimizer:\n        self.optimizer", "    if True:\n        self.optimizer")), None),
    ("as many ranks as owners", _with(("dist.get_world_size()\n    if", "len(set(self.owners))\n    if")), None),
    ("a snake", _with((RIGHT[RIGHT.index("    has, owners"):RIGHT.index("    return owners")],
     "    owners = [0] * len(sizes)\n    for k, i in enumerate(sorted(range(len(sizes)), key=lambda i: -sizes[i])):\n"
     "        owners[i] = k % n if k // n % 2 == 0 else n - 1 - k % n\n")), "the largest tensor first"),
    ("by size", _with(("    return owners\n", "    by_size = dict(zip(sizes, owners))\n"
     "    return [by_size[size] for size in sizes]\n")), ""),
    ("in sorted order", _with(("    return owners\n",
     "    return [owners[i] for i in sorted(range(len(sizes)), key=lambda i: -sizes[i])]\n")), None),
    ("no update where nobody has a gradient", _with(
     ("    if self.optimizer:\n", "    for p in self.parameters:\n        p.grad = p.grad if p.grad.any() else None\n"
      "    if self.optimizer:\n")), None),
    ("its own gradients", _with(("        dist.reduce(p.grad, owner)\n        p.grad /= dist.get_world_size()\n", "")),
     None),
]  # fmt: skip
