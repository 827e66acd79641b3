"""Wrong answers to the second part of chapter 17's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rows):
        ctx.save_for_backward(x, rows)
        whole = rows.new_empty(len(rows) * dist.get_world_size(), rows.shape[1])
        all_gather(whole, rows)
        return x @ whole.T

    @staticmethod
    def backward(ctx, slope):
        x, rows = ctx.saved_tensors
        whole = rows.new_empty(len(rows) * dist.get_world_size(), rows.shape[1])
        all_gather(whole, rows)
        mine = torch.empty_like(rows)
        reduce_scatter(mine, slope.flatten(0, -2).T @ x.flatten(0, -2))
        return slope @ whole, mine / dist.get_world_size()
"""
_with = functools.partial(altered, RIGHT)
_MINE = """        mine = torch.empty_like(rows)
        reduce_scatter(mine, slope.flatten(0, -2).T @ x.flatten(0, -2))
"""
_CHUNK = ".chunk(dist.get_world_size())[dist.get_rank()]"
_AGAIN = """        whole = rows.new_empty(len(rows) * dist.get_world_size(), rows.shape[1])
        all_gather(whole, rows)
        mine"""

RIGHT_TOO = [
    ("gathered into views of the whole",
     _with(("all_gather(whole, rows)\n        return",
            "dist.all_gather(list(whole.chunk(dist.get_world_size())), rows)\n        return"))),
    ("a list of parts",
     _with(("        all_gather(whole, rows)\n        return",
            "        parts = "
            "[torch.empty_like(rows) for _ in range(dist.get_world_size())]\n        dist.all_gather(parts, rows)\n"
            "        whole = torch.cat(parts)\n        return"))),
]  # fmt: skip

WRONG = [
    ("kept whole", _with(("x, rows = ctx.saved_tensors", "x, rows, whole = ctx.saved_tensors"),
     (_AGAIN, "        mine"), ("        ctx.save_for_backward(x, rows)\n", ""),
     ("        return x @ whole.T", "        ctx.save_for_backward(x, rows, whole)\n        return x @ whole.T")),
     "Keep the rows, and gather again"),
    ("kept whole, gathered for show",
     _with(("        return x @ whole.T", "        ctx.w = whole\n        return x @ whole.T")),
     "is there between the passes"),
    ("two ranks", _with(("mine / dist.get_world_size()", "mine / 2")), None),
    ("three dimensions", _with(("slope.flatten(0, -2).T @ x.flatten(0, -2)",
     "slope.flatten(0, max(0, slope.ndim - 2) and 1).T @ x.flatten(0, max(0, x.ndim - 2) and 1)")), None),
    ("a sum", _with(("mine / dist.get_world_size()", "mine")), "Divide it by the number of ranks"),
    ("its own samples", _with((_MINE, f"        mine = (slope.T @ x){_CHUNK} * dist.get_world_size()\n")),
     "this rank's samples alone"),
    ("its own samples, divided", _with((_MINE, f"        mine = (slope.T @ x){_CHUNK}\n")),
     "this rank's samples alone"),
    ("an all-reduce", _with((_MINE, "        every = slope.flatten(0, -2).T @ x.flatten(0, -2)\n"
     f"        dist.all_reduce(every)\n        mine = every{_CHUNK}\n")), "reduce_scatter"),
    ("two dimensions", _with(("slope.flatten(0, -2).T @ x.flatten(0, -2)", "slope.T @ x")), None),
    ("no gradient of x", _with(("return slope @ whole, ", "return None, ")), "one gradient for x"),
    ("no gradient of the rows", _with((", mine / dist.get_world_size()\n", ", None\n")), "one gradient for x"),
    ("rows only", _with(("return x @ whole.T", "return x @ rows.T")), None),
    ("the slope handed through", _with(("return slope @ whole,", "return slope[..., : x.shape[-1]],")),
     "times the complete W"),
    ("the mean of x, too", _with(("return slope @ whole,", "return slope @ whole / dist.get_world_size(),")),
     "times the complete W"),
    ("views of the whole kept", _with(("        return x @ whole.T",
     "        ctx.parts = list(whole.chunk(2))\n        ctx.w = ctx.parts[0]._base\n        return x @ whole.T")),
     "is there between the passes"),
    ("gathered twice", _with(("        return x @ whole.T",
     "        all_gather(whole, rows)\n        return x @ whole.T")), "Gather once"),
]  # fmt: skip
