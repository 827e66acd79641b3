"""Checks of chapter 14's exercise: one update of LARC, whose learning rate stands outside of the momentum.

Each case passes weights and gradients to the learner's function and to the correct update. A known mistake is another
formula for one part of the update. A learner gets the hint of the mistake that gives exactly the learner's weights. At
a constant rate the correct update moves the weights as the library's LARC does, whose rate stands inside.

Legend: w weights, g gradient and v velocity of a layer; γ learning rate, λ the layer's own rate, β weight decay.

Source: You et al. 2017, arXiv:1708.03888
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close

RATE = 0.5
MOMENTUM = 0.9
DECAY = 0.1
TRUST = 0.02


def _own_rate(w: Tensor, g: Tensor, decay: float, trust: float) -> Tensor:
    """Return λ, the rate of a layer by its norms."""
    return trust * w.norm() / (g.norm() + decay * w.norm())


def _limit(own_rate: Tensor, rate: float) -> Tensor:
    """Return λ / γ if λ is below γ, and otherwise 1. A λ of 0, infinity or NaN limits nothing."""
    return torch.where((own_rate > 0) & (own_rate < rate), own_rate / rate, 1.0)


@dataclass(frozen=True)
class Rule:
    """The formulas of an update. A known mistake is a rule in which some of them differ.

    Attributes:
        own_rate: λ, from w, g, β and the trust coefficient.
        limit: The factor that limits the gradient, from λ and γ.
        gradient: What is scaled, from w, g and β.
        entering: The factor of the gradient in the velocity, from the limit, γ and the momentum.
        step: The factor of the velocity in the step, from the limit and γ.
        decays_outside: Whether the step also decays the weights by γ β.
        keeps_velocity: Whether the velocity is there for the next call.
        same_for_all: Whether λ is that of all layers together.
        limits_vectors: Whether a vector is limited by its λ.
        decays_vectors: Whether a vector is decayed.
    """

    own_rate: Callable[[Tensor, Tensor, float, float], Tensor] = _own_rate
    limit: Callable[[Tensor, float], Tensor] = _limit
    gradient: Callable[[Tensor, Tensor, float], Tensor] = lambda w, g, decay: g + decay * w
    entering: Callable[[Tensor, float, float], Any] = lambda limit, rate, momentum: limit
    step: Callable[[Tensor, float], Any] = lambda limit, rate: rate
    decays_outside: bool = False
    keeps_velocity: bool = True
    same_for_all: bool = False
    limits_vectors: bool = False
    decays_vectors: bool = False

    def __call__(
        self,
        layers: Sequence[Tensor],
        velocities: Sequence[Tensor],
        rate: float,
        momentum: float,
        decay: float,
        trust: float,
    ) -> None:
        """Make one update like the learner's function."""
        all_layers = _joined(layers)
        for w, v in zip(layers, velocities, strict=True):
            g = w.grad
            assert g is not None
            is_vector = w.ndim == 1
            own_decay = 0.0 if is_vector and not self.decays_vectors else decay
            limit = torch.ones(())
            if not is_vector or self.limits_vectors:
                norms_of = all_layers if self.same_for_all else (w, g)
                limit = self.limit(self.own_rate(*norms_of, own_decay, trust), rate)
            velocity = momentum * v + self.entering(limit, rate, momentum) * self.gradient(w, g, own_decay)
            if self.keeps_velocity:
                v.copy_(velocity)
            if self.decays_outside:
                w -= rate * own_decay * w
            w -= self.step(limit, rate) * velocity


def _joined(layers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the weights and the gradients of all layers."""
    gradients = [layer.grad for layer in layers if layer.grad is not None]
    return torch.cat([layer.flatten() for layer in layers]), torch.cat([g.flatten() for g in gradients])


Mistakes = Sequence[tuple[Rule, str]]

_CORRECT = Rule()
_RATIO = (
    (
        Rule(entering=lambda limit, rate, momentum: rate * limit),
        "The rate came in twice. λ is the layer's own rate, not a factor of γ; and γ v multiplies by γ.",
    ),
    (
        Rule(limit=lambda own_rate, rate: torch.ones(())),
        "The layer moved as by SGD, though its λ is below γ: of the two rates the smaller one counts.",
    ),
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * (g.norm() + decay * w.norm()) / w.norm()),
        "λ is upside down: weights above, gradient below.",
    ),
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * w.norm() ** 2 / (g.norm() ** 2 + decay * w.norm() ** 2)),
        "A norm is the root of the sum of squares; you left out the root.",
    ),
    (
        Rule(own_rate=lambda w, g, decay, trust: _own_rate(w, g, decay, 1.0)),
        "The trust coefficient is missing from λ.",
    ),
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * w.abs() / (g.abs() + decay * w.abs())),
        "Take one norm of the whole layer, not one of each number.",
    ),
    (
        Rule(step=lambda limit, rate: 1.0),
        "The velocity holds no rate: multiply by γ where the weights move.",
    ),
    (
        Rule(step=lambda limit, rate: -rate),
        "The weights went uphill: subtract.",
    ),
)
_CAPPED = (
    (
        Rule(limit=lambda own_rate, rate: own_rate / rate),
        "This λ is above γ, and the layer moved by λ. That is LARS; in LARC no layer is faster than γ.",
    ),
)
_DECAYED = (
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * w.norm() / g.norm()),
        "The decay is missing from the denominator: ‖g‖ + β ‖w‖.",
    ),
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * w.norm() / (g + decay * w).norm()),
        "The denominator is ‖g‖ + β ‖w‖, two norms, not the norm of g + β w.",
    ),
    (
        Rule(gradient=lambda w, g, decay: g),
        "The decay is missing from the step: what is scaled is g + β w.",
    ),
    (
        Rule(gradient=lambda w, g, decay: g, decays_outside=True),
        "The decay went around the ratio. What is scaled is g + β w as a whole.",
    ),
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * w.norm() / g.norm(), gradient=lambda w, g, decay: g),
        "The decay is nowhere: it belongs into the denominator, and into the step.",
    ),
)
_REMEMBERED = (
    (
        Rule(entering=lambda limit, rate, momentum: rate * limit, step=lambda limit, rate: 1.0),
        "The velocity holds the rates of their own times. Here γ stands outside: w ← w - γ v.",
    ),
    (
        Rule(entering=lambda limit, rate, momentum: 1.0, step=lambda limit, rate: rate * limit),
        "The velocity holds raw gradients, and the λ of now limits them all. Limit first, then remember.",
    ),
    (
        Rule(keeps_velocity=False),
        "The velocity was not kept for the next call. Change it in place, as the weights.",
    ),
    (
        Rule(entering=lambda limit, rate, momentum: (1 - momentum) * limit),
        "The new part enters the velocity whole: m v + …, not m v + (1 - m) ….",
    ),
)
_GLOBAL = (
    (
        Rule(same_for_all=True),
        "That is one λ for all layers. Each layer has its own norms: compute them inside the loop.",
    ),
)
_VECTORS = (
    (
        Rule(limits_vectors=True),
        "A bias was limited by a λ. Vectors (ndim 1) move by γ, as in SGD.",
    ),
    (
        Rule(decays_vectors=True),
        "A bias was decayed. Vectors (ndim 1) take no decay.",
    ),
    (
        Rule(limits_vectors=True, decays_vectors=True),
        "A bias was limited by a λ, and decayed. Vectors (ndim 1) move by γ, without decay.",
    ),
)
_TINY = (
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * w.norm() / (g.norm() + decay * w.norm() + 1e-6)),
        "A small number in the denominator swallows a small gradient. Ask whether it is zero instead.",
    ),
)
_ZERO = "A layer of zeros has λ = 0, so it never leaves zero. Where a norm is zero, limit nothing."
_UNMOVED = "The weights did not change. Change them in place: parameter -= …"
_UNCHANGED = "Leave parameter.grad as it is: others may still read it. Make a new tensor of g + β w."

_W = [[3.0, -1.0], [2.0, 0.5]]
_G = [[0.2, 0.1], [-0.4, 0.3]]
_STEEP = [[4.0, 2.0], [-8.0, 6.0]]
_FLAT = [[0.02, 0.01], [-0.04, 0.03]]


def _float64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class _Net:
    """Layers and their velocities. Two that are made from the same numbers are equal."""

    def __init__(self, *weights: Any) -> None:
        self.layers = [torch.nn.Parameter(_float64(w)) for w in weights]
        self.velocities = [torch.zeros_like(layer.detach()) for layer in self.layers]
        self.initial = self.weights()

    def update(self, fn: Callable, gradients: Sequence[Any], rate: float = RATE, decay: float = DECAY) -> None:
        """Make one update by a function, with these gradients. A layer with None has no gradient."""
        for layer, gradient in zip(self.layers, gradients, strict=True):
            layer.grad = None if gradient is None else _float64(gradient)
        with torch.no_grad():
            fn(self.layers, self.velocities, rate, MOMENTUM, decay, TRUST)

    def weights(self) -> Tensor:
        """Return all weights as one flat tensor."""
        return torch.cat([layer.detach().flatten() for layer in self.layers])


def _check(
    fn: Callable,
    weights: Sequence[Any],
    steps: Sequence[tuple[Sequence[Any], float]],
    mistakes: Mistakes,
    hint: str = "",
    decay: float = DECAY,
) -> None:
    """After some updates, each with gradients and a rate, the weights must be those of the correct update."""

    def train(function: Callable) -> _Net:
        net = _Net(*weights)
        for gradients, rate in steps:
            net.update(function, gradients, rate, decay)
        return net

    expected = train(_CORRECT).weights()
    known = [(train(rule).weights(), hint_for_rule) for rule, hint_for_rule in mistakes]
    got = train(fn)
    expect_close(got.weights(), expected, hint, [(got.initial, _UNMOVED), *known], rtol=1e-6, atol=1e-15)


def _check_momentum(fn: Callable) -> None:
    """Three updates at falling rates, with momentum"""
    steps = [([_STEEP], RATE), ([[[-2.0, 1.0], [0.5, 1.5]]], RATE / 2), ([[[0.1, 0.0], [0.0, 0.1]]], RATE / 10)]
    _check(fn, [_W], steps, _REMEMBERED, "The first update was right; a later one is not. What does v hold by then?")


def _check_rate_of_zero(fn: Callable) -> None:
    """An update at a rate of 0, as at the ends of a schedule, moves nothing, and is remembered"""
    net = _Net(_W)
    net.update(fn, [_STEEP], rate=0.0)
    hint = "Which of λ and γ is smaller when γ is 0? Then nothing is limited: the gradient enters whole."
    expect_close(net.weights(), net.initial, "At a rate of 0 nothing moves. " + hint)
    expect_close(net.velocities[0], _float64(_STEEP) + DECAY * net.layers[0].detach(), hint)


def _check_zeros(fn: Callable) -> None:
    """A layer of zeros moves, and one without slope stays finite"""
    net = _Net([[0.0, 0.0]], _W)
    net.update(fn, [[[1.0, -2.0]], [[0.0, 0.0], [0.0, 0.0]]], decay=0.0)
    if not net.weights().isfinite().all():
        hint = "Something was divided by zero. Where a norm is zero, limit nothing."
        raise Wrong("finite weights", net.weights(), hint)
    without_weights, without_gradient = (layer.detach() for layer in net.layers)
    mistakes = [(torch.zeros(1, 2), _ZERO)]
    hint = "Where a norm is zero, limit nothing: an ordinary step."
    expect_close(without_weights, _float64([[-RATE, 2 * RATE]]), hint, mistakes)
    expect_close(without_gradient, _float64(_W), "Without a slope nothing moves.")


def _check_tiny(fn: Callable) -> None:
    """Weights and gradient a billion times as small make a step a billion times as small"""
    weights = (1e-9 * _float64(_W)).tolist()
    gradient = (1e-9 * _float64(_G)).tolist()
    hint = "λ is a ratio: how long both are does not count."
    _check(fn, [weights], [([gradient], RATE)], _TINY, hint, decay=0.0)


def _check_rest(fn: Callable) -> None:
    """A parameter without gradient stays, and gradients are not touched"""
    net = _Net(_W, _W)
    net.update(fn, [None, _G])
    expect_close(net.layers[0].detach(), _float64(_W), "One without a gradient moved.")
    if net.layers[1].grad is None:
        raise Wrong("a gradient", None, _UNCHANGED)
    expect_close(net.layers[1].grad, _float64(_G), _UNCHANGED)


_ONE_STEP = [([_STEEP], RATE)]
_TWO_MATRICES = [([_G, [[5.0, -7.0]]], RATE)]
_WITH_BIAS = [([_G, [0.2, 0.1]], RATE)]
EXERCISE = Exercise(
    name="larc_step",
    chapter="14",
    cases=(
        case("A matrix whose λ is below γ moves by λ times its gradient", _check, [_W], _ONE_STEP, _RATIO, decay=0.0),
        case("One whose λ is above γ moves as by SGD", _check, [_W], [([_FLAT], RATE)], _CAPPED, decay=0.0),
        case("With decay, in both places where LARS has it", _check, [_W], _ONE_STEP, _DECAYED),
        _check_momentum,
        case("Two matrices, each by its own norms", _check, [_W, [[0.01, 0.02]]], _TWO_MATRICES, _GLOBAL),
        case("A bias takes the whole rate, and no decay", _check, [_W, [0.3, -0.6]], _WITH_BIAS, _VECTORS),
        _check_zeros,
        _check_rate_of_zero,
        _check_tiny,
        _check_rest,
    ),
    hints=(
        "By which rate is a layer to move in the end? By which one does w ← w - γ v multiply? What is left for v?",
        "Three things limit nothing: a vector, a norm of zero, a λ above γ. What do all three have in common?",
        "What is λ / γ when γ is 0, and when the gradient is 0? Which of these cases does torch.where catch?",
    ),
    code=(
        "above, below = trust * w.norm(), w.grad.norm() + decay * w.norm()",
        "factor = torch.where((above > 0) & (below > 0), above / (rate * below), 1.0).clamp(max=1.0)",
    ),
)
