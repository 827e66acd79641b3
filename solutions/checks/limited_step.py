"""Checks of chapter 05's exercise: a step with a safety limit, as one graph.

The answer is compared with the function as it was written first, with its ``if``: values, gradients, graphs. Graphs
are counted by a backend of our own, which needs no compiler.

Legend: B members, H × W grid points.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close

_DT, _LIMIT = 0.5, 0.25
Mistakes = Sequence[tuple[Callable, str]]


class _Inputs(NamedTuple):
    state_BHW: Tensor
    change_BHW: Tensor


def _inputs(largest: float, seed: int = 0) -> _Inputs:
    """A state, and a change whose largest step, a positive one, is ``largest``; both are ready for gradients."""
    generator = torch.Generator().manual_seed(seed)
    state_BHW, change_BHW = (torch.randn(2, 4, 6, generator=generator) for _ in range(2))
    change_BHW = change_BHW.clamp(-1, 1)
    change_BHW[0, 1, 2] = 2.0
    change_BHW = change_BHW * (largest / 2 / _DT)
    return _Inputs(state_BHW.requires_grad_(), change_BHW.requires_grad_())


def _right(state_BHW: Tensor, change_BHW: Tensor, dt: float, limit: float) -> Tensor:
    """The original, without its print."""
    step_BHW = dt * change_BHW
    largest = step_BHW.abs().max()
    if largest > limit:
        step_BHW = step_BHW * (limit / largest)
    return state_BHW + step_BHW


def _always(state_BHW: Tensor, change_BHW: Tensor, dt: float, limit: float) -> Tensor:
    """Of somebody who drops the condition."""
    step_BHW = dt * change_BHW
    return state_BHW + step_BHW * (limit / step_BHW.abs().max())


def _never(state_BHW: Tensor, change_BHW: Tensor, dt: float, limit: float) -> Tensor:
    return state_BHW + dt * change_BHW


def _each_point(state_BHW: Tensor, change_BHW: Tensor, dt: float, limit: float) -> Tensor:
    return state_BHW + (dt * change_BHW).clamp(-limit, limit)


def _constant_scale(state_BHW: Tensor, change_BHW: Tensor, dt: float, limit: float) -> Tensor:
    step_BHW = dt * change_BHW
    return state_BHW + step_BHW * (limit / step_BHW.detach().abs().max())


def _call(fn: Callable, inputs: _Inputs) -> Any:
    return fn(*inputs, _DT, _LIMIT)


def _gradient(fn: Callable, inputs: _Inputs) -> Tensor:
    """Of the sum of squares with respect to the change."""
    out = _call(fn, inputs)
    if not isinstance(out, torch.Tensor):
        raise Wrong("a tensor", type(out).__name__)
    if not out.requires_grad:
        raise Wrong("a result with a gradient", "one without", "Something is detached, or left the tensors. Keep both.")
    try:
        (gradient,) = torch.autograd.grad(out.square().sum(), inputs.change_BHW, allow_unused=True)
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        hint = "An operation in place (such as *=) has overwritten what the backward pass needs. Make a new tensor."
        raise Wrong("a gradient", "none: a value that it needs was overwritten", hint) from None
    if gradient is None:
        raise Wrong("a gradient with respect to the change", None, "The change is detached on the way to the result.")
    return gradient


def _compare(fn: Callable, largest: float, hint: str = "", mistakes: Mistakes = (), of: Callable = _call) -> None:
    """Values, or gradients, are those of the original; ``mistakes``: functions, each with its hint."""
    inputs = _inputs(largest)
    known = [(of(mistake, inputs), told) for mistake, told in mistakes]
    expect_close(of(fn, inputs), of(_right, inputs), hint, known, rtol=1e-3 if of is _gradient else 1e-4, atol=1e-5)


def _keeps_inputs(fn: Callable) -> None:
    """Its inputs stay as they are"""
    before, given = _inputs(1.0), _inputs(1.0)
    with torch.no_grad():
        _call(fn, given)
    hint = "An operation in place (such as *=, or a name that ends in _) has changed an input."
    for got, wanted in zip(given, before, strict=True):
        expect_close(got, wanted, hint=hint)


def _whole(fn: Callable) -> None:
    """One graph takes it all"""
    torch.compiler.reset()
    found = _breaks(fn)
    if found:
        where = f"broken at {found[0]}"
        raise Wrong("one graph", f"{len(found) + 1} graphs, {where}", _cause(fn))
    try:
        torch.compile(fn, fullgraph=True, backend="eager")(*_inputs(1.0), _DT, _LIMIT)
    except Exception as error:
        raise Wrong("one graph", str(error).strip().split("\n")[0], _cause(fn)) from None


def _breaks(fn: Callable) -> list[str]:
    """The line and the reason of each place where the function leaves its graph."""
    log = logging.getLogger("torch._dynamo")
    level = log.level
    log.setLevel(logging.ERROR)  # it would warn of the very breaks that we report
    try:
        reasons = torch._dynamo.explain(fn)(*_inputs(1.0), _DT, _LIMIT).break_reasons
    finally:
        log.setLevel(level)
    told = []
    for reason in reasons:
        why = reason.reason.strip().partition("\n")[0]
        if why.startswith("generic_jump"):  # torch's name for it says little to who has not read its source
            why = "a branch that depends on a tensor's value"
        told.append(f"line {reason.user_stack[-1].lineno}: {why}")
    return told


def _cause(fn: Callable) -> str:
    """What most likely breaks the graph, told from the names that the function uses."""
    names = set(getattr(getattr(fn, "__code__", None), "co_names", ()))
    if names & {"item", "tolist", "float", "bool", "numpy"}:
        return "A number leaves the tensors (item, float, …), and Python must wait for it. Keep it a tensor."
    if "print" in names:
        return "The compiler cannot print from inside a kernel. Leave the message out, or return what it says."
    return "An if on a tensor's value needs that value now. Compute the scale for both cases, without an if."


def _both_ways(fn: Callable) -> None:
    """The same graph serves slow steps and fast ones"""
    torch.compiler.reset()
    graphs: list[Callable] = []
    fast = torch.compile(fn, fullgraph=True, backend=lambda graph, inputs: graphs.append(graph) or graph)
    hint = "Compiled, it gives another result than uncompiled: a decision was made once, while the graph was built."
    for seed, largest in enumerate((1.0, 0.1, 0.9, 0.2)):
        inputs = _inputs(largest, seed)
        expect_close(_call(fast, inputs), _call(_right, inputs), hint=hint, rtol=1e-4, atol=1e-6)
    if len(graphs) != 1:
        raise Wrong("1 graph for 4 calls", f"{len(graphs)} graphs", "Some Python value decides; let a tensor do it.")


_UP = "Steps within the limit must stay as they are; this one was scaled *up*."
_BEYOND = (
    (_never, "This step is beyond the limit, but it was not scaled down."),
    (_each_point, "Scale the whole step by one factor; cutting off single points bends the flow."),
)
_DOWN = "The largest step here is negative. Take the absolute value before the maximum."
_DETACHED = [
    (_constant_scale, "The scale depends on the change, so the gradient flows through it too. Do not detach it.")
]
_DIVIDED = (
    "torch.where computes both sides, also the one it does not take: a division by 0 there is NaN times 0 in the "
    "backward pass. Keep the divisor away from 0."
)
_HINTS = (
    "Write the scale as a tensor that is 1 within the limit and limit / largest beyond.",
    "Which expression of limit and largest is 1 within the limit? Which tensor method is a maximum with a number?",
    "Who reads a tensor's value in an `if`, and what does the compiler then have to do?",
)
_CODE = (
    "step = dt * change",
    "scale = limit / step.abs().max().clamp(min=limit)",
    "return state + step * scale",
)
EXERCISE = Exercise(
    name="limited_step",
    chapter="05",
    cases=(
        _keeps_inputs,
        case("A step within the limit is made as it is", _compare, 0.1, mistakes=[(_always, _UP)]),
        case("A step beyond the limit is scaled down as a whole", _compare, 1.0, mistakes=_BEYOND),
        case("A fast change downwards counts as well", _compare, -1.0, _DOWN),
        _whole,
        _both_ways,
        case("Gradients are those of the original beyond the limit", _compare, 1.0, "", _DETACHED, _gradient),
        case("Gradients are those of the original within the limit", _compare, 0.1, "", _DETACHED, _gradient),
        case("Where nothing moves, the gradient is finite", _compare, 0.0, _DIVIDED, of=_gradient),
    ),
    hints=_HINTS,
    code=_CODE,
)
