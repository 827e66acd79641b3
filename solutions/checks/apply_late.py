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
        "The gradient entered whole. One that is τ updates late counts for a τ-th.",
    ),
    (
        Rule(divisor=lambda late: late + 1),
        "That is g / (τ + 1): one that is a single update late would count for half. It counts in full.",
    ),
    (
        Rule(divisor=lambda late: -late),
        "The staleness is the server's version minus the one that the worker had fetched.",
    ),
    (
        Rule(divisor=math.sqrt),
        "That is g / √τ. Here the staleness itself divides.",
    ),
    (
        Rule(step=lambda rate, late: -rate),
        "The weights went uphill: subtract.",
    ),
    (
        Rule(step=lambda rate, late: 1.0),
        "The rate is missing: the velocity holds gradients, w ← w - rate · v.",
    ),
    (
        Rule(gradient_factor=lambda momentum: 1 - momentum),
        "The new part enters the velocity whole: m v + …, not m v + (1 - m) ….",
    ),
    (
        Rule(keeps_velocity=False),
        "The velocity was not kept for the next call. Change it in place, as the weights.",
    ),
    (
        Rule(divisor=lambda late: 1, step=lambda rate, late: rate / late),
        "The staleness divided the step, not what enters the velocity. Later steps would then take all of it.",
    ),
    (
        Rule(step=lambda rate, late: 0.0),
        _UNMOVED,
    ),
)
_REMEMBERED = (
    (
        Rule(velocity_factor=lambda momentum, divisor: momentum / divisor),
        "The old velocity was divided, too. It came with gradients of other ages; only this one is late.",
    ),
    (
        Rule(velocity_factor=lambda momentum, divisor: momentum**2),
        "The momentum came in twice: once, on the old velocity.",
    ),
)
_FRESH = "A gradient that is not late (τ = 0) enters whole, and so does one with τ = 1: what is the least divisor?"
_LATER_IS_WRONG = "The first was right; a later one is not. What does the velocity hold by then?"
_STAYS = "A parameter without a gradient (None) stays as it is, and so does its velocity: skip it."
_UNCHANGED = "The worker's tensors were changed. They are not yours: make new ones."
_LATE = "One that is more than `largest` late is dropped: neither weights nor velocities move."
_LIMIT = "A gradient exactly `largest` late still counts: only later ones are dropped."
_DROPPED = "Nothing was applied, so there is no new version: return the old one."
_NEXT = "One update makes the version one higher. Return it."
_BROKEN = "One NaN or inf in any of them, and the whole message is dropped: look at all before you move the first."
_FUTURE = "A version that the server has not reached belongs to another run: raise ValueError, before anything moves."

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
    """A parameter without a gradient stays, and so does its velocity; the worker's tensors stay what they are"""
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
    """One that is just as late as it may be still counts"""
    expected = _Server(_W)
    got = _Server(_W)
    expected.apply(_CORRECT, [_G], 1, 1 + LARGEST)
    version = got.apply(fn, [_G], 1, 1 + LARGEST)
    _expect_state(got, expected, _LIMIT)
    expect(version, 2 + LARGEST, _LIMIT)
    hint = "With largest = 0 a gradient that is not late still counts."
    expect(_Server(_W).apply(fn, [_G], 5, 5, largest=0), 6, hint)


def _check_future(fn: Callable) -> None:
    """A gradient of weights that this server never had"""
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
        case("A gradient three updates late counts for a third", _check, [(4, 7)], _DIVIDED),
        case("One that is not late counts in full", _check, [(7, 7)], (), _FRESH),
        case("So does one that is late by one", _check, [(7, 8)], (), _FRESH),
        _check_version,
        case("Three arrivals, of different ages, with momentum", _check, _ARRIVALS, _REMEMBERED, _LATER_IS_WRONG),
        _check_two_layers,
        case("One that is too late is dropped", _check_dropped, [_G, [1.0, -1.0]], 1, 2 + LARGEST, _LATE),
        _check_limit,
        case("One with NaN in its last layer is dropped as a whole", _check_dropped, _NAN_IN_LAST, 4, 7, _BROKEN),
        case("One with inf in its first layer is, too", _check_dropped, _INF_IN_FIRST, 4, 7, _BROKEN),
        _check_future,
    ),
    hints=(
        "Which questions can be answered before the first weight moves? Ask them first.",
        "What does the velocity hold: steps, or gradients? Which part of it is late?",
        "What is the staleness of a gradient whose weights are still the newest? What would you divide by?",
    ),
    code=("v.mul_(momentum).add_(g / max(1, version - taken_at))",),
)
