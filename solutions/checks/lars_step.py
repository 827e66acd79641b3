"""Checks of chapter 14's exercise: one update of LARS, from its paper.

Each case hands the learner's function weights with planted gradients. What is right is ``optimizers.lars``; what
well-known mistakes give is worked out beside it, so that each gets a hint of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close
from dltutorial.optim.lars import LARS

RATE, MOMENTUM, DECAY, TRUST = 0.5, 0.9, 0.1, 0.02
# Mistakes by name, each with its hint; ``_mistaken`` works out what they give.
_RATIO = {
    "upside down": "The ratio is upside down: weights above, gradient below.",
    "squared": "A norm is the root of the sum of squares; you left out the root.",
    "no trust": "The trust coefficient is missing from the ratio.",
    "of each number": "Take one norm of the whole layer, not one of each number.",
    "rate twice": "The rate came in twice. It is in the velocity already: subtract the velocity as it is.",
    "no rate": "The rate is missing.",
    "uphill": "The weights went uphill: subtract the velocity.",
}
_DECAYED = {
    "not below": "The decay is missing from the denominator: ‖g‖ + β ‖w‖.",
    "one norm": "The denominator is ‖g‖ + β ‖w‖, two norms, not the norm of g + β w.",
    "not above": "The decay is missing from the step: the ratio scales g + β w.",
    "apart": "The decay went around the ratio. LARS scales g + β w as a whole.",
    "nowhere": "The decay is nowhere: it belongs into the denominator, and into the step.",
}
_REMEMBERED = {
    "raw": "The velocity holds raw gradients, and the ratio of now scales them all. Scale first, then remember.",
    "rate outside": "The velocity must hold the rate of its own time: v ← m v + γ λ (g + β w), then w ← w - v.",
    "forgotten": "The velocity was not kept for the next call. Change it in place, as the weights.",
    "damped": "The new step enters the velocity whole: m v + …, not m v + (1 - m) ….",
}
_GLOBAL = {"global": "That is one ratio for all layers. Each layer has its own norms: compute them inside the loop."}
_VECTORS = {
    "adapted": "A bias was scaled by a ratio. Vectors (ndim 1) take λ = 1.",
    "decayed": "A bias was decayed. Vectors (ndim 1) take no decay.",
    "adapted and decayed": "A bias was scaled by a ratio, and decayed. Vectors (ndim 1) take λ = 1 and no decay.",
}
_ZEROS = {"zero": "The ratio is 0 for a layer of zeros, so it can never leave zero. Take λ = 1 where a norm is zero."}
_TINY = {"eps": "A small number in the denominator swallows a small gradient. Ask whether it is zero instead."}
_UNMOVED = "The weights did not change. Change them in place: parameter -= velocity."
_KEEP = "Leave parameter.grad as it is: others may still read it. Make a new tensor of g + β w."


class _Lab:
    """Layers and their velocities, made afresh alike; a step plants the gradients and calls a function."""

    def __init__(self, *weights: Any) -> None:
        made = [torch.tensor(w, dtype=torch.float64) for w in weights]
        self.layers = [torch.nn.Parameter(w) for w in made]
        self.start = self.row()
        self.velocities = [torch.zeros_like(w) for w in made]

    def step(self, fn: Callable, gradients: Sequence[Any], rate: float = RATE, decay: float = DECAY) -> None:
        """One update by ``fn``, with these gradients; None is none."""
        for layer, g in zip(self.layers, gradients, strict=True):
            layer.grad = None if g is None else torch.tensor(g, dtype=torch.float64)
        with torch.no_grad():
            fn(self.layers, self.velocities, rate, MOMENTUM, decay, TRUST)

    def row(self) -> torch.Tensor:
        """All weights."""
        return torch.cat([layer.detach().flatten() for layer in self.layers])


def _paper(layers: Sequence, velocities: Sequence, rate: float, momentum: float, decay: float, trust: float) -> None:
    """The library's LARS as such a function."""
    optimizer = LARS(layers, rate, momentum, trust_coefficient=trust)
    for layer, velocity in zip(layers, velocities, strict=True):
        group = {**optimizer.param_groups[0], "adapt": layer.ndim > 1, "weight_decay": decay if layer.ndim > 1 else 0.0}
        if layer.grad is not None:
            optimizer.change(group, [layer], [layer.grad], [{"momentum_buffer": velocity}])


def _mistaken(mistake: str) -> Callable:
    """LARS with one mistake, as such a function."""

    def step(layers: list, velocities: list, rate: float, momentum: float, decay: float, trust: float) -> None:
        everything = [torch.cat([x.flatten() for x in xs]) for xs in (layers, [layer.grad for layer in layers])]
        for w, v in zip(layers, velocities, strict=True):
            vector = w.ndim == 1
            own = decay if not vector or "decayed" in mistake else 0.0
            pair = everything if mistake == "global" else (w, w.grad)
            ratio = 1.0 if vector and "adapted" not in mistake else _ratio(*pair, own, trust, mistake)
            move = w.grad + (0.0 if mistake in ("not above", "apart", "nowhere") else own) * w
            inside = {"raw": 1.0, "rate outside": ratio, "no rate": ratio}.get(mistake, rate * ratio)
            entered = inside * move * ((1 - momentum) if mistake == "damped" else 1.0)
            v.copy_(entered if mistake == "forgotten" else momentum * v + entered)
            outside = {"raw": rate * ratio, "rate outside": rate, "rate twice": rate, "uphill": -1.0}.get(mistake, 1.0)
            w -= outside * v + (rate * own * w if mistake == "apart" else 0.0)

    return step


def _ratio(w: torch.Tensor, g: torch.Tensor, decay: float, trust: float, mistake: str) -> Any:
    """λ of a layer with a mistake."""
    w_norm, g_norm = w.norm(), g.norm()
    if mistake == "squared":
        w_norm, g_norm = w_norm**2, g_norm**2
    if mistake == "of each number":
        w_norm, g_norm = w.abs(), g.abs()
    below = {"not below": g_norm, "nowhere": g_norm, "one norm": (g + decay * w).norm(), "eps": g_norm + 1e-6}.get(
        mistake, g_norm + decay * w_norm
    )
    if mistake == "upside down":
        return trust * below / w_norm
    return (1.0 if mistake == "no trust" else trust) * w_norm / below


def _compare(
    fn: Callable,
    weights: Sequence[Any],
    steps: Sequence[tuple[Sequence[Any], float]],
    mistakes: Mapping[str, str],
    hint: str = "",
    decay: float = DECAY,
) -> None:
    """Some updates by the learner's function and by the paper."""
    right, got = _Lab(*weights), _Lab(*weights)
    wrong = {name: _Lab(*weights) for name in mistakes}
    for gradients, rate in steps:
        right.step(_paper, gradients, rate, decay)
        for name, lab in wrong.items():
            lab.step(_mistaken(name), gradients, rate, decay)
    for gradients, rate in steps:
        got.step(fn, gradients, rate, decay)
    known = [(lab.row(), mistakes[name]) for name, lab in wrong.items()]
    expect_close(got.row(), right.row(), hint, [(got.start, _UNMOVED), *known], rtol=1e-6, atol=1e-15)


_W, _G = [[3.0, -1.0], [2.0, 0.5]], [[0.2, 0.1], [-0.4, 0.3]]


def _remembers(fn: Callable) -> None:
    """Three updates at falling rates, with momentum"""
    steps = [([_G], RATE), ([[[-2.0, 1.0], [0.5, 1.5]]], RATE / 2), ([[[0.1, 0.0], [0.0, 0.1]]], RATE / 10)]
    _compare(fn, [_W], steps, _REMEMBERED, "The first update was right; a later one is not. What does v hold by then?")


def _leaves_zero(fn: Callable) -> None:
    """A layer of zeros moves, and one without slope stays finite"""
    got = _Lab([[0.0, 0.0]], _W)
    got.step(fn, [[[1.0, -2.0]], [[0.0, 0.0], [0.0, 0.0]]], decay=0.0)
    zeros, still = (layer.detach() for layer in got.layers)
    if not got.row().isfinite().all():
        hint = "Something was divided by zero. Take λ = 1 where a norm is zero."
        raise Wrong("finite weights", got.row(), hint)
    wanted = torch.tensor([[-RATE, 2 * RATE]], dtype=torch.float64)
    nothing = torch.zeros_like(zeros)
    mistakes = [(nothing, _ZEROS["zero"]), (TRUST * wanted, "Where a norm is zero λ itself is 1, not η.")]
    expect_close(zeros, wanted, "Take λ = 1 where a norm is zero: an ordinary step.", mistakes)
    expect_close(still, torch.tensor(_W, dtype=torch.float64), "Without a slope nothing moves.")


def _tiny_gradients(fn: Callable) -> None:
    """A gradient a billion times as small makes the same step"""
    tiny = [[1e-9 * g for g in row] for row in _G]
    _compare(fn, [_W], [([tiny], RATE)], _TINY, "Without decay the length of a gradient cancels.", decay=0.0)


def _leaves_the_rest_alone(fn: Callable) -> None:
    """A parameter without gradient stays, and gradients are not touched"""
    got = _Lab(_W, _W)
    got.step(fn, [None, _G])
    expect_close(got.layers[0].detach(), torch.tensor(_W, dtype=torch.float64), "One without a gradient moved.")
    if got.layers[1].grad is None:
        raise Wrong("a gradient", None, _KEEP)
    expect_close(got.layers[1].grad, torch.tensor(_G, dtype=torch.float64), _KEEP)


_HINTS = (
    "For each parameter with a gradient: is it a vector? Then λ = 1 and β = 0. Else the two norms, and λ.",
    "Norms: parameter.norm() and parameter.grad.norm(). Is one of λ's two parts zero? Then λ = 1.",
    "velocity.mul_(momentum).add_(rate * λ * (gradient + β * parameter)), then parameter -= velocity.",
)
EXERCISE = Exercise(
    name="lars_step",
    chapter="14",
    cases=(
        case(
            "One matrix without decay moves by γ η ‖w‖ / ‖g‖ times its gradient",
            _compare,
            [_W],
            [([_G], RATE)],
            _RATIO,
            decay=0.0,
        ),
        case("With decay, in both places where the paper has it", _compare, [_W], [([_G], RATE)], _DECAYED),
        _remembers,
        case(
            "Two matrices, each by its own norms",
            _compare,
            [_W, [[0.01, 0.02]]],
            [([_G, [[5.0, -7.0]]], RATE)],
            _GLOBAL,
        ),
        case("A bias takes λ = 1 and no decay", _compare, [_W, [0.3, -0.6]], [([_G, [0.2, 0.1]], RATE)], _VECTORS),
        _leaves_zero,
        _tiny_gradients,
        _leaves_the_rest_alone,
    ),
    hints=_HINTS,
)
