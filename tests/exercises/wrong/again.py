"""Wrong answers to the first part of chapter 16's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
class CheckpointFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, x):
        ctx.block, ctx.state = block, torch.get_rng_state()
        ctx.save_for_backward(x)
        return block(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.block(x)
        torch.set_rng_state(now)
        y.backward(gradient)
        return None, x.grad
"""
_SET = "        torch.set_rng_state(ctx.state)\n"
_with = functools.partial(altered, RIGHT)

WRONG = [
    ("the chapter's", _with((_SET, "")), "draws other dropout"),
    ("a state that stays", _with(("        torch.set_rng_state(now)\n", "")), "ends in another state"),
    ("a seed set in both", _with(("ctx.block, ctx.state = block, torch.get_rng_state()",
     "ctx.block = block; torch.manual_seed(0); ctx.state = torch.get_rng_state()")), ""),
    ("one state for all", _with(("ctx.block, ctx.state = block, torch.get_rng_state()",
     "ctx.block = block; CheckpointFunction.state = torch.get_rng_state()"),
     ("ctx.state)", "CheckpointFunction.state)")),
     "Each call needs its own state"),
    ("not recorded", _with(("with torch.enable_grad():", "with torch.no_grad():")), None),
    ("nobody records", _with(("with torch.enable_grad():\n            y", "if True:\n            y")),
     "again under torch.enable_grad()"),
    ("x itself", _with(("        x = x.detach().requires_grad_()\n", "")), "on x.detach()"),
    ("kept all", _with(("return block(x)", "with torch.enable_grad():\n            ctx.y = block(x)\n        "
     "return ctx.y.detach()")), "save only x"),
    ("the output kept, too", _with(("return block(x)", "ctx.y = block(x)\n        return ctx.y")), "save only x"),
    ("the output saved, too", _with(("        ctx.save_for_backward(x)\n        return block(x)",
     "        y = block(x)\n        ctx.save_for_backward(x, y)\n        return y"),
     ("(x,) = ctx.saved_tensors", "x, _ = ctx.saved_tensors")), "save only x"),
    ("set to eval", _with(("            y = ctx.block(x)", "            y = ctx.block.eval()(x)")),
     "Do not call train() or eval()"),
    ("set to train", _with(("            y = ctx.block(x)", "            y = ctx.block.train()(x)")),
     "Do not call train() or eval()"),
    ("an upstream gradient of ones", _with(("y.backward(gradient)", "y.backward(torch.ones_like(y))")),
     "Pass the upstream gradient on"),
    ("the upstream gradient returned", _with(("return None, x.grad", "return None, gradient")), ""),
    ("weights only", _with(("return None, x.grad", "return None, None")), "backward returns one gradient"),
    ("input only", _with(("y.backward(gradient)", "(x.grad,) = torch.autograd.grad(y, [x], gradient)")),
     "The block's weights"),
    ("cleared before",
     _with(("        y.backward(gradient)", "        ctx.block.zero_grad()\n        y.backward(gradient)")),
     "Gradients of weights add up"),
    ("run twice again",
     _with(("        y.backward(gradient)", "        ctx.block(x.detach())\n        y.backward(gradient)")),
     "once in forward and once in backward"),
]  # fmt: skip
