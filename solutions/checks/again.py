"""Checks of the first part of chapter 16's exercise: a block is recomputed, with the same dropout.

Each case calls the learner's ``autograd.Function`` on a block. The block counts its calls and knows whether its results
still exist. The expected result is that of the same block without checkpointing, from the same state of the generator.
"""

import weakref
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect_close

_STATE = "The second run draws other dropout. Store torch.get_rng_state() in forward, and set it before the second run."
_TWICE = "The gradient is twice as large, because y.backward also reached x itself. Run the block on x.detach()."
_OFF = "Inside backward, autograd records nothing. Run the block again under torch.enable_grad()."
_AFTER = "The generator ends in another state than without checkpointing. Restore its state after the second run."


class _Block(nn.Module):
    """Two layers with dropout between them. The block counts its calls and holds weak references to its results."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.one, self.other = (
            nn.Parameter(torch.randn(6, 6, generator=generator, dtype=torch.float64)) for _ in range(2)
        )
        self.dropout, self.calls, self.made, self.modes = dropout, 0, [], []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.modes.append(self.training)
        middle = torch.tanh(x @ self.one)
        y = F.dropout(middle, self.dropout) @ self.other
        self.made += [weakref.ref(middle), weakref.ref(y)]
        return y


def _x(requires_grad: bool = True) -> torch.Tensor:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return x.requires_grad_(requires_grad)


def _plain(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return block(x)


def _gradients(call: Callable, dropout: float = 0.0, times: int = 1, before: float | None = None) -> list[torch.Tensor]:
    """Gradients of input and weights, and the next random numbers. The block is called ``times`` times in a row."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        block, x = _Block(dropout), _x()
        if before is not None:
            for weight in block.parameters():
                weight.grad = torch.full_like(weight, before)
        y = x
        for _ in range(times):
            y = call(block, y)
        torch.rand(2)  # a layer after it
        (y.square() * torch.arange(1.0, 7.0)).sum().backward()
        found = [tensor.grad for tensor in (x, block.one, block.other)]
        return [*found, torch.rand(3)]


def _values(fn: Callable) -> None:
    """The forward pass returns the result of the block"""
    expect_close(fn.apply(_Block(), _x()).detach(), _Block()(_x()).detach(), "Return block(x).")


def _forgets(fn: Callable) -> None:
    """After the forward pass, no result of the block is stored"""
    block, x, saved = _Block(), _x(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = fn.apply(block, x)
    after = y.sum()  # which needs no value of y
    del y
    others = [t.shape for t in saved if t.is_floating_point() and t.data_ptr() != x.data_ptr()]
    if others or any(made() is not None for made in block.made):
        hint = "Inside forward, autograd records nothing. Do not call enable_grad there, and save only x."
        raise Wrong("only x is saved", "results of the block still exist", hint)
    del after


def _compare(fn: Callable, hint: str, names: tuple[str, ...] = ("x", "weights", "weights"), **how: object) -> None:
    wanted = _gradients(_plain, **how)
    try:
        got = _gradients(fn.apply, **how)
    except RuntimeError as error:
        if "does not require grad" in str(error):
            error.add_note(_OFF)
        raise
    for name, one, other in zip(names, got, wanted, strict=False):
        if one is None:
            what = "backward returns one gradient for each argument of forward: None for the block, x.grad for x."
            if name == "weights":
                what = "The block's weights get no gradient. Call y.backward(upstream_gradient) under enable_grad."
            raise Wrong(f"a gradient of {name}", None, what)
        stopped = (torch.zeros_like(other), "The gradient does not reach x. Call x.detach(), then requires_grad_().")
        expect_close(one, other, hint, [stopped, (2 * other, _TWICE if name == "x" else hint)])


def _same_gradients(fn: Callable) -> None:
    """Input and weights get the same gradients as without checkpointing"""
    _compare(fn, "Pass the upstream gradient on: y.backward(upstream_gradient).")


def _runs_again(fn: Callable) -> None:
    """The block runs twice: once in forward, once in backward"""
    block = _Block()
    fn.apply(block, _x()).sum().backward()
    if block.calls != 2:
        raise Wrong("2 calls of the block", block.calls, "Run the block once in forward and once in backward.")


def _mode(fn: Callable) -> None:
    """The mode of the block (train or eval) does not change"""
    for training in (True, False):
        block = _Block().train(training)
        fn.apply(block, _x()).sum().backward()
        if {*block.modes, block.training} != {training}:
            got = f"{[*block.modes, block.training]}: forward, backward, afterwards"
            raise Wrong(f"training is {training} throughout", got, "Do not call train() or eval().")


def _adds(fn: Callable) -> None:
    """Gradients add to existing gradients, and a block may be used twice"""
    _compare(fn, "Gradients of weights add up. Set none of them to zero.", times=2, before=7.0)


def _same_dropout(fn: Callable) -> None:
    """With dropout, both runs draw the same random numbers"""
    _compare(fn, _STATE, dropout=0.5)


def _same_dropout_twice(fn: Callable) -> None:
    """Two blocks in a row: each repeats its own random numbers"""
    _compare(fn, "Each call needs its own state. Store it in ctx.", dropout=0.5, times=2)


def _generator_after(fn: Callable) -> None:
    """Afterwards, the generator draws the same numbers as without checkpointing"""
    expect_close(_gradients(fn.apply, dropout=0.5)[-1], _gradients(_plain, dropout=0.5)[-1], _AFTER)


_HINTS = (
    "The backward pass may call the block. What else does it need from the forward pass? Not all of it is a tensor.",
    "Does autograd record operations while your backward runs? How can you switch this on?",
    "Both runs draw the same numbers, and later numbers do not change. Which states do you store and restore?",
)
_CODE = (
    "ctx.state = torch.get_rng_state()",
    "with torch.random.fork_rng(devices=[]), torch.enable_grad():\n    torch.set_rng_state(ctx.state)",
)
EXERCISE = Exercise(
    name="again",
    chapter="16",
    cases=(
        _values,
        _forgets,
        _same_gradients,
        _runs_again,
        _mode,
        _adds,
        _same_dropout,
        _same_dropout_twice,
        _generator_after,
    ),
    hints=_HINTS,
    code=_CODE,
)
