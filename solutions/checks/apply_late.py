"""Checks of chapter 24's exercise: a server's update by a gradient that is late, too late, broken, or of the future.

Each case sends some gradients to the learner's function and to the correct update, and compares the weights and the
velocities. A known mistake is another formula for one part of the update. A learner gets the hint of the mistake that
gives exactly the learner's weights and velocities.

Source: Zhang et al. 2016, arXiv:1511.05950
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect, expect_close

RATE = 0.5
MOMENTUM = 0.9
LARGEST = 6  # updates by which a gradient may be late


@dataclass(frozen=True)
class Rule:
    """The formulas of an update. A known mistake is a rule in which one of them differs.

    Attributes:
        divisor: The number that divides the gradient, from the staleness.
        velocity_factor: The factor of the old velocity, from the momentum and the divisor.
        gradient_factor: The factor of the divided gradient, from the momentum.
        step: The factor of the velocity in the step, from the learning rate and the staleness.
        keeps_velocity: Whether the velocity is there for the next call.
    """

    divisor: Callable[[int], float] = lambda late: max(1, late)
    velocity_factor: Callable[[float, float], float] = lambda momentum, divisor: momentum
    gradient_factor: Callable[[float], float] = lambda momentum: 1.0
    step: Callable[[float, int], float] = lambda rate, late: rate
    keeps_velocity: bool = True

    def __call__(
        self,
        weights: Sequence[Tensor],
        velocities: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        taken_at: int,
        version: int,
        rate: float,
        momentum: float,
        largest: int,
    ) -> int:
        """Apply the gradients like the learner's function, and return the version of the weights."""
        late = version - taken_at
        divisor = self.divisor(late)
        for w, v, g in zip(weights, velocities, gradients, strict=True):
            if g is None:
                continue
            velocity = self.velocity_factor(momentum, divisor) * v + self.gradient_factor(momentum) * g / divisor
            w -= self.step(rate, late) * velocity
            if self.keeps_velocity:
                v.copy_(velocity)
        return version + 1


Mistakes = Sequence[tuple[Rule, str]]

_CORRECT = Rule()
_UNMOVED = "The weights did not change. Change them in place: w -= …"
_DIVIDED = (
    (
        Rule(divisor=lambda late: 1),
        "The gradient counts in full. Divide a gradient that is τ updates late by τ.",
    ),
    (
        Rule(divisor=lambda late: late + 1),
        "That is g / (τ + 1). Then a gradient that is one update late would count for half, but it counts in full.",
    ),
    (
        Rule(divisor=lambda late: -late),
        "The staleness is the version of the server minus the version that the worker used.",
    ),
    (
        Rule(divisor=math.sqrt),
        "That is g / √τ. Divide by the staleness τ itself.",
    ),
    (
        Rule(step=lambda rate, late: -rate),
        "The weights moved uphill. Subtract the step.",
    ),
    (
        Rule(step=lambda rate, late: 1.0),
        "The learning rate is missing. The velocity contains gradients, so w ← w - rate · v.",
    ),
    (
        Rule(gradient_factor=lambda momentum: 1 - momentum),
        "The new gradient is not multiplied by (1 - m): v ← m v + g / τ.",
    ),
    (
        Rule(keeps_velocity=False),
        "The velocity was not kept for the next call. Change it in place, like the weights.",
    ),
    (
        Rule(divisor=lambda late: 1, step=lambda rate, late: rate / late),
        "You divided the step. Divide the gradient before you add it to the velocity, or later steps use it in full.",
    ),
    (
        Rule(step=lambda rate, late: 0.0),
        _UNMOVED,
    ),
)
_REMEMBERED = (
    (
        Rule(velocity_factor=lambda momentum, divisor: momentum / divisor),
        "You also divided the old velocity. It contains gradients of other ages. Divide only the new gradient.",
    ),
    (
        Rule(velocity_factor=lambda momentum, divisor: momentum**2),
        "You used the momentum twice. Multiply only the old velocity, and only once.",
    ),
)
_FRESH = "A gradient with τ = 0 or τ = 1 counts in full. What is the smallest possible divisor?"
_LATER_IS_WRONG = "The first message is right, but a later one is not. What does the velocity contain then?"
_STAYS = "A parameter whose gradient is None stays as it is, and so does its velocity. Skip it."
_UNCHANGED = "You changed the tensors of the worker. Create new tensors instead."
_LATE = "Drop a message that is more than `largest` updates late. Weights and velocities do not change."
_LIMIT = "A gradient that is exactly `largest` updates late still counts. Drop only older ones."
_DROPPED = "The message was dropped, so the version stays the same. Return the old version."
_NEXT = "An update increases the version by one. Return the new version."
_BROKEN = "If any gradient has NaN or inf, drop the whole message. Check all gradients before you change anything."
_FUTURE = "The server has not reached this version, so raise ValueError before you change anything."

_W = [[3.0, -1.0], [2.0, 0.5]]
_G = [[0.4, 0.1], [-0.8, 0.6]]


class _Server:
    """Weights and velocities. Two servers that are made from the same numbers are equal."""

    def __init__(self, *weights: Any) -> None:
        self.weights = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in weights]
        self.velocities = [torch.zeros_like(w, requires_grad=False) for w in self.weights]
        self.initial = self.state()

    def apply(self, fn: Callable, gradients: Sequence[Any], taken_at: int, version: int, largest: int = LARGEST) -> Any:
        """Apply the gradients of one worker by a function, and return what the function returns."""
        sent = [None if g is None else torch.tensor(g, dtype=torch.float64) for g in gradients]
        copies = [None if g is None else g.clone() for g in sent]
        with torch.no_grad():
            result = fn(self.weights, self.velocities, sent, taken_at, version, RATE, MOMENTUM, largest)
        for g, copy in zip(sent, copies, strict=True):
            if g is not None and copy is not None:
                expect_close(g, copy, _UNCHANGED, rtol=0.0)
        return result

    def state(self) -> Tensor:
        """Return all weights, then all velocities, as one flat tensor."""
        return torch.cat([tensor.detach().flatten() for tensor in (*self.weights, *self.velocities)])


def _expect_state(got: _Server, expected: _Server, hint: str, mistakes: Sequence[tuple[Any, str]] = ()) -> None:
    expect_close(got.state(), expected.state(), hint, mistakes, rtol=1e-9, atol=1e-12)


def _check(fn: Callable, arrivals: Sequence[tuple[int, int]], mistakes: Mistakes, hint: str = "") -> None:
    """Gradients ``(taken_at, version)`` arrive one after the other; the states are compared at the end."""
    gradients = [(n * torch.tensor(_G)).tolist() for n in range(1, 1 + len(arrivals))]

    def state_after(function: Callable) -> tuple[_Server, Any]:
        server = _Server(_W)
        result = None
        for gradient, (taken_at, version) in zip(gradients, arrivals, strict=True):
            result = server.apply(function, [gradient], taken_at, version)
        return server, result

    expected, _ = state_after(_CORRECT)
    known = [(state_after(rule)[0].state(), hint_for_rule) for rule, hint_for_rule in mistakes]
    try:
        got, version = state_after(fn)
    except ZeroDivisionError as error:
        error.add_note(_FRESH)
        raise
    if version is None:
        raise Wrong(arrivals[-1][1] + 1, None, _NEXT)
    _expect_state(got, expected, hint, [(got.initial, _UNMOVED), *known])


def _check_version(fn: Callable) -> None:
    """It returns the next version"""
    expect(_Server(_W).apply(fn, [_G], 4, 7), 8, _NEXT)


def _check_two_layers(fn: Callable) -> None:
    """A parameter without a gradient and its velocity do not change, and the tensors of the worker do not change"""
    expected = _Server(_W, [1.0, 2.0])
    got = _Server(_W, [1.0, 2.0])
    for server, function in ((expected, _CORRECT), (got, fn)):
        server.apply(function, [_G, [1.0, -1.0]], 0, 1)
        server.apply(function, [_G, None], 0, 3)
        server.apply(function, [None, [0.5, 0.5]], 2, 3)
    _expect_state(got, expected, _STAYS)


def _check_dropped(fn: Callable, gradients: Sequence[Any], taken_at: int, version: int, hint: str) -> None:
    """Nothing of this may be applied: weights and velocities stay, and so does the version."""
    server = _Server(_W, [1.0, 2.0])
    server.apply(fn, [_G, [1.0, -1.0]], 0, 1)  # so that the velocities are not zero
    before = server.state()
    got = server.apply(fn, gradients, taken_at, version)
    expect_close(server.state(), before, hint, rtol=0.0)
    expect(got, version, _DROPPED)


def _check_limit(fn: Callable) -> None:
    """A gradient that is exactly as late as allowed still counts"""
    expected = _Server(_W)
    got = _Server(_W)
    expected.apply(_CORRECT, [_G], 1, 1 + LARGEST)
    version = got.apply(fn, [_G], 1, 1 + LARGEST)
    _expect_state(got, expected, _LIMIT)
    expect(version, 2 + LARGEST, _LIMIT)
    hint = "With largest = 0, a gradient that is not late still counts."
    expect(_Server(_W).apply(fn, [_G], 5, 5, largest=0), 6, hint)


def _check_future(fn: Callable) -> None:
    """A gradient for a version that the server has not reached"""
    server = _Server(_W, [1.0, 2.0])
    try:
        got = server.apply(fn, [_G, [1.0, -1.0]], 9, 7)
    except ValueError:
        expect_close(server.state(), server.initial, _FUTURE, rtol=0.0)
        return
    raise Wrong("ValueError", got, _FUTURE)


_NAN_IN_LAST = [_G, [1.0, math.nan]]
_INF_IN_FIRST = [[[0.1, math.inf], [0.0, 0.0]], [1.0, -1.0]]
_ARRIVALS = [(0, 0), (0, 2), (1, 5)]
EXERCISE = Exercise(
    name="apply_late",
    chapter="24",
    cases=(
        case("A gradient that is three updates late counts for a third", _check, [(4, 7)], _DIVIDED),
        case("A gradient that is not late counts in full", _check, [(7, 7)], (), _FRESH),
        case("A gradient that is one update late counts in full", _check, [(7, 8)], (), _FRESH),
        _check_version,
        case("Three gradients of different ages, with momentum", _check, _ARRIVALS, _REMEMBERED, _LATER_IS_WRONG),
        _check_two_layers,
        case("A message that is too late is dropped", _check_dropped, [_G, [1.0, -1.0]], 1, 2 + LARGEST, _LATE),
        _check_limit,
        case("A message with NaN in its last gradient is dropped", _check_dropped, _NAN_IN_LAST, 4, 7, _BROKEN),
        case("A message with inf in its first gradient is dropped", _check_dropped, _INF_IN_FIRST, 4, 7, _BROKEN),
        _check_future,
    ),
    hints=(
        "Which questions can you answer before you change the first weight? Answer them first.",
        "Does the velocity contain steps or gradients? Which part of it is late?",
        "What is the staleness of a gradient if its weights are still the newest? By what would you divide then?",
    ),
    code=("v.mul_(momentum).add_(g / max(1, version - taken_at))",),
)
