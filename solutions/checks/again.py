"""Checks of chapter 16's exercise, first part: a block computed again, dropout included.

Each case calls the learner's ``autograd.Function`` on a block that notes how often it is called, and whether what it
made is still there. What is right is the same block, called plainly, from the same state of the generator.
"""

import weakref
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect_close

_STATE = "Dropout drew anew. Keep torch.get_rng_state() in the forward pass, and set it before the block runs again."
_TWICE = "Twice as much: backward went on into x itself. Run the block on x.detach(), which then requires_grad_."
_OFF = "Inside backward torch records nothing by itself: the block runs again under torch.enable_grad()."
_AFTER = "The generator stands elsewhere than without checkpointing. Put its state back when the block has run again."


class _Block(nn.Module):
    """Two layers with dropout between; it counts its calls, and knows what it made."""

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
    """Gradients of input and weights, and what the generator draws next; the block is called so many times in a row."""
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
    """The forward pass gives what the block gives"""
    expect_close(fn.apply(_Block(), _x()).detach(), _Block()(_x()).detach(), "Return block(x).")


def _forgets(fn: Callable) -> None:
    """After the forward pass nothing that the block made is there"""
    block, x, saved = _Block(), _x(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = fn.apply(block, x)
    after = y.sum()  # which needs no value of y
    del y
    others = [t.shape for t in saved if t.is_floating_point() and t.data_ptr() != x.data_ptr()]
    if others or any(made() is not None for made in block.made):
        hint = "Inside forward torch records nothing by itself: no enable_grad there, and keep x alone."
        raise Wrong("only x kept", "what the block made is still there", hint)
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
                what = "The block's weights have none: run it under torch.enable_grad(), and call y.backward(slope)."
            raise Wrong(f"a gradient of {name}", None, what)
        stopped = (torch.zeros_like(other), "The gradient stops: detach x, then requires_grad_.")
        expect_close(one, other, hint, [stopped, (2 * other, _TWICE if name == "x" else hint)])


def _same_gradients(fn: Callable) -> None:
    """Input and weights get the gradients of the plain block"""
    _compare(fn, "Hand on the slope that backward is given: y.backward(slope).")


def _runs_again(fn: Callable) -> None:
    """The block runs twice: once forward, once again in the backward pass"""
    block = _Block()
    fn.apply(block, _x()).sum().backward()
    if block.calls != 2:
        raise Wrong("2 calls of the block", block.calls, "Once in forward, once in backward; no more, no less.")


def _mode(fn: Callable) -> None:
    """The block runs in the mode it was in, and is left in it"""
    for training in (True, False):
        block = _Block().train(training)
        fn.apply(block, _x()).sum().backward()
        if {*block.modes, block.training} != {training}:
            got = f"{[*block.modes, block.training]}: forward, backward, afterwards"
            raise Wrong(f"training is {training} throughout", got, "Whether it trains is not yours to change.")


def _adds(fn: Callable) -> None:
    """Gradients add to those that are there, and a block may be used twice"""
    _compare(fn, "Gradients of weights add up: let y.backward(slope) do it, and clear nothing.", times=2, before=7.0)


def _same_dropout(fn: Callable) -> None:
    """With dropout the gradients are those of the numbers that were drawn"""
    _compare(fn, _STATE, dropout=0.5)


def _same_dropout_twice(fn: Callable) -> None:
    """Two blocks in a row: each draws its own numbers again"""
    _compare(fn, "One state for all calls? Each call keeps its own, in ctx.", dropout=0.5, times=2)


def _generator_after(fn: Callable) -> None:
    """Afterwards the generator draws what it would have drawn"""
    expect_close(_gradients(fn.apply, dropout=0.5)[-1], _gradients(_plain, dropout=0.5)[-1], _AFTER)


_HINTS = (
    "What does the backward pass need of the forward pass, if it may call the block? Which of it is no tensor?",
    "Is torch recording when your backward runs? Who says that it should?",
    "Two draws must be the same, and those after them as if nothing had happened. What is to be kept, what put back?",
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
