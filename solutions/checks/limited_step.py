"""Check the exercise of chapter 05: a time step with a limit, as one graph.

The input is the learner's function. The check compares its values, gradients and graphs with those of the first
version, which has an ``if``. A backend counts the graphs and runs them as they are, so the check needs no compiler.

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
    """A state, and a change whose largest step is ``largest``. Both require gradients."""
    generator = torch.Generator().manual_seed(seed)
    state_BHW, change_BHW = (torch.randn(2, 4, 6, generator=generator) for _ in range(2))
    change_BHW = change_BHW.clamp(-1, 1)
    change_BHW[0, 1, 2] = 2.0
    change_BHW = change_BHW * (largest / 2 / _DT)
    return _Inputs(state_BHW.requires_grad_(), change_BHW.requires_grad_())


def _right(state_BHW: Tensor, change_BHW: Tensor, dt: float, limit: float) -> Tensor:
    """The first version, without its print."""
    step_BHW = dt * change_BHW
    largest = step_BHW.abs().max()
    if largest > limit:
        step_BHW = step_BHW * (limit / largest)
    return state_BHW + step_BHW


def _always(state_BHW: Tensor, change_BHW: Tensor, dt: float, limit: float) -> Tensor:
    """The mistake of scaling every step."""
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
    """The gradient of the sum of squares with respect to the change."""
    out = _call(fn, inputs)
    if not isinstance(out, torch.Tensor):
        raise Wrong("a tensor", type(out).__name__)
    if not out.requires_grad:
        hint = "The result is detached, or it was computed with Python numbers. Compute all of it with tensors."
        raise Wrong("a result that requires a gradient", "a result that does not", hint)
    try:
        (gradient,) = torch.autograd.grad(out.square().sum(), inputs.change_BHW, allow_unused=True)
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        hint = "An operation in place (*=) has overwritten a value that the backward pass needs. Make a new tensor."
        raise Wrong("a gradient", "an error, because a value was overwritten", hint) from None
    if gradient is None:
        raise Wrong("a gradient with respect to the change", None, "The change is detached before the result.")
    return gradient


def _compare(fn: Callable, largest: float, hint: str = "", mistakes: Mistakes = (), of: Callable = _call) -> None:
    """Require the values or gradients of the first version. ``mistakes`` are functions, each with its hint."""
    inputs = _inputs(largest)
    known = [(of(mistake, inputs), mistake_hint) for mistake, mistake_hint in mistakes]
    expect_close(of(fn, inputs), of(_right, inputs), hint, known, rtol=1e-3 if of is _gradient else 1e-4, atol=1e-5)


def _keeps_inputs(fn: Callable) -> None:
    """The inputs do not change"""
    before, given = _inputs(1.0), _inputs(1.0)
    with torch.no_grad():
        _call(fn, given)
    hint = "An operation in place (*=, or a method whose name ends in _) has changed an input."
    for got, wanted in zip(given, before, strict=True):
        expect_close(got, wanted, hint=hint)


def _whole(fn: Callable) -> None:
    """One graph contains the whole function"""
    torch.compiler.reset()
    breaks = _breaks(fn)
    if breaks:
        raise Wrong("one graph", f"{len(breaks) + 1} graphs; graph break at {breaks[0]}", _cause(fn))
    try:
        torch.compile(fn, fullgraph=True, backend="eager")(*_inputs(1.0), _DT, _LIMIT)
    except Exception as error:
        raise Wrong("one graph", str(error).strip().split("\n")[0], _cause(fn)) from None


def _breaks(fn: Callable) -> list[str]:
    """The line and the reason of each place where the function leaves its graph."""
    log = logging.getLogger("torch._dynamo")
    level = log.level
    log.setLevel(logging.ERROR)  # no warnings, because the check reports the graph breaks
    try:
        reasons = torch._dynamo.explain(fn)(*_inputs(1.0), _DT, _LIMIT).break_reasons
    finally:
        log.setLevel(level)
    breaks = []
    for reason in reasons:
        why = reason.reason.strip().partition("\n")[0]
        if why.startswith("generic_jump"):  # torch's name for a branch on the value of a tensor
            why = "a branch that depends on the value of a tensor"
        breaks.append(f"line {reason.user_stack[-1].lineno}: {why}")
    return breaks


def _cause(fn: Callable) -> str:
    """The hint for the most likely cause of the graph break, from the names that the function uses."""
    names = set(getattr(getattr(fn, "__code__", None), "co_names", ()))
    if names & {"item", "tolist", "float", "bool", "numpy"}:
        return "Python needs the value of a tensor here (item, float, …). Compute with the tensor itself."
    if "print" in names:
        return "The program cannot print from inside a kernel. Remove the message."
    return "An if on a tensor needs its value in Python. Compute one scale that is right in both cases, without an if."


def _both_ways(fn: Callable) -> None:
    """The same graph is used within the limit and beyond it"""
    torch.compiler.reset()
    graphs: list[Callable] = []
    fast = torch.compile(fn, fullgraph=True, backend=lambda graph, inputs: graphs.append(graph) or graph)
    hint = "The compiled function gives another result: a decision was made only once, when the graph was built."
    for seed, largest in enumerate((1.0, 0.1, 0.9, 0.2)):
        inputs = _inputs(largest, seed)
        expect_close(_call(fast, inputs), _call(_right, inputs), hint=hint, rtol=1e-4, atol=1e-6)
    if len(graphs) != 1:
        hint = "A Python value decides which graph is used. Compute the decision with tensors."
        raise Wrong("1 graph for 4 calls", f"{len(graphs)} graphs", hint)


_UP = "A step within the limit must not change, but this step was scaled *up*."
_BEYOND = (
    (_never, "This step is beyond the limit, but it was not scaled down."),
    (_each_point, "Scale the whole step by one factor. A limit for each single point bends the flow."),
)
_DOWN = "The largest step here is negative. Take the absolute value before the maximum."
_DETACHED = [
    (_constant_scale, "The scale depends on the change, so the gradient flows through it too. Do not detach it.")
]
_DIVIDED = (
    "torch.where computes both sides, also the side that it does not take. A division by 0 on that side gives NaN in "
    "the backward pass. Make sure that the divisor is never 0."
)
_HINTS = (
    "Compute the scale as a tensor. It is 1 within the limit and limit / largest beyond the limit.",
    "Divide limit by a number that is never smaller than limit. Which tensor method computes such a maximum?",
    "An `if` on a tensor makes Python read its value. Therefore the compiler must end the graph there.",
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
        case("A step within the limit does not change", _compare, 0.1, mistakes=[(_always, _UP)]),
        case("A step beyond the limit is scaled down as a whole", _compare, 1.0, mistakes=_BEYOND),
        case("A large negative step is scaled down, too", _compare, -1.0, _DOWN),
        _whole,
        _both_ways,
        case("Beyond the limit, the gradients are those of the first version", _compare, 1.0, "", _DETACHED, _gradient),
        case("Within the limit, the gradients are those of the first version", _compare, 0.1, "", _DETACHED, _gradient),
        case("Where nothing moves, the gradient is finite", _compare, 0.0, _DIVIDED, of=_gradient),
    ),
    hints=_HINTS,
    code=_CODE,
)
