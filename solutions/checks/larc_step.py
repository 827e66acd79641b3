"""Checks of chapter 14's exercise: one update of LARC, whose learning rate stands outside of the momentum.

Each case passes weights and gradients to the learner's function and to the correct update. A known mistake is another
formula for one part of the update. A learner gets the hint of the mistake that gives exactly the learner's weights.

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
        "The layer moves with γ times λ. λ is a rate, not a factor of γ, and γ v multiplies by γ again. Divide λ by γ.",
    ),
    (
        Rule(limit=lambda own_rate, rate: torch.ones(())),
        "The layer moved with the rate γ, although its λ is smaller. Use the smaller one of the two rates.",
    ),
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * (g.norm() + decay * w.norm()) / w.norm()),
        "λ is upside down. The norm of the weights is the numerator, and the gradient is in the denominator.",
    ),
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * w.norm() ** 2 / (g.norm() ** 2 + decay * w.norm() ** 2)),
        "A norm is the square root of the sum of squares. The square root is missing.",
    ),
    (
        Rule(own_rate=lambda w, g, decay, trust: _own_rate(w, g, decay, 1.0)),
        "The trust coefficient is missing from λ.",
    ),
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * w.abs() / (g.abs() + decay * w.abs())),
        "Use one norm for the complete layer, and not one value for each weight.",
    ),
    (
        Rule(step=lambda limit, rate: 1.0),
        "The rate γ is missing. The update of the weights is w ← w − γ v.",
    ),
    (
        Rule(step=lambda limit, rate: -rate),
        "The weights moved in the direction of the gradient. Subtract γ v.",
    ),
)
_CAPPED = (
    (
        Rule(limit=lambda own_rate, rate: own_rate / rate),
        "This λ is larger than γ, and the layer moved with λ. LARS does this. In LARC, no layer is faster than γ.",
    ),
)
_DECAYED = (
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * w.norm() / g.norm()),
        "The weight decay is missing in the denominator. It is ‖g‖ + β ‖w‖.",
    ),
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * w.norm() / (g + decay * w).norm()),
        "The denominator is the sum of two norms, ‖g‖ + β ‖w‖. It is not the norm of g + β w.",
    ),
    (
        Rule(gradient=lambda w, g, decay: g),
        "The weight decay is missing in the velocity. The new part is factor · (g + β w).",
    ),
    (
        Rule(gradient=lambda w, g, decay: g, decays_outside=True),
        "The factor does not multiply the weight decay. The new part is factor · (g + β w).",
    ),
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * w.norm() / g.norm(), gradient=lambda w, g, decay: g),
        "There is no weight decay. It is needed in the denominator of λ and in the velocity.",
    ),
)
_REMEMBERED = (
    (
        Rule(entering=lambda limit, rate, momentum: rate * limit, step=lambda limit, rate: 1.0),
        "The velocity contains the rates of earlier updates. In LARC, γ is outside of the velocity, w ← w − γ v.",
    ),
    (
        Rule(entering=lambda limit, rate, momentum: 1.0, step=lambda limit, rate: rate * limit),
        "The velocity contains gradients without the factor, and the present λ limits all of them. Multiply each "
        "gradient by its factor before you add it to the velocity.",
    ),
    (
        Rule(keeps_velocity=False),
        "The velocity was lost after the call. Change it in place, like the weights.",
    ),
    (
        Rule(entering=lambda limit, rate, momentum: (1 - momentum) * limit),
        "The new part has the factor 1 − m. The velocity is m v + new part, without this factor.",
    ),
)
_GLOBAL = (
    (
        Rule(same_for_all=True),
        "All layers have the same λ. Each layer has its own norms, so compute λ inside the loop.",
    ),
)
_VECTORS = (
    (
        Rule(limits_vectors=True),
        "A bias was limited by λ. Vectors (ndim 1) move with the rate γ, as in SGD.",
    ),
    (
        Rule(decays_vectors=True),
        "A bias had weight decay. Vectors (ndim 1) have no weight decay.",
    ),
    (
        Rule(limits_vectors=True, decays_vectors=True),
        "A bias was limited by λ, and it had weight decay. Vectors (ndim 1) move with γ, without weight decay.",
    ),
)
_TINY = (
    (
        Rule(own_rate=lambda w, g, decay, trust: trust * w.norm() / (g.norm() + decay * w.norm() + 1e-6)),
        "A small number in the denominator changes λ if the gradient is small. Test for zero instead.",
    ),
)
_ZERO = "A layer of zeros has λ = 0, so its weights stay zero forever. If a norm is zero, use the factor 1."
_UNMOVED = "The weights did not change. Change them in place, for example with parameter -= …"
_UNCHANGED = "Do not change parameter.grad, because other code may still read it. Make a new tensor for g + β w."

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
    """Three updates with momentum and with decreasing rates"""
    steps = [([_STEEP], RATE), ([[[-2.0, 1.0], [0.5, 1.5]]], RATE / 2), ([[[0.1, 0.0], [0.0, 0.1]]], RATE / 10)]
    _check(
        fn,
        [_W],
        steps,
        _REMEMBERED,
        "The first update is correct, but a later one is not. What does v contain by then?",
    )


def _check_rate_of_zero(fn: Callable) -> None:
    """An update with the rate 0, as at the end of a schedule, changes the velocity but not the weights"""
    net = _Net(_W)
    net.update(fn, [_STEEP], rate=0.0)
    hint = "If γ is 0, λ is not smaller than γ. So the factor is 1, and the complete gradient enters the velocity."
    expect_close(net.weights(), net.initial, "With the rate 0, no weight moves. " + hint)
    expect_close(net.velocities[0], _float64(_STEEP) + DECAY * net.layers[0].detach(), hint)


def _check_zeros(fn: Callable) -> None:
    """A layer of zeros moves, and a layer with the gradient zero stays finite"""
    net = _Net([[0.0, 0.0]], _W)
    net.update(fn, [[[1.0, -2.0]], [[0.0, 0.0], [0.0, 0.0]]], decay=0.0)
    if not net.weights().isfinite().all():
        hint = "There is a division by zero. If the numerator or denominator is zero, use the factor 1."
        raise Wrong("finite weights", net.weights(), hint)
    without_weights, without_gradient = (layer.detach() for layer in net.layers)
    mistakes = [(torch.zeros(1, 2), _ZERO)]
    hint = "If the numerator or denominator of λ is zero, the factor is 1, as in SGD."
    expect_close(without_weights, _float64([[-RATE, 2 * RATE]]), hint, mistakes)
    expect_close(
        without_gradient, _float64(_W), "If the gradient and the weight decay are zero, the weights do not move."
    )


def _check_tiny(fn: Callable) -> None:
    """If weights and gradient are a billion times as small, so is the step"""
    weights = (1e-9 * _float64(_W)).tolist()
    gradient = (1e-9 * _float64(_G)).tolist()
    hint = "λ is a ratio of two norms. If both are a billion times as small, λ stays the same."
    _check(fn, [weights], [([gradient], RATE)], _TINY, hint, decay=0.0)


def _check_rest(fn: Callable) -> None:
    """A parameter without a gradient stays, and gradients do not change"""
    net = _Net(_W, _W)
    net.update(fn, [None, _G])
    expect_close(net.layers[0].detach(), _float64(_W), "A parameter without a gradient moved. Skip it.")
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
        case(
            "A matrix with λ smaller than γ moves by λ times its gradient", _check, [_W], _ONE_STEP, _RATIO, decay=0.0
        ),
        case("A matrix with λ larger than γ moves as with SGD", _check, [_W], [([_FLAT], RATE)], _CAPPED, decay=0.0),
        case("With weight decay, in λ and in the velocity", _check, [_W], _ONE_STEP, _DECAYED),
        _check_momentum,
        case("Two matrices, each with its own norms", _check, [_W, [[0.01, 0.02]]], _TWO_MATRICES, _GLOBAL),
        case("A bias moves with the rate γ and has no weight decay", _check, [_W, [0.3, -0.6]], _WITH_BIAS, _VECTORS),
        _check_zeros,
        _check_rate_of_zero,
        _check_tiny,
        _check_rest,
    ),
    hints=(
        "The update w ← w − γ v already multiplies by γ. Which factor must v contain, so that the layer moves with λ?",
        "The factor is 1 for a vector, for a norm of zero, and for λ larger than γ. Change it only for matrices.",
        "What is λ / γ if γ is 0, and if the gradient is 0? torch.where handles one case, the limit of 1 the other.",
    ),
    code=(
        "numerator, denominator = trust * w.norm(), w.grad.norm() + decay * w.norm()",
        "positive = (numerator > 0) & (denominator > 0)",
        "factor = torch.where(positive, numerator / (rate * denominator), 1.0).clamp(max=1.0)",
    ),
)
